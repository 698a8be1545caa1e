"""A text of your own, in byte pairs: python train.py config/text.py --source=mybook.txt."""

dataset = "text"
tokenizer = "bpe"
vocab_size = 1024

# the model: 800,000 parameters
block_size = 128
n_layer = 4
n_head = 4
n_embd = 128
norm = "rmsnorm"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training
dropout = 0.1
attention_dropout = 0.0
batch_size = 16
max_steps = 2000
optimizer = "muon"
learning_rate = 1e-2
warmup_steps = 100
schedule = "linear"
eval_interval = 100
patience = 5
eval_tokens = 100_000

# the page at the end
num_samples = 1
max_new_tokens = 500
