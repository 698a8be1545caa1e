"""Spelling to sounds, by the original encoder-decoder: the CMU Pronouncing Dictionary, in less than twenty minutes on two CPU cores."""

dataset = "cmudict"
model = "seq2seq"

# the model
block_size = 40
n_layer = 3
n_head = 4
n_embd = 128
norm = "rmsnorm"
norm_place = "pre"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training
dropout = 0.1
attention_dropout = 0.0
label_smoothing = 0.1
batch_size = 256
max_steps = 4000
optimizer = "muon"
learning_rate = 6e-3
warmup_steps = 200
schedule = "linear"
weight_decay = 0.1
eval_interval = 500
