"""The GPT, read top to bottom: settings, attention (manual | fused), block, model, generation.

The defaults are GPT-2's architecture (Radford et al. 2019), and the parameters carry the names nanoGPT and GPT-2 give them:
`transformer.wte`, `transformer.h.0.attn.c_attn`, ... A handful of fields in `GPTConfig` swap in modern parts, each a small
function or module beside the one it replaces.

Letters in the shape comments: B rows of a batch, T tokens a row, S keys a query can look at (T, or more with a cache),
C = n_embd channels, H = n_head heads, D = C / H channels of a head, V = vocab_size.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass
class GPTConfig:
    """The shape of a model. Raises ValueError for one that cannot work, naming the value and what would fit."""

    block_size: int = 1024  # longest context, in tokens
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0  # on what each branch adds to the residual stream
    attention_dropout: float | None = None  # on the attention weights; None: the same as dropout, as in GPT-2
    embedding_dropout: float | None = None  # on the embeddings; None: the same as dropout, as in GPT-2
    bias: bool = True  # in the linear layers and LayerNorms
    attention: Literal["fused", "manual"] = "fused"  # two ways to the same numbers; may be changed on a live model
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "rotary"] = "learned"
    activation: Literal["gelu", "relu", "relu2"] = "gelu"
    qk_norm: bool = False  # normalise queries and keys, so that no score can blow up (Henry et al. 2020)
    tied_head: bool = True  # the output layer is the token embedding (Press & Wolf 2017)
    init: Literal["gpt2", "fan_in"] = "gpt2"  # the initial weights, see GPT.init_weights
    pad_vocab_to: int = 1  # the tables get a multiple of this many rows (64 suits a GPU); no id beyond vocab_size exists

    def __post_init__(self) -> None:
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "pad_vocab_to"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        step = self.n_head * (2 if self.position == "rotary" else 1)
        if self.n_embd % step:
            pairs = ", an even number of channels a head for rotary positions" if self.position == "rotary" else ""
            fit = max(step, self.n_embd // step * step)
            raise ValueError(f"n_embd={self.n_embd} does not divide by n_head={self.n_head}{pairs}; n_embd={fit} would fit")
        for name in ("dropout", "attention_dropout", "embedding_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        for f in fields(self):
            known = get_args(f.type)
            if isinstance(f.default, str) and getattr(self, f.name) not in known:
                raise ValueError(f"{f.name}={getattr(self, f.name)!r} is not one of {', '.join(known)}")


# ------------------------------------------------------------------------------------------------------------------------
# Attention: softmax(Q K^T / sqrt(D)) V, "Attention Is All You Need" (Vaswani et al. 2017), equation 1


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """(B, T, C) -> (B, H, T, D): head h takes channels hD to (h+1)D of every token."""
    B, T, C = x.shape
    return x.view(B, T, n_head, C // n_head).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, C): the inverse of `split_heads`."""
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


def causal_mask(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """(T, S) bool, True where a query may attend. The last query is the newest token, so with a cache (S > T) the
    triangle is aligned to the bottom right: query i sees keys 0 to S - T + i."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def document_mask(positions: Tensor) -> Tensor:
    """(B, T) positions that restart at 0 with every document of a packed row -> (B, 1, T, T) bool, True where a query
    may attend: from the first token of its own document to itself."""
    i = torch.arange(positions.size(1), device=positions.device)
    start = i - positions  # (B, T) index of the first token of the query's document
    return ((i <= i[:, None]) & (i >= start[:, :, None]))[:, None]


def manual_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention written out. q (B, H, T, D), k and v (B, H, S, D) -> output (B, H, T, D), weights (B, H, T, S).

    `mask` (broadcastable to (B, H, T, S), True = may attend) defaults to the causal one, or, if not `causal`, to none. `dropout` is
    the share of weights set to zero, for training only; the weights returned are those before it. A query that may attend to
    nothing gets nan, where `fused_attention` gives it 0; no mask of this model leaves a query without a key.
    """
    if mask is None and causal:
        mask = causal_mask(q.size(2), k.size(2), q.device)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S), of variance 1 for standard normal q, k
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))  # before the softmax, so that what is left still sums to 1
    weights = scores.softmax(dim=-1)
    return drop(weights, dropout) @ v, weights


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = True) -> Tensor:
    """The same function in one kernel that never stores the T x S weights (Dao et al. 2022). Shapes as in `manual_attention`."""
    T, S = q.size(2), k.size(2)
    causal = causal and mask is None
    is_causal = causal and T == S  # SDPA's own causal mask is aligned to the top left: right only without a cache
    if causal and 1 < T != S:
        mask = causal_mask(T, S, q.device)  # a single query, T = 1, sees every key: no mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal)


