"""Names, one character a token: US baby names of 2022, in less than three minutes on two CPU cores."""

dataset = "names"

# the model: 233,000 parameters; benchmarks/parts.py measures what its modern parts are worth
block_size = 32
n_layer = 3
n_head = 4
n_embd = 80
norm = "rmsnorm"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training: 25 epochs, which without dropout, noise and weight decay would learn the list by heart (docs/recipes.md)
dropout = 0.15
attention_dropout = 0.0
token_noise = 0.05
batch_size = 32
max_steps = 4500
optimizer = "muon"
learning_rate = 6e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.1
eval_interval = 500
