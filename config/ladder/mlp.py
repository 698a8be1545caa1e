"""The characters before, as embeddings of width 3 (so that they can be drawn) side by side, and one hidden layer.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "mlp"
n_embd = 3
n_hidden = 128

dataset = "names"
block_size = 32
batch_size = 32
max_steps = 4500
eval_interval = 500
learning_rate = 1e-2
warmup_steps = 100
schedule = "linear"
