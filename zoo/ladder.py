"""The ladder from chance to the Transformer: what a model of names can know, one step at a time (docs/lesson.md walks it).

    Uniform       nothing: every character is as likely as any other
    Bigram        the last character (Shannon 1948)
    SequenceMLP   the characters before, each an embedding, laid side by side (Bengio et al. 2003)
    AttentionMLP  the characters before, mixed by one head of attention, which knows no order
    Transformer   the original block, six times (Vaswani et al. 2017): post-norm, learned positions

Each has the interface of `GPT`, so that train.py, sample.py and evaluate.py take it like one: `forward(idx, targets, positions)`,
`next_logits`, `generate`. All a model here has to say is `logits(idx, positions)`. Letters in the shape comments as in model.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPT, KVCache, document_mask, fused_attention, manual_attention, merge_heads, split_heads
from zoo.block import Block

Kind = Literal["uniform", "bigram", "mlp", "attention", "transformer", "ngram"]
KINDS = get_args(Kind)


@dataclass
class LadderConfig:
    """The shape of a model. Raises ValueError for one that cannot work."""

    kind: Kind
    block_size: int = 16  # longest context, in tokens
    vocab_size: int = 27
    n_embd: int = 3
    n_hidden: int = 128
    n_head: int = 1
    n_layer: int = 1
    smoothing: float | None = 1.0  # bigram: added to every count; None: the table is learned instead
    order: int = 5  # ngram: characters, the one to come included
    attention: Literal["fused", "manual"] = "fused"  # two ways to the same numbers, as in GPTConfig
    # what the blocks of `transformer` are, in ShapeConfig's words: the original's
    dropout, attention_dropout, bias, qk_norm = 0.0, None, True, False
    norm, norm_place, activation, position = "layernorm", "post", "relu", "learned"
    tied_head = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not one of {', '.join(KINDS)}")
        for name in ("block_size", "vocab_size", "n_embd", "n_hidden", "n_head", "n_layer", "order"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.kind == "transformer" and self.n_embd % self.n_head:
            fit = max(self.n_head, self.n_embd // self.n_head * self.n_head)
            raise ValueError(f"n_embd={self.n_embd} does not divide by n_head={self.n_head}; n_embd={fit} would fit")
        if self.attention not in ("fused", "manual"):
            raise ValueError(f"attention={self.attention!r} is not one of fused, manual")
        if self.kind == "ngram" and self.vocab_size**self.order >= 2**63:
            fit = max(n for n in range(self.order) if self.vocab_size**n < 2**63)
            raise ValueError(f"order={self.order} is too long for vocab_size={self.vocab_size}: a code has 63 bits; order={fit} would fit")
        if self.smoothing is not None and not 0 <= self.smoothing < math.inf:
            raise ValueError(f"smoothing={self.smoothing} must be 0 or above, or None to learn the table")


class LadderModel(nn.Module):
    """What all of them share: the interface of GPT. Each adds

    logits(idx, positions)    idx (B, T) and the place of each token in its document (B, T) -> (B, T, V), of the token after each
    count(tokens)             if it learns by counting: from documents one after the other, $ada$eve$, (N,) int64
    """

    counts = False  # whether it learns by counting: one call of `count`, and no steps

    def __init__(self, config: LadderConfig) -> None:
        super().__init__()
        self.config = replace(config)  # a copy, as in GPT

    def forward(self, idx: Tensor, targets: Tensor | None = None, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As GPT's: with targets (B, T), logits (B, T, V) and the mean cross-entropy over those that are not -1; without, the
        logits of the last position only, (B, 1, V), and None."""
        self._check_ids("token", idx, 0)
        if not 1 <= idx.size(1) <= self.config.block_size:
            raise ValueError(f"{idx.size(1)} tokens do not fit: block_size={self.config.block_size} is the longest context, 1 the shortest")
        if positions is None:
            positions = torch.arange(idx.size(1), device=idx.device).expand_as(idx)
        logits = self.logits(idx, positions)
        if targets is None:
            return logits[:, -1:], None
        self._check_ids("target", targets, -1)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def caches(self, rows: int, slots: int) -> list[KVCache]:
        """What generation keeps between tokens: here it is the tokens themselves, which cost next to nothing to read again."""
        device = next(iter(self.state_dict().values())).device
        return [KVCache(torch.zeros(rows, 1, slots, 1, device=device), torch.zeros(rows, 1, slots, 0, device=device))]

    def next_logits(self, idx: Tensor, caches: list[KVCache] | None = None, start: int | Tensor = 0) -> Tensor:
        """The logits after the last token: (B, T) -> (B, V). Arguments as GPT's."""
        rows, last = torch.arange(len(idx), device=idx.device), torch.full((len(idx),), -1, device=idx.device)
        if isinstance(start, Tensor):  # (B,): each row has its own
            caches[0].k[rows, 0, start, 0] = idx[:, 0].float()
            idx, last = caches[0].k[:, 0, :, 0].long(), start
        elif caches:
            caches[0].k[:, 0, start : start + idx.size(1), 0] = idx.float()
            idx = caches[0].k[:, 0, : start + idx.size(1), 0].long()
        return self.logits(idx, torch.arange(idx.size(1), device=idx.device).expand_as(idx))[rows, last]

    def flops_per_token(self, length: int | None = None) -> int:
        """Of a training step, as GPT counts them: 6 for each weight of the linear layers."""
        return max(1, 6 * sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear)))

    def num_parameters(self) -> int:
        """How many numbers training sets, or counting."""
        return sum(p.numel() for p in self.parameters())

    generate = GPT.generate
    _check_ids = GPT._check_ids


