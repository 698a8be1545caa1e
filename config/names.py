"""Names, one character a token: about two minutes on two CPU cores."""

dataset = "names"

# 200,000 parameters, the modern block
block_size = 16
n_layer = 3
n_head = 4
n_embd = 80
norm = "rmsnorm"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"
dropout = 0.12
attention_dropout = 0.0

batch_size = 64
max_new_tokens = 16
max_steps = 4000
learning_rate = 3e-3
warmup_steps = 100
schedule = "linear"
weight_decay = 0.4
