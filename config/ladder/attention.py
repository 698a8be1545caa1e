"""The characters before, mixed by one head of attention that knows no order, and one hidden layer.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "attention"
n_embd = 32
n_hidden = 64

dataset = "names"
block_size = 32
batch_size = 32
max_steps = 4500
eval_interval = 500
learning_rate = 1e-2
warmup_steps = 100
schedule = "linear"
