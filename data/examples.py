"""Batches of whole examples: an input and what is to be told of it. Inputs of about one length stand side by side, so that little is
padding (-1).

`Examples` has what train.py knows of a text's `Batch`, and `ExampleLoader` what it knows of a `RowLoader`.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import UserError

POOL = 32  # batches that are sorted by length together


class Examples(NamedTuple):
    """A batch."""

    inputs: tuple[Tensor, ...]  # the arguments of the model's forward, the targets last
    n_targets: int  # what the loss is a mean over: targets that are not -1, or examples
    n_all: int  # the same for the whole batch, of which this may be the part of one process

    @classmethod
    def of(cls, *inputs: np.ndarray) -> "Examples":
        """A whole batch."""
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs)
        count = count_targets(tensors[-1])
        return cls(tensors, count, count)

    def part_of(self, rank: int, size: int) -> "Examples":
        """Every size-th example, from number `rank` on."""
        inputs = tuple(t[rank::size] for t in self.inputs)
        return Examples(inputs, count_targets(inputs[-1]), self.n_all)

    def to(self, device: torch.device) -> "Examples":
        if device.type == "cpu":
            return self
        return self._replace(inputs=tuple(t.to(device, non_blocking=True) for t in self.inputs))

    def pinned(self) -> "Examples":
        """The batch in memory that a GPU copies from while it computes."""
        return self._replace(inputs=tuple(t.pin_memory() for t in self.inputs))


def count_targets(targets: Tensor) -> int:
    """Ids that are not -1; of shares (B, n_classes), the examples."""
    return len(targets) if targets.is_floating_point() else int((targets >= 0).sum())


Make = Callable[[np.ndarray, np.random.Generator | None], Examples]


class ExampleLoader:
    """Batches of examples, without end: each once an epoch, each epoch in a new order.

    lengths: (N,) by which examples are put together. make(numbers, chance): the batch of these examples; whatever it draws
    comes from `chance`, which is None in evaluation.
    part: (i, n): make only every n-th example of each batch of training, from the i-th on, for process i of n.

    Raises UserError for no examples, and for fewer in a batch than processes.
    """

    def __init__(self, lengths: np.ndarray, make: Make, batch_size: int, seed: int = 0, part: tuple[int, int] = (0, 1)) -> None:
        self.lengths, self.make, self.batch_size, self.seed, self.part = lengths, make, batch_size, seed, part
        if not len(lengths):
            raise UserError("there is no example to make batches of")
        self.load_state_dict({"epoch": 0, "batch": 0})
        if (fewest := min(map(len, self.batches))) < part[1]:
            raise UserError(
                f"batches of {fewest} examples (batch_size={batch_size}) are too small for {part[1]} processes; {fewest} would do"
            )

    def state_dict(self) -> dict[str, int]:
        """The place in the epoch: all it takes to go on with the very next batch."""
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raises ValueError for a place that an epoch of these examples does not have."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.batches = self._shuffled()
        if not 0 <= self.batch <= len(self.batches):
            raise ValueError(f"an epoch has {len(self.batches)} batches, not {self.batch}")

    def __next__(self) -> Examples:
        if self.batch == len(self.batches):
            self.load_state_dict({"epoch": self.epoch + 1, "batch": 0})
        self.batch += 1
        chance = np.random.default_rng((self.seed, self.epoch, self.batch))
        batch = self.make(self.batches[self.batch - 1], chance)
        rank, size = self.part
        return batch if size == 1 else batch.part_of(rank, size)

    def once(self, limit: int | None = None) -> Iterator[Examples]:
        """The whole split, for evaluation. With `limit`, only about so many examples, evenly spread."""
        order = np.argsort(self.lengths, kind="stable")
        if limit is not None and limit < len(order):
            order = order[np.linspace(0, len(order) - 1, limit).round().astype(int)]
        for first in range(0, len(order), self.batch_size):
            yield self.make(order[first : first + self.batch_size], None)

    def _shuffled(self) -> list[np.ndarray]:
        """The examples of each batch of this epoch: shuffled, sorted by length a pool at a time, cut, and shuffled again."""
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(len(self.lengths))
        n_batches = -(-len(order) // self.batch_size)
        cuts = [len(order) * i // n_batches for i in range(n_batches + 1)]  # shared out evenly: no step rests on a few left-over ones
        for first in range(0, n_batches, POOL):
            pool = slice(cuts[first], cuts[min(first + POOL, n_batches)])
            order[pool] = order[pool][np.argsort(self.lengths[order[pool]], kind="stable")]
        batches = [order[a:b] for a, b in itertools.pairwise(cuts)]
        return [batches[i] for i in rng.permutation(n_batches)]


# ------------------------------------------------------------------------------------------------------------------------
# What the examples are made of: the lengths and the `make` of an ExampleLoader


def documents_of(tokens: np.ndarray, boundary_id: int) -> np.ndarray:
    """$ada$eve$ -> (N, longest) int64, a document and the boundary at its end a row, -1 behind it."""
    tokens = np.asarray(tokens, dtype=np.int64)
    ends = np.flatnonzero(tokens == boundary_id)
    lengths = np.diff(ends)
    table = np.full((len(lengths), lengths.max(initial=0)), -1)
    row, column = np.repeat(np.arange(len(lengths)), lengths), np.arange(lengths.sum()) - np.repeat(ends[:-1] - ends[0], lengths)
    table[row, column] = tokens[ends[0] + 1 :]
    return table


def lengths_of(table: np.ndarray) -> np.ndarray:
    """(N, longest) -> (N,) what is no padding."""
    return (table >= 0).sum(1)


def pairs(tokens: np.ndarray, boundary_id: int, noise: float = 0.0, vocab_size: int = 0) -> tuple[np.ndarray, Make]:
    """Of $source$target$source$target$: source (B, S), target_in (B, T) and targets (B, T), each source and target with the boundary
    at its end, target_in with it at the beginning. noise: the share of target_in that is replaced by chance in training."""
    documents = documents_of(tokens, boundary_id)
    sources, targets = documents[::2], documents[1::2]
    source_lengths, target_lengths = lengths_of(sources), lengths_of(targets)

    def make(numbers: np.ndarray, chance: np.random.Generator | None) -> Examples:
        source = sources[numbers, : source_lengths[numbers].max()]
        target = targets[numbers, : target_lengths[numbers].max()]
        target_in = np.concatenate((np.full((len(target), 1), boundary_id), target[:, :-1]), axis=1)
        target_in[target < 0] = -1
        if noise and chance:
            noisy = (chance.random(target.shape) < noise) & (target_in >= 0)
            noisy[:, 0] = False
            target_in[noisy] = chance.integers(vocab_size, size=noisy.sum())
        return Examples.of(source, target_in, target)

    return source_lengths * (target_lengths.max(initial=0) + 1) + target_lengths, make


def masked(tokens: np.ndarray, boundary_id: int, vocab_size: int, share: float, seed: int) -> tuple[np.ndarray, Make]:
    """Of $ada$eve$: each document (B, T), some of its tokens hidden, and these as targets (B, T). Of the share to be guessed, at least
    one in a document, eight in ten become [MASK], id vocab_size, one another token, and one stays (Devlin et al. 2019, 3.1).
    In evaluation a document always has the same ones hidden, by `seed`."""
    documents = documents_of(tokens, boundary_id)
    lengths = lengths_of(documents)
    fixed = np.random.default_rng(seed).random((*documents.shape, 3))

    def make(numbers: np.ndarray, chance: np.random.Generator | None) -> Examples:
        idx = documents[numbers, : lengths[numbers].max()]
        draws = chance.random((*idx.shape, 3)) if chance else fixed[numbers, : idx.shape[1]]
        order = np.where(idx >= 0, draws[..., 0], 2.0)
        hidden = (order < share) | (order == order.min(1, keepdims=True))
        targets = np.where(hidden, idx, -1)
        idx = np.where(hidden & (draws[..., 1] < 0.8), vocab_size, idx)
        idx = np.where(hidden & (draws[..., 1] >= 0.9), (draws[..., 2] * vocab_size).astype(np.int64), idx)
        return Examples.of(idx, targets)

    return lengths, make


def classed(tokens: np.ndarray, boundary_id: int, counts: np.ndarray, noise: float = 0.0, vocab_size: int = 0) -> tuple[np.ndarray, Make]:
    """Of $ada$eve$ and how often each belongs to each class (N, n_classes): the documents (B, T) and the shares (B, n_classes).
    noise: the share of the characters that are hidden in training, behind [MASK], id vocab_size."""
    documents = documents_of(tokens, boundary_id)
    lengths = lengths_of(documents)
    shares = (counts / counts.sum(1, keepdims=True)).astype(np.float32)

    def make(numbers: np.ndarray, chance: np.random.Generator | None) -> Examples:
        idx = documents[numbers, : lengths[numbers].max()]  # a copy
        if noise and chance:
            idx[(chance.random(idx.shape) < noise) & (idx >= 0) & (idx != boundary_id)] = vocab_size
        return Examples.of(idx, shares[numbers])

    return lengths, make


def pictures(images: np.ndarray, classes: np.ndarray, n_classes: int, warp: float = 0.0) -> tuple[np.ndarray, Make]:
    """Of images (N, channels, H, W), 0 to 255, and the class of each (N,): floats from -1 to 1, and the shares (B, n_classes), all
    of one class. warp: how far they are moved, turned and stretched in training, see `warped`."""
    shares = np.eye(n_classes, dtype=np.float32)

    def make(numbers: np.ndarray, chance: np.random.Generator | None) -> Examples:
        pixels = images[numbers].astype(np.float32) / 127.5 - 1
        if warp and chance:
            pixels = warped(pixels, chance.uniform(-warp, warp, size=(len(pixels), 2, 3)))
        return Examples.of(pixels, shares[classes[numbers]])

    return np.zeros(len(images), dtype=np.int64), make


def warped(pixels: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Images (B, channels, H, W), each read from other places: (x, y) + by (x, y, 1), by (B, 2, 3), with x and y from -1 to 1 in the
    picture. What comes in from outside is as the edge."""
    images = torch.from_numpy(pixels)
    places = F.affine_grid(torch.from_numpy(by + np.eye(2, 3)).float(), list(images.shape), align_corners=False)  # (B, H, W, 2)
    return F.grid_sample(images, places, padding_mode="border", align_corners=False).numpy()