def drop(x: Tensor, share: float) -> Tensor:
    """Set this share of x to zero and scale up the rest (Srivastava et al. 2014). For training only.

    On a CPU, drawing the numbers is what takes long: 16 random bits for each are enough, and all are drawn at once.
    """
    if share == 0 or x.device.type != "cpu":
        return F.dropout(x, share)
    count = x.numel()
    bits = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,)).view(torch.int16)[:count].view(x.shape)
    dropped = round(share * 2**16)  # of 2^16 equally likely values
    kept = x * ((bits >= dropped - 2**15) * (2**16 / (2**16 - dropped)))  # in float32
    return kept if torch.is_autocast_enabled("cpu") else kept.type_as(x)  # autocast goes on from float32


class Dropout(nn.Dropout):
    """`drop` as a module: in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn channel pairs (j, j + D/2) of x (B, H, T, D) by the angle of their position, so that q.k depends only on the
    distance of two tokens (RoFormer, Su et al. 2021). cos, sin: (T, D/2), or (B, 1, T, D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


def rotary_angles(positions: Tensor, D: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle by which `rotate` turns each pair of channels at these positions (...): (..., D/2) each."""
    frequency = 10000.0 ** -(torch.arange(0, D, 2, device=positions.device) / D)  # (D/2,) radians a token
    angle = positions[..., None] * frequency
    return angle.cos(), angle.sin()


def rms_norm(x: Tensor) -> Tensor:
    """x / sqrt(mean(x^2)) over the last dimension (Zhang & Sennrich 2019), without a learned gain."""
    return F.rms_norm(x, (x.size(-1),))


