"""The Odyssey in a few byte pairs, between characters and words: the best of them, in seven minutes on two CPU cores."""

dataset = "odyssey"
tokenizer = "bpe"
vocab_size = 512

# the model: 853,000 parameters
block_size = 128
n_layer = 4
n_head = 2
n_embd = 128
norm = "rmsnorm"
position = "rotary"
activation = "relu2"
qk_norm = True
bias = False
init = "fan_in"

# the training: the book 28 times over, which takes much dropout
dropout = 0.25
attention_dropout = 0.0
embedding_dropout = 0.0
batch_size = 8
max_steps = 7000
optimizer = "muon"
learning_rate = 6e-3
warmup_steps = 200
schedule = "linear"
eval_interval = 500
eval_tokens = 100_000

# the page at the end
num_samples = 1
temperature = 0.8
max_new_tokens = 700
