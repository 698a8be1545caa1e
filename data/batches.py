"""Prepared tokens to batches.

The *rows* loader packs short documents into rows of block_size tokens, several to a row, so that hardly any position is
padding and all batches have nearly the same shape. Attention stays within a document: `positions` tells the model where each begins.
The *stream* loader cuts windows of block_size tokens out of a long text.

Both have `next` (a training batch, without end), `once` (the split in order, for evaluation), `epoch` and `state_dict`.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.errors import UserError


class Batch(NamedTuple):
    idx: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, -1 where nothing is to be predicted
    positions: Tensor | None  # (B, T) int64, place in its own document; None: a row is one piece of text
    n_targets: int  # targets that are not -1
    n_all: int  # the same for the whole batch, of which this may be the part of one process

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The arguments of the model's forward."""
        return self[:3]

    def with_noise(self, share: float, vocab_size: int) -> "Batch":
        """About this share of the inputs replaced by tokens drawn by chance; those at the beginning of a document stay.

        It keeps a model from learning a small text by heart (Xie et al. 2017, "Data Noising as Smoothing").
        """
        if not share:
            return self
        noisy = torch.rand(self.idx.shape, device=self.idx.device) < share
        if self.positions is not None:
            noisy &= self.positions > 0
        return self._replace(idx=torch.where(noisy, torch.randint_like(self.idx, vocab_size), self.idx))

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        return Batch(*(None if t is None else t.to(device, non_blocking=True) for t in self[:3]), *self[3:])

    def pinned(self) -> "Batch":
        """The batch in memory that a GPU copies from while it computes."""
        return Batch(*(None if t is None else t.pin_memory() for t in self[:3]), *self[3:])


def pack(lengths: np.ndarray, order: np.ndarray, width: int) -> list[list[int]]:
    """Put documents of these lengths, taken in this order, into rows of at most `width` tokens: the fullest row that still
    has the space, else a new one (best fit). Returns the documents of each row."""
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(width + 1)]  # numbers of the rows that have s tokens left
    spaces = 0  # bit s is set when with_space[s] is not empty: finds the next space that fits without a search
    for document in order.tolist():
        length = int(lengths[document])
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1  # the lowest bit
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, row = width, len(rows)
            rows.append([])
        rows[row].append(document)
        with_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return rows


