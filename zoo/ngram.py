"""The best that counting does: an n-gram of characters with Kneser and Ney's smoothing, which the learned models have to beat.

An n-gram says P(next | the n - 1 characters before), from how often it saw each follow. Most contexts it saw too seldom to trust, so
each count gives up a little (the discount), and what a context saved so is shared out as the next shorter context would have it. What
is Kneser and Ney's own: a shorter context counts not how often a character came, but after how many different ones.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.ladder import LadderConfig, LadderModel

BOUNDARY = 0  # the id that begins and ends a document, and what lies before its beginning


class KneserNey(LadderModel):
    """Interpolated modified Kneser-Ney of `order` characters, the one to come included (Kneser and Ney 1995; Chen and Goodman 1999).

    Of every order n it keeps the contexts it saw, as sorted codes `keys_n` (K,), and what it thinks of each, `table_n` (K, V). Before
    counting, every character is as likely as any other.
    """

    counts = True

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        V, order = config.vocab_size, config.order
        for n in range(1, order + 1):
            self.register_buffer(f"keys_{n}", torch.zeros(1, dtype=torch.int64))
            self.register_buffer(f"table_{n}", torch.full((1, V), -math.log(V)))
        self.register_buffer("distinct", torch.zeros(order, dtype=torch.int64))  # n-grams counted, of each order

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities. The longest context that was seen has the word: an unseen one has no counts to add to the shorter's."""
        V = self.config.vocab_size
        code = context_codes(idx, positions, self.config.order - 1, V)  # (B, T)
        logits = self.table_1.expand(*idx.shape, -1)  # (B, T, V)
        for n in range(2, self.config.order + 1):
            keys, table = getattr(self, f"keys_{n}"), getattr(self, f"table_{n}")
            wanted = code % V ** (n - 1)  # the last n - 1 ids
            row = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            logits = torch.where((keys[row] == wanted)[..., None], table[row], logits)
        return logits

    @torch.no_grad()
    def count(self, tokens: Tensor) -> None:
        """The tables, shortest contexts first, since each order needs the one below. Raises ValueError for fewer than two tokens."""
        if len(tokens) < 2:
            raise ValueError(f"{len(tokens)} tokens are too few to count: the shortest document is two boundaries")
        V, order, device = self.config.vocab_size, self.config.order, self.keys_1.device
        tokens = tokens.cpu()  # in float64, which not every device has
        place = torch.arange(len(tokens))
        positions = place - torch.where(tokens == BOUNDARY, place, 0).cummax(0).values
        longest = context_codes(tokens, positions, order - 1, V)[:-1] * V + tokens[1:]  # (N - 1,) the n-gram that ends at each token
        seen = [(longest % V**n).unique(return_counts=True) for n in range(1, order + 1)]
        keys, table = torch.zeros(1, dtype=torch.int64), torch.full((1, V), 1 / V, dtype=torch.float64)  # order 0: chance
        for n, (grams, counts) in enumerate(seen, start=1):
            if n < order:
                counts = continuation_counts(grams, counts, seen[n][0], n, V)
            shorter_keys, shorter = keys, table
            keys, row = (grams // V).unique(return_inverse=True)
            backoff = shorter[torch.searchsorted(shorter_keys, keys % V ** max(n - 2, 0))]  # (K, V)
            table = interpolate(counts, row, grams % V, backoff)
            setattr(self, f"keys_{n}", keys.to(device))
            setattr(self, f"table_{n}", table.log().float().to(device))
        self.distinct = torch.tensor([len(grams) for grams, _ in seen], device=device)

    def num_parameters(self) -> int:
        """How many different n-grams were counted, of all orders: a table's other entries follow from these."""
        return int(self.distinct.sum())

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """As of every module, after making room: how many contexts there are is known by counting only."""
        for name, buffer in list(self.named_buffers(recurse=False)):
            if name != "distinct" and prefix + name in state_dict:
                setattr(self, name, buffer.new_empty(len(state_dict[prefix + name]), *buffer.shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def context_codes(idx: Tensor, positions: Tensor, length: int, vocab_size: int) -> Tensor:
    """The last `length` ids up to and with each token, as a number in base V, oldest digit first: (..., T) -> (..., T) int64.
    No context reaches back over the beginning of its document: before that are boundaries."""
    codes = torch.zeros_like(idx)
    for back in range(length):
        earlier = F.pad(idx, (back, 0), value=BOUNDARY)[..., : idx.size(-1)]
        codes = codes + torch.where(positions >= back, earlier, BOUNDARY) * vocab_size**back
    return codes


def continuation_counts(grams: Tensor, counts: Tensor, longer: Tensor, n: int, vocab_size: int) -> Tensor:
    """After how many different ids each n-gram came: all (G,) int64, but `longer`, the distinct (n + 1)-grams."""
    different = (longer % vocab_size**n).unique(return_counts=True)[1]  # of the same n-grams in the same order: each has an id before it
    # An n-gram that begins with a boundary has nothing but more boundaries before it. It keeps its own count, or all first letters
    # would be alike. (The 1-gram $ is the end of a document, and comes after letters like any other.)
    begins = (grams < vocab_size ** (n - 1)) & (n > 1)
    return torch.where(begins, counts, different)


def discounts(counts: Tensor) -> Tensor:
    """What a count of 0, 1, 2, and 3 or more gives up: (G,) -> (4,) float64 (Chen and Goodman 1999, equation 17)."""
    n1, n2, n3, n4 = torch.bincount(counts, minlength=5)[1:5].tolist()
    usual = torch.tensor([0, 0.5, 1, 1.5], dtype=torch.float64)
    if not n1 * n2 * n3 * n4:
        return usual  # too little data to estimate from, or, in order 1, too few letters
    Y = n1 / (n1 + 2 * n2)
    D = torch.tensor([0, 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3], dtype=torch.float64)
    return torch.where((D > 0) & (torch.arange(4) >= D), D, usual)  # odd counts of counts can ask for less than nothing


def interpolate(counts: Tensor, row: Tensor, following: Tensor, backoff: Tensor) -> Tensor:
    """P(w | context) = (c(context w) - D) / c(context) + (the D's of the context) / c(context) * P(w | shorter context).
    Of each n-gram its count, the row of its context and its last id, (G,) int64; backoff (K, V) -> (K, V) float64."""
    D = discounts(counts)[counts.clamp(max=3)]  # (G,)
    zeros = backoff.new_zeros(len(backoff))
    total, saved = zeros.index_add(0, row, counts.double()), zeros.index_add(0, row, D)  # (K,) each
    table = (saved / total)[:, None] * backoff
    table[row, following] += (counts - D) / total[row]  # each n-gram is there once
    return table
