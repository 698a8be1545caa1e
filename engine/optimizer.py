"""The optimizers, and the learning rate of each step."""

import math

import torch
from torch import Tensor

from config.settings import Settings
from engine.parallel import like, whole


def make_optimizers(model: torch.nn.Module, settings: Settings, dtype: torch.dtype = torch.float32) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov & Hutter 2019) for everything, or for what Muon leaves. Matrices are pulled towards zero; biases
    and gains are not. Muon takes the matrices inside the blocks, and both share one learning rate.

    dtype: in which Muon may multiply.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inner = {name: p for name, p in parameters.items() if settings.optimizer == "muon" and ".h." in name and p.dim() == 2}
    outer = [p for name, p in parameters.items() if name not in inner]
    groups = [
        {"params": [p for p in outer if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in outer if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True)]
    if inner:
        optimizers.append(Muon(inner, settings.learning_rate, settings.weight_decay, dtype))
    return optimizers


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): momentum, then a step made orthogonal, so that no direction of a matrix is left behind.
    It is scaled to step as far as AdamW would (Liu et al. 2025).

    The same function as `torch.optim.Muon`, but matrices of one shape, lying or standing, are stacked and multiplied together,
    and the queries, keys and values that `c_attn` holds are three matrices, each made orthogonal by itself.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        lr: float,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
        momentum: float = 0.95,
    ) -> None:
        """parameters: matrices by name. dtype: in which to multiply."""
        self.dtype = dtype
        groups: dict[tuple[int, int], dict[str, list]] = {}
        for name, p in parameters.items():
            parts = 3 if "c_attn" in name else 1
            shape = sorted((p.size(0) // parts, p.size(1)))
            group = groups.setdefault(tuple(shape), {"params": [], "parts": []})
            group["params"].append(p)
            group["parts"].append(parts)
        super().__init__(list(groups.values()), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            params = [(p, parts) for p, parts in zip(group["params"], group["parts"], strict=True) if p.grad is not None]
            if not params:
                continue
            stack = []
            for p, parts in params:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                average = self.state[p]["momentum"].lerp_(p.grad, 1 - momentum)
                update = whole(p.grad.lerp(average, momentum))  # Nesterov's: as if one step further
                stack.append(lying(update.view(parts, -1, p.size(1))))
            updates = orthogonal(torch.cat(stack), self.dtype)  # (N, R, C)
            scale = 0.2 * math.sqrt(updates.size(2))  # the length of AdamW's usual step
            for (p, _), update in zip(params, updates.split([parts for _, parts in params]), strict=True):
                update = update if update.size(2) == p.size(1) else update.mT
                p.mul_(1 - lr * group["weight_decay"]).add_(like(update.reshape(p.shape).to(p.dtype), p), alpha=-lr * scale)


def lying(matrices: Tensor) -> Tensor:
    """(N, R, C) with R <= C: transposed if they stand."""
    return matrices if matrices.size(1) <= matrices.size(2) else matrices.mT


def orthogonal(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N, R, C), R <= C -> about U V^T of each matrix U S V^T: all singular values brought near 1, by five steps of a
    Newton-Schulz iteration whose coefficients rise steeply at 0 and settle between 0.7 and 1.2 (Jordan et al. 2024)."""
    x = matrices.to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


@torch.no_grad()
def update_average(average: torch.nn.Module, model: torch.nn.Module, decay: float, step: int) -> None:
    """An exponential moving average of the weights after each step, numbered from 0; over the first steps that of fewer."""
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def learning_rate_at(step: int, settings: Settings) -> float:
    """The rate of the step numbered `step` from 0: up over warmup_steps, then down to min_learning_rate at max_steps (of
    inverse_sqrt: for ever).

    The first step already learns, and the one that would be at the very end, max_steps, is not taken.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    start = settings.warmup_steps
    if settings.schedule == "constant":  # then linear, over the last cooldown_steps
        start = max(start, settings.max_steps - settings.cooldown_steps)
    if settings.schedule == "inverse_sqrt":  # Vaswani et al. 2017, equation 3, with learning_rate in place of what it is at its top
        return settings.learning_rate * math.sqrt(max(1, start) / (step + 1))
    done = min(1.0, max(0.0, (step - start) / max(1, settings.max_steps - start)))  # 0 to 1
    fall = (1 - math.cos(math.pi * done)) / 2 if settings.schedule == "cosine" else done
    return settings.learning_rate + (settings.min_learning_rate - settings.learning_rate) * fall


def set_learning_rate(optimizers: list[torch.optim.Optimizer], learning_rate: float) -> None:
    """From the next step on."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
