"""The last character: a table of what follows what, counted.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "bigram"
smoothing = 1.0

dataset = "names"
block_size = 32
batch_size = 32