class Uniform(LadderModel):
    """Every character is as likely as any other: a loss of ln V, whatever the names."""

    counts = True

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        self.register_buffer("same", torch.zeros(config.vocab_size))

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        return self.same.expand(*idx.shape, -1)  # (B, T, V)

    def count(self, tokens: Tensor) -> None:
        """There is nothing to learn."""


class Bigram(LadderModel):
    """P(next | last), a table: counted, or learned by gradient descent, which comes to the same."""

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        self.counts = config.smoothing is not None
        self.table = nn.Parameter(torch.zeros(config.vocab_size, config.vocab_size), requires_grad=config.smoothing is None)

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        return self.table[idx]  # (B, T, V)

    @torch.no_grad()
    def count(self, tokens: Tensor) -> None:
        """The table: log of (count + k) / (sum of its row + k V)."""
        V = self.config.vocab_size
        counts = torch.bincount(tokens[:-1] * V + tokens[1:], minlength=V * V).view(V, V).double() + self.config.smoothing
        chances = (counts / counts.sum(1, keepdim=True)).nan_to_num(nan=1 / V)  # a row never seen, and k = 0: as chance has it
        self.table.copy_(chances.clamp(min=1e-38).log())  # a logarithm that is a number


class SequenceMLP(LadderModel):
    """The document so far, each character an embedding, laid side by side as the input of one hidden layer. Weights belong to places:
    what is learned of an a as the third character says nothing of one as the fourth."""

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.hidden = nn.Linear(config.block_size * config.n_embd, config.n_hidden)
        self.head = nn.Linear(config.n_hidden, config.vocab_size)

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        T, W = idx.size(1), self.config.block_size
        x = self.embedding(idx)  # (B, T, C)
        place = torch.arange(W, device=idx.device)
        i = torch.arange(T, device=idx.device)[:, None] - positions[..., None] + place  # (B, T, W) index of the character at each place
        seen = place <= positions[..., None]  # (B, T, W) what has come already, and is not empty
        rows = torch.arange(len(idx), device=idx.device)[:, None, None]
        prefix = x[rows, i.clamp(max=T - 1)] * seen[..., None]  # (B, T, W, C)
        return self.head(self.hidden(prefix.flatten(2)).tanh())


class AttentionMLP(LadderModel):
    """One causal head of attention over the embeddings, then the hidden layer. No positions: to it, a prefix is a bag of characters,
    of which it knows the last one by its query alone."""

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.hidden = nn.Linear(config.n_embd, config.n_hidden)
        self.head = nn.Linear(config.n_hidden, config.vocab_size)

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        y = attend(self.qkv(self.embedding(idx)), 1, positions, self.config.attention)  # (B, T, C)
        return self.head(self.hidden(y).relu())


class Transformer(LadderModel):
    """Embeddings of characters and places, the original blocks, an output layer. No dropout, nothing tied."""

    def __init__(self, config: LadderConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.places = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def logits(self, idx: Tensor, positions: Tensor) -> Tensor:
        x = self.tokens(idx) + self.places(positions)  # (B, T, C)
        mask = document_mask(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def attend(qkv: Tensor, n_head: int, positions: Tensor, path: str) -> Tensor:
    """Causal attention within each document: (B, T, 3C) -> (B, T, C), by model.py's own functions."""
    q, k, v = split_heads(qkv, 3 * n_head).chunk(3, dim=1)  # (B, H, T, D) each
    mask = document_mask(positions)
    y = manual_attention(q, k, v, mask)[0] if path == "manual" else fused_attention(q, k, v, mask)
    return merge_heads(y)