class RowLoader:
    """Batches of packed documents, without end: every document once an epoch, each epoch in a new order.

    tokens: `$ada$eve$`, one split as prepared. A batch has at most `batch_size` rows of `block_size` tokens; the rows of an
    epoch are shared out evenly, so that no step rests on a few left-over rows, and a small split is simply one batch.
    one_shape: fill the batches of training up to `batch_size` with empty rows, as a compiled model likes it.
    part: (i, n): make only every n-th row of each batch of training, from the i-th on, for process i of n.

    Raises UserError for a split without documents, for a document longer than block_size and for fewer rows than processes.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        boundary_id: int,
        block_size: int,
        batch_size: int,
        seed: int = 0,
        one_shape: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.tokens = np.asarray(tokens, dtype=np.int64)
        borders = np.flatnonzero(self.tokens == boundary_id)
        self.starts, self.lengths = borders[:-1], np.diff(borders)  # document i: inputs tokens[start : start + length]
        if len(self.lengths) == 0:
            raise UserError("there is no document to make batches of")
        if self.lengths.max() > block_size:
            raise UserError(f"block_size={block_size} is too small for the longest document; block_size={self.lengths.max()} would fit")
        self.boundary_id, self.block_size, self.batch_size, self.seed = boundary_id, block_size, batch_size, seed
        self.one_shape, self.part = one_shape, part
        self.load_state_dict({"epoch": 0, "batch": 0})
        if (rows := min(map(len, self.batches))) < part[1]:
            raise UserError(f"batches of {rows} rows (batch_size={batch_size}) are too small for {part[1]} processes; {rows} would do")

    def state_dict(self) -> dict[str, int]:
        """The place in the epoch: all it takes to go on with the very next batch."""
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raises ValueError for a place that an epoch of these documents does not have."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.batches = self._shuffled()
        if not 0 <= self.batch <= len(self.batches):
            raise ValueError(f"an epoch has {len(self.batches)} batches, not {self.batch}")

    def __next__(self) -> Batch:
        if self.batch == len(self.batches):
            self.load_state_dict({"epoch": self.epoch + 1, "batch": 0})
        self.batch += 1
        rows = self.batches[self.batch - 1]
        n_all = int(self.lengths[list(itertools.chain.from_iterable(rows))].sum())
        if self.one_shape:
            rows = rows + [[]] * (self.batch_size - len(rows))
        return self._make(rows[self.part[0] :: self.part[1]])._replace(n_all=n_all)

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        """The whole split, in order, for evaluation. With `limit`, only about so many tokens, evenly spread."""
        rows = pack(self.lengths, np.arange(len(self.lengths)), self.block_size)
        if limit is not None and limit < len(rows) * self.block_size:
            rows = [rows[i] for i in np.linspace(0, len(rows) - 1, -(-limit // self.block_size)).round().astype(int)]
        for share in self._share_out(rows):
            yield self._make(share)

    def _shuffled(self) -> list[list[list[int]]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        rows = pack(self.lengths, rng.permutation(len(self.lengths)), self.block_size)
        return self._share_out([rows[i] for i in rng.permutation(len(rows))])

    def _share_out(self, rows: list[list[int]]) -> list[list[list[int]]]:
        n_batches = -(-len(rows) // self.batch_size)
        cuts = [len(rows) * i // n_batches for i in range(n_batches + 1)]
        return [rows[a:b] for a, b in itertools.pairwise(cuts)]

    def _make(self, rows: list[list[int]]) -> Batch:
        """Gather the documents of these rows by one index operation."""
        shape = (len(rows), self.block_size)
        documents = np.array(list(itertools.chain.from_iterable(rows)), dtype=np.int64)
        lengths = self.lengths[documents]
        first = np.cumsum(lengths) - lengths  # of each document, in the list of all tokens of the batch
        place = np.arange(lengths.sum()) - np.repeat(first, lengths)  # of each token in its document
        source = np.repeat(self.starts[documents], lengths) + place
        row = np.repeat(np.arange(len(rows)), [self.lengths[r].sum() for r in rows])
        row_first = np.searchsorted(row, np.arange(len(rows)))  # of each row, in the list of all tokens
        column = np.arange(len(row)) - row_first[row]

        idx = np.full(shape, self.boundary_id)
        targets = np.full(shape, -1)
        positions = np.zeros(shape, dtype=np.int64)  # padding sees itself alone, and no one sees it
        idx[row, column] = self.tokens[source]
        targets[row, column] = self.tokens[source + 1]
        positions[row, column] = place
        return Batch(torch.from_numpy(idx), torch.from_numpy(targets), torch.from_numpy(positions), len(source), len(source))


class StreamLoader:
    """Batches of windows of a long text, without end: block_size tokens each, from places drawn by chance, all equally likely.

    tokens: one split as prepared. A batch depends only on the seed and its number.
    part: (i, n): make only every n-th row of each batch of training, from the i-th on, for process i of n.

    Raises UserError for a split too short for one window, naming the block_size that would fit, and for fewer rows than processes.
    """

    def __init__(self, tokens: np.ndarray, block_size: int, batch_size: int, seed: int = 0, part: tuple[int, int] = (0, 1)) -> None:
        if len(tokens) <= block_size:
            raise UserError(
                f"block_size={block_size} is too large for a text of {len(tokens)} tokens; block_size={len(tokens) - 1} would fit"
            )
        if batch_size < part[1]:
            raise UserError(f"batch_size={batch_size} is too small for {part[1]} processes; batch_size={part[1]} would do")
        self.tokens, self.block_size, self.batch_size, self.seed, self.part = tokens, block_size, batch_size, seed, part
        self.file = open(tokens.filename, "rb") if isinstance(tokens, np.memmap) else None  # noqa: SIM115
        self.batch = 0

    def state_dict(self) -> dict[str, int]:
        """All it takes to go on with the very next batch."""
        return {"batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch = state["batch"]

    @property
    def epoch(self) -> int:
        """How often as many tokens as the split has were served."""
        return self.batch * self.batch_size * self.block_size // len(self.tokens)

    def __next__(self) -> Batch:
        rng = np.random.default_rng((self.seed, self.batch))
        self.batch += 1
        starts = rng.integers(len(self.tokens) - self.block_size, size=self.batch_size)
        return self._make(starts[self.part[0] :: self.part[1]])._replace(n_all=self.batch_size * self.block_size)

    def once(self, limit: int | None = None, stride: int | None = None) -> Iterator[Batch]:
        """The split in order, for evaluation: every token is predicted once, with at least block_size - stride tokens before it
        (but at the very beginning), for windows begin `stride` tokens apart; None: half a window. With `limit`, only about
        so many tokens, evenly spread. Raises UserError for windows that would overlap wholly or leave gaps."""
        stride = -(-self.block_size // 2) if stride is None else stride
        if not 1 <= stride <= self.block_size:
            raise UserError(f"stride={stride} must be at least 1 and at most block_size={self.block_size}")
        last = len(self.tokens) - 1 - self.block_size
        starts = np.append(np.arange(0, last, stride), last)
        new = np.diff(starts, prepend=starts[0] - self.block_size)  # targets at each window's end that no earlier window had
        if limit is not None and limit < stride * len(starts):
            chosen = np.linspace(0, len(starts) - 1, -(-limit // stride)).round().astype(int)
            starts, new = starts[chosen], new[chosen]
        for i in range(0, len(starts), self.batch_size):
            yield self._make(starts[i : i + self.batch_size], new[i : i + self.batch_size])

    def _make(self, starts: np.ndarray, new: np.ndarray | None = None) -> Batch:
        """The windows that begin at these places, with only the last new[i] targets of each when given."""
        tokens = self.tokens
        if self.file:  # mapped anew: what the last map has read is no longer counted as our memory
            tokens = np.memmap(self.file, tokens.dtype, mode="r")
        windows = torch.from_numpy(tokens[starts[:, None] + np.arange(self.block_size + 1)].astype(np.int64))  # (B, T + 1)
        idx, targets = windows[:, :-1].contiguous(), windows[:, 1:].clone()
        if new is not None:
            targets[torch.arange(self.block_size) < self.block_size - torch.from_numpy(new)[:, None]] = -1
        n_targets = idx.numel() if new is None else int(new.sum())
        return Batch(idx, targets, None, n_targets, n_targets)


class Ahead:
    """A loader whose next batch is made, and put where a GPU copies it from, while the last one is computed on."""

    def __init__(self, loader: RowLoader | StreamLoader) -> None:
        self.loader = loader
        self.thread = ThreadPoolExecutor(1)
        self._take_place()

    def _take_place(self) -> None:
        self.epoch, self.state = self.loader.epoch, self.loader.state_dict()
        self.coming = self.thread.submit(self._make)

    def _make(self) -> tuple[Batch, int, dict[str, int]]:
        return next(self.loader).pinned(), self.loader.epoch, self.loader.state_dict()

    def __next__(self) -> Batch:
        batch, self.epoch, self.state = self.coming.result()
        self.coming = self.thread.submit(self._make)
        return batch

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        return self.loader.once(limit)

    def state_dict(self) -> dict[str, int]:
        """The place of the batch served last, not of the one that is coming."""
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.coming.result()
        self.loader.load_state_dict(state)
        self._take_place()
