"""The Vision Transformer: a picture is cut into patches, and they are read like words (Dosovitskiy et al. 2021).

what changes   a token is a patch of pixels, made an embedding by one linear layer; no mask at all
what does not  attention, MLP, norms, the sum they are added to; the [CLS] and the head of classes are the encoder's
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT
from zoo.block import ShapeConfig, Stack
from zoo.encoder import Encoder


@dataclass
class ViTConfig(ShapeConfig):
    """The shape of a model. Raises ValueError for one that cannot work."""

    kind: Literal["vit"] = "vit"
    position: Literal["sinusoidal", "learned", "rotary"] = "learned"
    activation: Literal["relu", "gelu", "relu2"] = "gelu"
    norm_place: Literal["post", "pre"] = "pre"
    image_size: int = 8  # pixels of a side
    channels: int = 1
    patch_size: int = 2  # pixels of a side
    n_classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image_size", "channels", "patch_size", "n_classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.image_size % self.patch_size:
            fit = max(n for n in range(1, min(self.patch_size, self.image_size) + 1) if self.image_size % n == 0)
            raise ValueError(f"patch_size={self.patch_size} does not divide image_size={self.image_size}; patch_size={fit} would fit")
        self.block_size = (self.image_size // self.patch_size) ** 2  # patches


class ViT(nn.Module):
    """Patches and [CLS] in, blocks, a head of classes."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config = replace(config)  # a copy, as in GPT
        self.patches = nn.Conv2d(config.channels, config.n_embd, config.patch_size, stride=config.patch_size)  # a linear layer for each
        self.cls = nn.Parameter(torch.empty(1, 1, config.n_embd))
        self.encoder = Stack(config, longest=config.block_size + 1)
        self.head = nn.Linear(config.n_embd, config.n_classes)
        self.init_weights()

    def forward(self, images: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Tell what is in the images (B, channels, image_size, image_size), float, -1 black to 1 white.

        Returns logits (B, n_classes) and, with the share of each class (B, n_classes), the mean cross-entropy in nats; with label
        smoothing while training. Raises ValueError for images of another shape.
        """
        logits = self.head(self.hidden(images)[:, 0])  # (B, n_classes)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing if self.training else 0.0)

    def hidden(self, images: Tensor) -> Tensor:
        """(B, channels, image_size, image_size) -> (B, 1 + patches, C): everything but the head. [CLS] comes first, then row by row."""
        c = self.config
        if images.shape[1:] != (c.channels, c.image_size, c.image_size):
            raise ValueError(f"images of shape {tuple(images.shape[1:])} do not fit: {(c.channels, c.image_size, c.image_size)} would")
        x = self.patches(images.to(self.cls.dtype)).flatten(2).transpose(1, 2)  # (B, patches, C)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), dim=1)
        return self.encoder(x, torch.arange(x.size(1), device=x.device))

    init_weights = GPT.init_weights
    num_parameters = Encoder.num_parameters
    flops_per_token = Encoder.flops_per_token
