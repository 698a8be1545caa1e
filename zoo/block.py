"""The block in its other shapes: looking both ways, at another sequence, with the norm after each branch as in the original.

All of it is model.py's: the projections and the two paths of its attention, its MLP, its norms. What is added here:

    SelfAttention    of a sequence to itself, as far as a mask lets it: forwards and backwards, unless the mask is causal
    CrossAttention   of a sequence to another one
    Block            self-attention, (cross-attention,) MLP; Pre-Norm or Post-Norm
    Stack            positions, then blocks: the encoder, or with cross-attention the decoder, of any model

Letters in the shape comments as in model.py. A mask is True where a query may attend; padding has the id -1.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import MLP, CausalSelfAttention, Dropout, GPTConfig, KVCache, make_norm, rms_norm, rotary_angles, split_heads


@dataclass
class ShapeConfig(GPTConfig):
    """The shape of a stack of blocks. The defaults are those of "Attention Is All You Need" (Vaswani et al. 2017)."""

    block_size: int = 64
    vocab_size: int = 27
    n_layer: int = 6
    n_head: int = 8
    n_embd: int = 512
    position: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    activation: Literal["relu", "gelu", "relu2"] = "relu"
    init: Literal["gpt2", "fan_in"] = "fan_in"
    norm_place: Literal["post", "pre"] = "post"  # after each sum, or before each branch
    label_smoothing: float = 0.0  # the share of each target's probability that goes to all tokens or classes alike, in training

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position == "sinusoidal" and self.n_embd % 2:
            step = math.lcm(2, self.n_head)
            fit = max(step, self.n_embd // step * step)
            raise ValueError(f"n_embd={self.n_embd} is odd, and sinusoidal positions are pairs of numbers; n_embd={fit} would fit")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")


def padding_mask(idx: Tensor) -> Tensor:
    """idx (B, S), -1 where it is padding -> (B, 1, 1, S) bool, True for the keys that any query may attend to."""
    return (idx >= 0)[:, None, None]


def places(idx: Tensor) -> Tensor:
    """The position of each token among those of its row that are no padding, on whichever side that is: (B, T) -> (B, T)."""
    return ((idx >= 0).cumsum(1) - 1).clamp(min=0)


def sinusoids(positions: Tensor, C: int) -> Tensor:
    """(...) -> (..., C): sin(position / 10000^(2i/C)) in channel 2i, the cosine in channel 2i + 1 (Vaswani et al. 2017, 3.5)."""
    cos, sin = rotary_angles(positions, C)  # (..., C/2) each: the angles are the same
    return torch.stack((sin, cos), dim=-1).flatten(-2)


class SelfAttention(CausalSelfAttention):
    """Multi-head attention in which a token sees all that the mask lets it see; without a mask, everything."""

    causal = False


class CrossAttention(SelfAttention):
    """Multi-head attention to another sequence. Of `c_attn` the first third makes the queries, the rest keys and values."""

    def keys_values(self, memory: Tensor) -> KVCache:
        """What there is to look at in the other sequence, (B, S, C) -> (B, H, S, D) each. Worked out once for all queries."""
        C, bias = self.config.n_embd, self.c_attn.bias
        kv = F.linear(memory, self.c_attn.weight[C:], None if bias is None else bias[C:])  # (B, S, 2C)
        k, v = split_heads(kv, 2 * self.config.n_head).chunk(2, dim=1)
        return KVCache(rms_norm(k) if self.config.qk_norm else k, v)

    def forward(
        self, x: Tensor, memory: KVCache, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, T, C) -> (B, T, C), and with `return_weights` (manual path only) the weights (B, H, T, S) too."""
        C, bias = self.config.n_embd, self.c_attn.bias
        q = split_heads(F.linear(x, self.c_attn.weight[:C], None if bias is None else bias[:C]), self.config.n_head)
        return self.attend(rms_norm(q) if self.config.qk_norm else q, *memory, mask, return_weights)


