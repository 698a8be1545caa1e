"""What one path of attention makes of a whole model, and how far two of them are apart."""

from typing import NamedTuple

import torch
from torch import Tensor

from data.batches import Batch
from engine.generation import generate
from engine.sampling import Choice
from model import GPT


class InModel(NamedTuple):
    """What one path makes of a model."""

    loss: float  # of a batch
    logits: Tensor  # (B, T, V)
    gradients: list[Tensor]  # of all parameters
    texts: list[list[int]]  # greedy
    losses: list[float]  # of each step of training
    seconds: list[float]  # of each step


class Gaps(NamedTuple):
    """The largest differences of two."""

    logits: float
    gradients: float
    identical_texts: int
    losses: list[float]  # of each step


def by_path(model: GPT, path: str, batch: Batch, opening: list[int], losses: list[float], seconds: list[float]) -> InModel:
    """The same weights by one path, without dropout; how it trained is told."""
    model.config.attention = path
    model.eval()
    logits, loss = model(batch.idx, batch.targets, batch.positions)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return InModel(loss.item(), logits.detach(), list(gradients), greedy_texts(model, opening), losses, seconds)


def greedy_texts(model: GPT, opening: list[int], count: int = 20) -> list[list[int]]:
    """The likeliest continuation of the opening and one more token, for up to `count` tokens spread over the vocabulary."""
    tokens = torch.linspace(0, model.config.vocab_size - 1, min(count, model.config.vocab_size)).long().tolist()
    prompts = [[*opening, token] for token in tokens]
    texts: list[list[int]] = [[] for _ in prompts]
    for token in generate(model, prompts, min(64, max(1, model.config.block_size - len(prompts[0]))), Choice(temperature=0)):
        texts[token.row].append(token.id)
    return texts


def gaps(one: InModel, other: InModel) -> Gaps:
    """How far apart they are."""
    return Gaps(
        largest([one.logits - other.logits]),
        largest([a - b for a, b in zip(one.gradients, other.gradients, strict=True)]),
        sum(a == b for a, b in zip(one.texts, other.texts, strict=True)),
        [abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)],
    )


def largest(tensors: list[Tensor]) -> float:
    """The largest number in them, whatever its sign."""
    return max(float(tensor.abs().max()) for tensor in tensors)