class KVCache(NamedTuple):
    """The keys and values of one layer, in two tensors of their final size (B, H, slots, D). A token's slot is its position."""

    k: Tensor
    v: Tensor

    @classmethod
    def zeros(cls, batch_size: int, slots: int, config: GPTConfig, like: Tensor) -> "KVCache":
        """Without tokens yet, of the device and type of `like`. A mask lets an unused slot count 0 times; 0 times nan would be nan."""
        shape = (batch_size, config.n_head, slots, config.n_embd // config.n_head)
        k, v = (torch.zeros(shape, device=like.device, dtype=like.dtype) for _ in range(2))
        return cls(k, v)

    def part(self, rows: int, slots: int) -> "KVCache":
        """The first rows and slots, in the same memory."""
        return KVCache(self.k[:rows, :, :slots], self.v[:rows, :, :slots])

    def put(self, k: Tensor, v: Tensor, place: slice | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Store the keys and values (B, H, T, D) of new tokens; return those to look at (B, H, S, D).

        place: the T slots, the same in all rows, of which the last is the last to look at; or, for T = 1, the row numbers and
        the slot in each (B,), when what is to be seen is up to a mask.
        """
        if isinstance(place, slice):
            self.k[:, :, place], self.v[:, :, place] = k, v
            return self.k[:, :, : place.stop], self.v[:, :, : place.stop]
        rows, slots = place
        self.k[rows, :, slots], self.v[rows, :, slots] = k[:, :, 0], v[:, :, 0]
        return self.k, self.v


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a token sees itself and what came before it."""

    causal = True  # those of the zoo are not

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config  # shared by all layers: setting model.config.attention switches the path of each
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)  # queries, keys and values at once
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        place: slice | tuple[Tensor, Tensor] = slice(0),
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, T, C) -> (B, T, C), and with `return_weights` (manual path only) the weights (B, H, T, S) too.

        With a cache, the tokens are stored there at `place` and see what is there already.
        """
        q, k, v = split_heads(self.c_attn(x), 3 * self.config.n_head).chunk(3, dim=1)  # (B, H, T, D) each
        if self.config.qk_norm:
            q, k = rms_norm(q), rms_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        if cache is not None:
            k, v = cache.put(k, v, place)  # (B, H, S, D)
        return self.attend(q, k, v, mask, return_weights)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
        """By the path that the config names now, and the last layer. q (B, H, T, D), k and v (B, H, S, D) -> as `forward`."""
        dropout = self.config.dropout if self.config.attention_dropout is None else self.config.attention_dropout
        dropout = dropout if self.training else 0.0  # SDPA drops whenever it is above 0, in eval too
        if self.config.attention == "manual":
            y, weights = manual_attention(q, k, v, mask, dropout, self.causal)
        elif self.config.attention != "fused":
            raise ValueError(f"attention={self.config.attention!r} is not one of fused, manual")
        elif return_weights:
            raise ValueError("attention='fused' never builds the weights; attention='manual' returns them")
        else:
            y = fused_attention(q, k, v, mask, dropout, self.causal)
        y = self.dropout(self.c_proj(merge_heads(y)))  # (B, T, C)
        return (y, weights) if return_weights else y


# ------------------------------------------------------------------------------------------------------------------------
# The block and the model


def make_norm(config: GPTConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016), or RMSNorm with a gain, which neither centres nor shifts (Zhang & Sennrich 2019)."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd)
    return nn.LayerNorm(config.n_embd, bias=config.bias)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function of x, in the approximation GPT-2 was trained with (Hendrycks & Gimpel 2016):
    x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u)."""
    if torch.compiler.is_compiling():  # which makes the second form twice as fast as the first
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x))
    return F.gelu(x, approximate="tanh")


