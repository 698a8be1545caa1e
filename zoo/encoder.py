"""The encoder in BERT's shape: it sees both ways, and guesses what is masked, or tells a class (Devlin et al. 2019).

    what changes   no causal mask; a [CLS] before the text, in which the model gathers what it says of the whole; a head of classes
    what does not  attention, MLP, norms, the sum they are added to

A row is padded with -1, on either side, and what is padded changes nothing. The token that hides another, [MASK], is id vocab_size.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT
from zoo.block import ShapeConfig, Stack, check_ids, padding_mask, places


@dataclass
class EncoderConfig(ShapeConfig):
    """The shape of a model. Raises ValueError for one that cannot work. block_size counts the tokens, without [CLS]."""

    kind: Literal["encoder"] = "encoder"
    position: Literal["sinusoidal", "learned", "rotary"] = "learned"
    activation: Literal["relu", "gelu", "relu2"] = "gelu"
    n_classes: int = 0  # 0: guess masked tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_classes < 0:
            raise ValueError(f"n_classes={self.n_classes} must be at least 1, or 0 to guess masked tokens")


class Encoder(nn.Module):
    """[CLS] and tokens in, blocks, and one of two heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config = replace(config)  # a copy, as in GPT
        self.wte = nn.Embedding(config.vocab_size + 1, config.n_embd)  # the last one is [MASK]
        self.cls = nn.Parameter(torch.empty(1, 1, config.n_embd))
        self.encoder = Stack(config, longest=config.block_size + 1)
        if config.n_classes:
            self.head = nn.Linear(config.n_embd, config.n_classes)
        self.init_weights()

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Guess what the tokens (B, T) are, or of which class the whole is; int64, -1 being padding.

        Without classes: logits (B, T, V) and, with targets (B, T), the mean cross-entropy over those that are not -1. With
        classes: logits (B, n_classes) and, with the share of each class (B, n_classes), the mean cross-entropy. In nats; with
        label smoothing while training. Raises ValueError for rows beyond block_size and ids outside the vocabulary.
        """
        x = self.hidden(idx)  # (B, 1 + T, C)
        logits = self.head(x[:, 0]) if self.config.n_classes else F.linear(x[:, 1:], self.wte.weight[:-1])  # (B, n_classes) or (B, T, V)
        if targets is None:
            return logits, None
        smoothing = self.config.label_smoothing if self.training else 0.0
        if self.config.n_classes:
            return logits, F.cross_entropy(logits, targets, label_smoothing=smoothing)
        check_ids("target", targets, self.config.vocab_size)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, label_smoothing=smoothing)

    def hidden(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, 1 + T, C): everything but the heads. [CLS] comes first."""
        check_ids("token", idx, self.config.vocab_size + 1)
        with_cls = F.pad(idx, (1, 0))  # (B, 1 + T): 0 stands for [CLS], as something that is no padding
        x = torch.cat((self.cls.expand(len(idx), -1, -1), self.wte(idx.clamp(min=0))), dim=1)
        return self.encoder(x, places(with_cls), padding_mask(with_cls))

    def num_parameters(self) -> int:
        """How many numbers training sets."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, length: int | None = None) -> int:
        """Of a training step, counted as GPT does, at rows of `length` (block_size) tokens."""
        length = self.config.block_size if length is None else length
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return 6 * weights + 12 * self.config.n_layer * self.config.n_embd * length

    init_weights = GPT.init_weights