class Block(nn.Module):
    """Self-attention, cross-attention if there is something else to look at, MLP: each a branch whose outcome is added to x."""

    def __init__(self, config: ShapeConfig, cross: bool = False) -> None:
        super().__init__()
        self.norm_place = config.norm_place
        self.attn, self.ln_1 = SelfAttention(config), make_norm(config)
        if cross:
            self.cross, self.ln_cross = CrossAttention(config), make_norm(config)
        self.mlp, self.ln_2 = MLP(config), make_norm(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        memory: KVCache | None = None,
        memory_mask: Tensor | None = None,
        cache: KVCache | None = None,
        place: slice = slice(0),
    ) -> Tensor:
        """x (B, T, C) -> (B, T, C). mask, rotary, cache, place: of the self-attention; memory, memory_mask: of the other."""
        pre = self.norm_place == "pre"
        if pre:
            x = x + self.attn(self.ln_1(x), rotary, mask, cache, place)
            if memory is not None:
                x = x + self.cross(self.ln_cross(x), memory, memory_mask)
            return x + self.mlp(self.ln_2(x))
        x = self.ln_1(x + self.attn(x, rotary, mask, cache, place))
        if memory is not None:
            x = self.ln_cross(x + self.cross(x, memory, memory_mask))
        return self.ln_2(x + self.mlp(x))


class Stack(nn.Module):
    """Embeddings in, positions added, n_layer blocks; with Pre-Norm a last norm, without which the sum would stay as it is.

    longest: how many tokens it reads at most; None: block_size.
    """

    def __init__(self, config: ShapeConfig, cross: bool = False, longest: int | None = None) -> None:
        super().__init__()
        self.config, self.longest = config, longest or config.block_size  # the config is shared by all layers, as in GPT
        positions = torch.arange(self.longest)
        if config.position == "learned":
            self.wpe = nn.Embedding(self.longest, config.n_embd)
        elif config.position == "sinusoidal":
            self.register_buffer("sinusoids", sinusoids(positions, config.n_embd), persistent=False)  # (longest, C)
        else:
            cos, sin = rotary_angles(positions, config.n_embd // config.n_head)  # (longest, D/2) each
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
        self.drop = Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.h = nn.ModuleList(Block(config, cross) for _ in range(config.n_layer))
        self.ln_f = make_norm(config) if config.norm_place == "pre" else nn.Identity()

    def read(self, memory: Tensor) -> list[KVCache]:
        """The keys and values of another sequence, (B, S, C), for the cross-attention of each block."""
        return [block.cross.keys_values(memory) for block in self.h]

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        memory: list[KVCache] | None = None,
        memory_mask: Tensor | None = None,
        caches: list[KVCache] | None = None,
        place: slice = slice(0),
    ) -> Tensor:
        """x (B, T, C) at positions (T,) or (B, T) -> (B, T, C). `memory` as from `read`; `caches` one a layer, filled at `place`.

        Raises ValueError for more tokens than it can read.
        """
        if positions.size(-1) > self.longest:
            raise ValueError(f"{positions.size(-1)} tokens do not fit: {self.longest} is the longest sequence")
        rotary = None
        if self.config.position == "learned":
            x = x + self.wpe(positions)
        elif self.config.position == "sinusoidal":
            x = x + self.sinusoids[positions].type_as(x)
        else:
            rotary = self.rotary_cos[positions], self.rotary_sin[positions]  # (T, D/2) each
            if positions.dim() == 2:
                rotary = rotary[0][:, None], rotary[1][:, None]  # (B, 1, T, D/2) each
        x = self.drop(x)
        for i, block in enumerate(self.h):
            x = block(x, mask, rotary, memory[i] if memory else None, memory_mask, caches[i] if caches else None, place)
        return self.ln_f(x)


def check_ids(kind: str, ids: Tensor, vocab_size: int) -> None:
    """Raise ValueError for ids (B, T) outside the vocabulary, -1 being padding. On a GPU they go unchecked: looking takes time."""
    if ids.is_cuda or torch.compiler.is_compiling() or not ids.numel():
        return
    low, high = (int(t) for t in ids.aminmax())
    if low < -1 or high >= vocab_size:
        raise ValueError(f"{kind} id {low if low < -1 else high} is outside the vocabulary: 0 to {vocab_size - 1} would fit, -1 is padding")
