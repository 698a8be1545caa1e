"""The optimizers, and the learning rate of each step."""

import math

import torch

from config.settings import Settings


def make_optimizers(model: torch.nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov & Hutter 2019) for everything, or for what Muon leaves. Matrices are pulled towards zero; biases
    and gains are not.

    Muon (Jordan et al. 2024) makes every step of a matrix orthogonal, so that no direction is left behind. It takes the
    matrices inside the blocks, scaled to step as far as AdamW would (Liu et al. 2025): both share one learning rate.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inner = [p for name, p in parameters.items() if ".h." in name and p.dim() == 2] if settings.optimizer == "muon" else []
    outer = [p for p in parameters.values() if all(p is not q for q in inner)]
    groups = [
        {"params": [p for p in outer if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in outer if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True)]
    if inner:
        options = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
        optimizers.append(torch.optim.Muon(inner, **options))
    return optimizers


def learning_rate_at(step: int, settings: Settings) -> float:
    """The rate of the step numbered `step` from 0: up over warmup_steps, then down to min_learning_rate at max_steps.

    The first step already learns, and the one that would be at the very end, max_steps, is not taken.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.max_steps - settings.warmup_steps)  # 0 to 1
    fall = {"constant": 0.0, "linear": done, "cosine": (1 - math.cos(math.pi * done)) / 2}[settings.schedule]
    return settings.learning_rate + (settings.min_learning_rate - settings.learning_rate) * fall


def set_learning_rate(optimizers: list[torch.optim.Optimizer], learning_rate: float) -> None:
    """From the next step on."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
