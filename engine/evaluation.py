"""The loss over a whole split, and what it is per byte of text."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import torch

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
            _, loss = model(batch.idx, batch.targets, batch.positions)
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
    token_bytes = torch.from_numpy(tokenizer.token_bytes())
    tokens, n_bytes, unknown = 0, 0, 0
    for batch in batches:
        targets = batch.targets[batch.targets != -1]
        tokens += len(targets)
        n_bytes += int(token_bytes[targets].sum())
        unknown += 0 if tokenizer.unknown_id is None else int((targets == tokenizer.unknown_id).sum())
    return Amount(tokens, n_bytes, unknown)
