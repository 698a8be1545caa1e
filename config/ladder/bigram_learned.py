"""The table of letter pairs again, learned by gradient descent instead of counted: it comes to the same.

`python train.py config/ladder/bigram_learned.py`, and compare with config/ladder/bigram.py.
"""

model = "bigram"
smoothing = None

dataset = "names"
block_size = 32
batch_size = 32
max_steps = 4500
eval_interval = 500
learning_rate = 5e-2
warmup_steps = 100
schedule = "linear"
weight_decay = 0.0