class MLP(nn.Module):
    """Two linear layers, four times as wide in between; every token on its own."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)  # (B, T, 4C)
        x = gelu(x) if self.activation == "gelu" else F.relu(x)
        if self.activation == "relu2":
            x = x * x  # ReLU squared: Primer, So et al. 2021
        return self.dropout(self.c_proj(x))  # (B, T, C)


class Block(nn.Module):
    """Pre-Norm: each branch reads a normalised copy and adds what it found to the residual stream x."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        place: slice | tuple[Tensor, Tensor] = slice(0),
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), rotary, mask, cache, place)
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    """Token and position embeddings, n_layer blocks, a last norm and the output layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config = replace(config)  # a copy: changing it later changes this model alone
        rows = math.ceil(config.vocab_size / config.pad_vocab_to) * config.pad_vocab_to
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(rows, config.n_embd),
                "drop": Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout),
                "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                "ln_f": make_norm(config),
            }
        )
        if config.position == "learned":
            self.transformer["wpe"] = nn.Embedding(config.block_size, config.n_embd)
        else:
            cos, sin = rotary_angles(torch.arange(config.block_size), config.n_embd // config.n_head)  # (block_size, D/2) each
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
        self.lm_head = nn.Linear(config.n_embd, rows, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.transformer.wte.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Set every parameter. This is the only place that does. Normal, with these standard deviations:

        | parameter                             | "gpt2"                  | "fan_in"                                      |
        | ------------------------------------- | ----------------------- | --------------------------------------------- |
        | embeddings, lm_head                   | 0.02                    | 0.02                                          |
        | linear layers                         | 0.02                    | 1 / sqrt(inputs): outputs as large as inputs  |
        | c_proj, the last layer of each branch | 0.02 / sqrt(2 n_layer)  | 0: every branch starts by adding nothing      |
        | biases                                | 0                       | 0                                             |
        | gains of the norms                    | all 1                   | all 1                                         |

        GPT-2 divides by sqrt(2 n_layer) so that its 2 n_layer branches together add about as much as one. Its 0.02 suits
        widths near 768; narrow models learn faster from "fan_in".
        """
        fan_in = self.config.init == "fan_in"
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            elif name.endswith("c_proj.weight"):
                parameter.normal_(std=0.0 if fan_in else 0.02 / math.sqrt(2 * self.config.n_layer))
            elif fan_in and ".h." in name:
                parameter.normal_(std=parameter.size(1) ** -0.5)
            else:
                parameter.normal_(std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Predict the token after each token.

        idx: (B, T) int64. positions: (B, T) int64, the place of each token in its own document, for rows packed with
        several documents: it restarts at 0 with each, and attention stays within it. None: one document a row.
        With targets (B, T), returns logits (B, T, V) and the mean cross-entropy in nats over the targets that are not -1.
        Without, returns the logits of the last position only, (B, 1, V), and None.

        Raises ValueError for T beyond block_size and for ids outside the vocabulary. (With targets on a GPU the ids go
        unchecked: reading a number back from there would hold up the training loop at every step.)
        """
        if targets is None or not idx.is_cuda:
            self._check_ids("token", idx, 0)
        if targets is None:
            return self._head(self._hidden(idx, positions)[:, -1:]), None
        if not targets.is_cuda:
            self._check_ids("target", targets, -1)
        logits = self._head(self._hidden(idx, positions))  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss

    def next_logits(self, idx: Tensor, caches: list[KVCache] | None = None, start: int | Tensor = 0) -> Tensor:
        """The logits after the last token: (B, T) -> (B, V). Without a check of the ids.

        caches: one a layer, which hold the tokens before `start`; those of idx go on from there, and are stored.
        start: how many tokens that is: one number for all rows, or, for T = 1, one for each (B,).
        """
        return self._head(self._hidden(idx, None, caches, start)[:, -1])

    def caches(self, rows: int, slots: int) -> list[KVCache]:
        """One a layer, without tokens yet, for `next_logits`."""
        return [KVCache.zeros(rows, slots, self.config, self.transformer.wte.weight) for _ in self.transformer.h]

    def _hidden(self, idx: Tensor, positions: Tensor | None = None, caches: list[KVCache] | None = None, start: int | Tensor = 0) -> Tensor:
        """(B, T) -> (B, T, C): everything but the output layer. `caches` and `start` as in `next_logits`."""
        T = idx.size(1)
        mask, place = None, slice(0)  # no mask: causal
        if isinstance(start, Tensor):  # (B,)
            slots = torch.arange(caches[0].k.size(2), device=idx.device)
            mask = (slots <= start[:, None])[:, None, None]  # (B, 1, 1, S) each row sees what it has
            place = torch.arange(len(idx), device=idx.device), start % len(slots)  # beyond the last slot the oldest is replaced
            positions = start[:, None]  # (B, 1)
        elif not 1 <= start + T <= self.config.block_size:
            raise ValueError(f"{start + T} tokens do not fit: block_size={self.config.block_size} is the longest context, 1 the shortest")
        elif positions is not None:
            mask = document_mask(positions)
        else:
            positions = torch.arange(start, start + T, device=idx.device)  # (T,)
            place = slice(start, start + T)
        x = self.transformer.wte(idx)  # (B, T, C)
        rotary = None
        if self.config.position == "learned":
            x = x + self.transformer.wpe(positions)
        else:
            rotary = self._rotary(positions, beyond=isinstance(start, Tensor))
        x = self.transformer.drop(x)
        for i, block in enumerate(self.transformer.h):
            x = block(x, rotary, mask, caches[i] if caches else None, place)
        return self.transformer.ln_f(x)

    def _rotary(self, positions: Tensor, beyond: bool = False) -> tuple[Tensor, Tensor]:
        """What `rotate` needs at positions (T,): (T, D/2) each, or (B, T): (B, 1, T, D/2) each. `beyond`: block_size is no limit."""
        if beyond:
            cos, sin = rotary_angles(positions, self.config.n_embd // self.config.n_head)
        else:
            cos, sin = self.rotary_cos[positions], self.rotary_sin[positions]
        return (cos, sin) if positions.dim() == 1 else (cos[:, None], sin[:, None])

    def _head(self, x: Tensor) -> Tensor:
        return self.lm_head(x)[..., : self.config.vocab_size]  # rows that only pad the table are no tokens

    def _check_ids(self, kind: str, ids: Tensor, lowest: int) -> None:
        if torch.compiler.is_compiling() or not ids.numel():  # a compiled graph holds no checks
            return
        low, high = (int(t) for t in ids.aminmax())
        if low < lowest or high >= self.config.vocab_size:
            wrong = low if low < lowest else high
            raise ValueError(f"{kind} id {wrong} is outside the vocabulary: {lowest} to {self.config.vocab_size - 1} would fit")

    @torch.no_grad()
    def generate(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        use_cache: bool = True,
    ) -> Tensor:
        """Append max_new_tokens tokens to each row of idx: (B, T) -> (B, T + max_new_tokens).

        What row i says depends on i, `seed` and its prompt only: not on the other rows. `seed` None takes one from torch's
        global generator. `use_cache=False` is the plain loop that runs the whole context again for every token; it gives the
        same tokens. Once the context is full, the last block_size tokens count. `next_token` explains the other options.
        `engine/generation.py` can do more: prompts of different lengths, texts that end, penalties, beams.
        """
        check_sampling(temperature, top_k, top_p, min_p)
        self._check_ids("token", idx, 0)
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        draws = uniform_draws(seed, range(len(idx)), max_new_tokens).to(idx.device)  # (B, max_new_tokens)
        size = self.config.block_size
        caches = self.caches(len(idx), size) if use_cache else None
        cached = 0  # how many tokens the caches hold
        was_training = self.training
        self.eval()
        try:
            for i in range(max_new_tokens):
                if caches and idx.size(1) <= size:
                    logits = self.next_logits(idx[:, cached:], caches, cached)  # (B, V)
                    cached = idx.size(1)
                else:  # every token has moved by one place: nothing that was kept is right any more
                    logits = self.next_logits(idx[:, -size:])
                chosen = next_token(logits, draws[:, i], temperature, top_k, top_p, min_p)  # (B,)
                idx = torch.cat((idx, chosen[:, None]), dim=1)
        finally:
            self.train(was_training)
        return idx

    def num_parameters(self, embeddings: bool = True) -> int:
        """How many numbers training sets; without `embeddings`, less the token and position tables (a tied head counts as one)."""
        count = sum(p.numel() for p in self.parameters())
        if not embeddings:
            count -= self.transformer.wte.weight.numel()
            if self.config.position == "learned":
                count -= self.transformer.wpe.weight.numel()
        return count

    def flops_per_token(self, length: int | None = None) -> int:
        """Floating point operations of one training step (forward + backward) a token, at rows of `length` (block_size) tokens.

        PaLM's count (Chowdhery et al. 2022, appendix B): 6 for each weight that multiplies, and 12 n_layer C T for the
        attention scores and their sum over the values, causal or not.
        """
        length = self.config.block_size if length is None else length
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return 6 * weights + 12 * self.config.n_layer * self.config.n_embd * length

    @classmethod
    def from_pretrained(cls, name_or_path: str, dropout: float = 0.0) -> "GPT":
        """A GPT-2 of Hugging Face `transformers` (a hub name such as "gpt2", or a folder) as a GPT. Needs the extra `hub`.

        Raises ValueError for a model that computes otherwise than GPT-2 does.
        """
        from transformers import GPT2LMHeadModel

        theirs = GPT2LMHeadModel.from_pretrained(name_or_path)
        c = theirs.config
        if c.activation_function not in ("gelu_new", "gelu_pytorch_tanh") or c.layer_norm_epsilon != 1e-5:
            raise ValueError(
                f"{name_or_path} has activation_function={c.activation_function!r} and layer_norm_epsilon={c.layer_norm_epsilon}; "
                "only GPT-2's own, 'gelu_new' and 1e-05, would fit"
            )
        model = cls(
            GPTConfig(
                block_size=c.n_positions,
                vocab_size=c.vocab_size,
                n_layer=c.n_layer,
                n_head=c.n_head,
                n_embd=c.n_embd,
                dropout=dropout,
                tied_head=c.tie_word_embeddings,
            )
        )
        weights = theirs.state_dict()
        for name in weights:
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                weights[name] = weights[name].t()  # theirs multiply from the other side (Conv1D)
        model.load_state_dict(weights)
        return model


# ------------------------------------------------------------------------------------------------------------------------
# From logits to the next token


def check_sampling(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None) -> None:
    """Raise ValueError for sampling options that mean nothing."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be a finite number, 0 (greedy) or above")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, or None to keep every token")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p={min_p} must be between 0 and 1")


