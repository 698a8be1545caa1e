"""The last four characters, counted: interpolated Kneser-Ney, the strongest that counting does.

A step of the ladder: `python ladder.py` trains all of them.
"""

model = "ngram"
order = 5

dataset = "names"
block_size = 32
batch_size = 32
