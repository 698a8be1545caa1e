"""GPT-2 (124M) on a text of your own: `python train.py config/gpt2.py --source=FILE`, for one GPU or several.

The batch is half a million tokens, whatever the number of GPUs (torchrun shares it out). Where it does not fit the memory, halve
batch_size and double grad_accum: the same steps.
"""

dataset = "text"
tokenizer = "gpt2"

# the model: GPT-2 small as OpenAI made it
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768

# the training: that of GPT-3 small (Brown et al. 2020, table 2.1), up to 10 billion tokens
batch_size = 32
grad_accum = 16
max_steps = 20_000
learning_rate = 6e-4
min_learning_rate = 6e-5
warmup_steps = 700
weight_decay = 0.1
eval_interval = 250
eval_tokens = 2_000_000

# the page at the end
num_samples = 1
temperature = 0.8
max_new_tokens = 500
