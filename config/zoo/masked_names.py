"""Hidden letters of names, guessed from both sides, by an encoder: what config/zoo/sex_of_name.py starts from."""

dataset = "names"
model = "encoder"

# the model: 310,000 parameters
block_size = 32
n_layer = 4
n_head = 4
n_embd = 80
norm = "rmsnorm"
norm_place = "pre"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training
mask_share = 0.25
dropout = 0.1
attention_dropout = 0.0
batch_size = 128
max_steps = 10000
optimizer = "muon"
learning_rate = 6e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.1
ema = 0.99
eval_interval = 1000