def next_token_probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """logits (B, V) -> probabilities (B, V) float64, 0 for what the filters removed. The filters, in this order:

    temperature  divides the logits: below 1 sharpens, above 1 flattens; 0 leaves only the likeliest token
    top_k        keeps the k likeliest tokens, and every one tied with the k-th
    top_p        keeps the likeliest tokens until their probability reaches p (nucleus sampling, Holtzman et al. 2019)
    min_p        keeps tokens at least p times as likely as the likeliest (Nguyen et al. 2024)
    """
    check_sampling(temperature, top_k, top_p, min_p)
    logits = logits.double()
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).double()
    if temperature != 1:
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # at most 0: no temperature is small enough to overflow
    if top_k is not None and top_k < logits.size(-1):
        kth = logits.topk(top_k).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < kth, float("-inf"))
    probabilities = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        kept = ordered.cumsum(-1) - ordered < top_p  # what is likelier has not reached p yet
        probabilities = probabilities * torch.zeros_like(kept).scatter(-1, order, kept)
    if min_p is not None:
        probabilities = probabilities * (probabilities >= min_p * probabilities.amax(-1, keepdim=True))
    if top_p is None and min_p is None:
        return probabilities  # they sum to 1 already
    return probabilities / probabilities.sum(-1, keepdim=True)


def next_token(
    logits: Tensor,
    draw: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """logits (B, V) and one number in [0, 1) a row, draw (B,), -> the next tokens (B,) int64.

    The tokens share out [0, 1) in vocabulary order, each as wide as its probability; the draw falls on one of them.
    Raises ValueError for logits that are no numbers (checked on the CPU only, where it costs nothing).
    """
    if not logits.is_cuda and not torch.compiler.is_compiling() and logits.isnan().any():
        raise ValueError("the logits are nan: the weights of this model are broken")
    probabilities = next_token_probabilities(logits, temperature, top_k, top_p, min_p)
    ends = probabilities.cumsum(-1)  # (B, V)
    # scaled by the sum as it was rounded, a draw below 1 stays below it, and no token of width 0 is ever hit
    return torch.searchsorted(ends, (draw.double() * ends[:, -1])[:, None], right=True)[:, 0]


def uniform_draws(seed: int, rows: range, count: int) -> Tensor:
    """(len(rows), count) float64 in [0, 1): for each row number, the same numbers whatever rows stand beside it."""
    return torch.from_numpy(np.stack([np.random.default_rng((seed, row)).random(count) for row in rows]))
