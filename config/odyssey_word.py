"""The Odyssey, a token a word, in about a minute and a half on two CPU cores."""

dataset = "odyssey"
tokenizer = "word"
vocab_size = 8192

# the model: 1,386,000 parameters, nearly half of them in the table of 4,641 tokens
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

# the training: the book seven times over
dropout = 0.3
attention_dropout = 0.0
embedding_dropout = 0.0
batch_size = 8
max_steps = 1000
optimizer = "muon"
learning_rate = 7e-3
warmup_steps = 100
schedule = "linear"
eval_interval = 250
eval_tokens = 100_000

# the page at the end
num_samples = 1
temperature = 0.8
max_new_tokens = 350
