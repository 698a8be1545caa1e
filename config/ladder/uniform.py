"""Nothing: every character is as likely as any other.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "uniform"

dataset = "names"
block_size = 32
batch_size = 32
