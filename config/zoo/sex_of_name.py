"""Female or male, from the spelling of a name: an encoder that has learned to guess hidden letters, then a head of two classes."""

dataset = "sexes"
model = "encoder"
start_from = "config/zoo/masked_names.py"

# the model, as it was pretrained
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

# the training: ten epochs and slow steps, so that what was learned of names is not forgotten
dropout = 0.1
attention_dropout = 0.0
token_noise = 0.1
batch_size = 128
max_steps = 2000
optimizer = "muon"
learning_rate = 3e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.1
ema = 0.995
eval_interval = 250
