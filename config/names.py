"""Names, one character a token: US baby names of 2022, in about two minutes on two CPU cores."""

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

# the training: 20 epochs, which without dropout and weight decay would learn the list by heart
dropout = 0.12
attention_dropout = 0.0
batch_size = 32
max_steps = 3500
learning_rate = 3e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.4
