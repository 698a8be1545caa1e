"""The loss over a whole split, how sure it is, and what it is per byte of text."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from data.batches import Batch
from data.tokenizers import Tokenizer
from engine.device import autocast
from engine.parallel import World


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, batches: Iterable[Batch], device: torch.device, dtype: torch.dtype = torch.float32, world: World | None = None
) -> float:
    """Mean negative log-likelihood in nats per predicted token, each token counted once, dropout off.

    The processes of `world` share the batches out among them and know the same result.
    """
    world = world or World()
    was_training = model.training
    model.eval()
    total, count = torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), dtype=torch.int64)
    for batch in islice(batches, world.rank, None, world.size):
        batch = batch.to(device)
        with autocast(device, dtype):
            _, loss = model(*batch.inputs)
        total += loss.double() * batch.n_targets  # stays on the device: no wait between batches
        count += batch.n_targets
    world.add_up(total, count)
    model.train(was_training)
    return float(total) / int(count)


class Amount(NamedTuple):
    """How much text some batches ask for."""

    tokens: int
    bytes: int  # in UTF-8
    unknown: int  # tokens that stand for text their tokenizer has no token for

    def bits_per_byte(self, loss: float) -> float | None:
        """A loss in nats per token as bits per byte of the text. None where tokens are unknown: their text is not told."""
        return None if self.unknown or not self.bytes else loss * self.tokens / math.log(2) / self.bytes


def amount(batches: Iterable[Batch], tokenizer: Tokenizer) -> Amount:
    """The targets of these batches, counted."""
    return amount_of((batch.targets[batch.targets != -1] for batch in batches), tokenizer)


def amount_of(pieces: Iterable[torch.Tensor], tokenizer: Tokenizer) -> Amount:
    """The tokens in these pieces of text, (N,) int64 each, counted."""
    token_bytes = torch.from_numpy(tokenizer.token_bytes())
    tokens, n_bytes, unknown = 0, 0, 0
    for ids in pieces:
        tokens += len(ids)
        n_bytes += int(token_bytes[ids].sum())
        unknown += 0 if tokenizer.unknown_id is None else int((ids == tokenizer.unknown_id).sum())
    return Amount(tokens, n_bytes, unknown)


class Score(NamedTuple):
    """How well a model predicts a text."""

    loss: float  # nats per predicted token
    standard_error: float | None  # of the loss, by its spread over the pieces; None: there is only one
    pieces: int
    unit: str  # what the pieces are: documents, or windows in a text that is one document
    documents: int
    amount: Amount


def score(
    model: torch.nn.Module,
    batches: Iterable[Batch],
    tokenizer: Tokenizer,
    window: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Score:
    """The loss over all batches, which hold whole documents one after the other, and its standard error.

    window: tokens of the pieces that a text of one document is cut into, as documents it has none to compare.
    """
    losses, targets = token_losses(model, batches, device, dtype)
    ends = documents = document_ends(targets, tokenizer.boundary_id)
    if len(documents) == 1:
        ends = np.append(np.arange(window, len(targets), window), len(targets))
    error = standard_error(losses, ends)
    unit = "windows" if len(ends) > len(documents) else "documents"
    return Score(losses.mean().item(), error, len(ends), unit, len(documents), amount_of([torch.from_numpy(targets)], tokenizer))


@torch.no_grad()
def token_losses(
    model: torch.nn.Module, batches: Iterable[Batch], device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[np.ndarray, np.ndarray]:
    """The negative log-likelihood of every target, (N,) float64 in nats, and the targets, (N,) int64, in the order of the batches,
    dropout off."""
    was_training = model.training
    model.eval()
    losses, targets = [], []
    for batch in batches:
        told = batch.targets != -1  # (B, T)
        targets.append(batch.targets[told])
        batch = batch.to(device)
        with autocast(device, dtype):
            logits, _ = model(batch.idx, batch.targets, batch.positions)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=-1, reduction="none")  # (B * T,)
        losses.append(loss.cpu()[told.flatten()].double())
    model.train(was_training)
    return torch.cat(losses).numpy(), torch.cat(targets).numpy()


def document_ends(targets: np.ndarray, boundary_id: int) -> np.ndarray:
    """Where each document ends, the boundary being its last target. What follows the last boundary is a document too."""
    ends = np.flatnonzero(targets == boundary_id) + 1
    return ends if len(ends) and ends[-1] == len(targets) else np.append(ends, len(targets))


def standard_error(losses: np.ndarray, ends: np.ndarray) -> float | None:
    """The standard error of losses.mean(), the losses being drawn in pieces that end at `ends`. None for a single piece.

    Tokens of a piece depend on each other, so the pieces are what is drawn; as they differ in length, the mean is a ratio of
    two sums over D pieces: sqrt(D / (D - 1) * sum((nll_d - loss * n_d)^2)) / sum(n_d) (Cochran 1977, "Sampling Techniques", 6.3).
    """
    D = len(ends)
    if D == 1:
        return None
    starts = np.append(0, ends[:-1])
    residuals = np.add.reduceat(losses - losses.mean(), starts)  # (D,) nll_d - loss * n_d
    return math.sqrt(D / (D - 1) * np.square(residuals).sum()) / len(losses)
