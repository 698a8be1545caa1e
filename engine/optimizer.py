"""The optimizer, and the learning rate of each step."""

import math

import torch

from config.settings import Settings


def make_optimizer(model: torch.nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019). Matrices are pulled towards zero; biases and gains are not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True)


def learning_rate_at(step: int, settings: Settings) -> float:
    """The rate of the step numbered `step` from 0: up over warmup_steps, then down to min_learning_rate at max_steps.

    The first step already learns, and the one that would be at the very end, max_steps, is not taken.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.max_steps - settings.warmup_steps)  # 0 to 1
    fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}[settings.schedule]
    return settings.learning_rate + (settings.min_learning_rate - settings.learning_rate) * fall


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """From the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
