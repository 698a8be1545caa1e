"""The original Transformer's block, six times: post-norm, learned positions.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "transformer"
n_layer = 6
n_head = 4
n_embd = 64

dataset = "names"
block_size = 32
batch_size = 32
max_steps = 4500
eval_interval = 500
learning_rate = 2e-3
warmup_steps = 100
schedule = "linear"
