"""The loss over a whole split."""

from collections.abc import Iterable

import torch

from data.batches import Batch
from engine.device import autocast


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: Iterable[Batch], device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Mean negative log-likelihood in nats per predicted token, each token counted once, dropout off."""
    was_training = model.training
    model.eval()
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in batches:
        batch = batch.to(device)
        with autocast(device, dtype):
            _, loss = model(batch.idx, batch.targets, batch.positions)
        total += loss.double() * batch.n_targets  # stays on the device: no wait between batches
        count += batch.n_targets
    model.train(was_training)
    return float(total) / count
