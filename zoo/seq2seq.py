"""The original Transformer: an encoder that reads, a decoder that writes and looks at what was read (Vaswani et al. 2017).

    what changes   the encoder sees both ways; the decoder, causal as a GPT, has a cross-attention in each block
    what does not  attention, MLP, norms, the sum they are added to; how a token is chosen

The defaults are the paper's: Post-Norm, ReLU, sinusoidal positions, embeddings times sqrt(C), the output layer the target embedding.
A row is padded with -1, on either side, and what is padded changes nothing.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from engine.generation import evaluating
from model import GPT, KVCache, check_sampling, next_token, uniform_draws
from zoo.block import ShapeConfig, Stack, check_ids, padding_mask, places


@dataclass
class Seq2SeqConfig(ShapeConfig):
    """The shape of a model. Raises ValueError for one that cannot work. vocab_size is that of the targets."""

    kind: Literal["seq2seq"] = "seq2seq"
    source_vocab_size: int = 27

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_vocab_size < 1:
            raise ValueError(f"source_vocab_size={self.source_vocab_size} must be at least 1")


class Memory(NamedTuple):
    """What was read, as the decoder looks at it."""

    layers: list[KVCache]  # of the cross-attention in each block of the decoder: keys and values (B, H, S, D)
    mask: Tensor  # (B, 1, 1, S) bool, False where the source is padding

    def take(self, rows: Tensor) -> "Memory":
        """Of these rows only, in this order; a row may come more than once."""
        return Memory([taken(cache, rows) for cache in self.layers], self.mask[rows])


def taken(cache: KVCache, rows: Tensor) -> KVCache:
    """Of these rows only, in this order."""
    return KVCache(cache.k[rows], cache.v[rows])


class Seq2Seq(nn.Module):
    """Encoder, decoder, and the embeddings of source and target."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config = replace(config)  # a copy, as in GPT
        self.source_wte = nn.Embedding(config.source_vocab_size, config.n_embd)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.encoder = Stack(config)
        self.decoder = Stack(config, cross=True)
        if not config.tied_head:
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.init_weights()
        for table in (self.source_wte, self.wte):
            nn.init.normal_(table.weight, std=config.n_embd**-0.5)  # times sqrt(C): 1, as large as the sinusoids

    def forward(self, source: Tensor, target_in: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Predict the token after each of target_in (B, T), given the source (B, S); int64, -1 being padding.

        Returns logits (B, T, V) and, with targets (B, T), the mean cross-entropy in nats over those that are not -1; with
        label smoothing while training. Raises ValueError for rows beyond block_size and ids outside the vocabularies.
        """
        logits = self.decode(target_in, self.encode(source))  # (B, T, V)
        if targets is None:
            return logits, None
        check_ids("target", targets, self.config.vocab_size)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, label_smoothing=smoothing)

    def encode(self, source: Tensor) -> Memory:
        """Read the source (B, S): what the decoder will look at."""
        check_ids("source", source, self.config.source_vocab_size)
        mask = padding_mask(source)
        if not (source.is_cuda or mask.any(-1).all()):
            raise ValueError("a source of this batch is nothing but padding; at least one token would do")
        x = self.source_wte(source.clamp(min=0)) * math.sqrt(self.config.n_embd)  # (B, S, C)
        return Memory(self.decoder.read(self.encoder(x, places(source), mask)), mask)

    def decode(self, target_in: Tensor, memory: Memory, caches: list[KVCache] | None = None, start: int = 0) -> Tensor:
        """The logits after each of the tokens (B, T) -> (B, T, V).

        caches: one a layer, with what came before, `start` tokens in every row; then target_in is T = 1 token, and no padding.
        """
        check_ids("target", target_in, self.config.vocab_size)
        x = self.wte(target_in.clamp(min=0)) * math.sqrt(self.config.n_embd)  # (B, T, C)
        if caches:
            positions, mask = torch.arange(start, start + 1, device=x.device), None  # a single query sees all that is there
        else:
            positions, mask = places(target_in), decoder_mask(target_in)
        x = self.decoder(x, positions, mask, *memory, caches, slice(start, start + target_in.size(1)))
        return F.linear(x, self.wte.weight) if self.config.tied_head else self.lm_head(x)

    def caches(self, rows: int, slots: int) -> list[KVCache]:
        """One a layer of the decoder, without tokens yet, for `decode`."""
        return [KVCache.zeros(rows, slots, self.config, self.wte.weight) for _ in self.decoder.h]

    @torch.no_grad()
    def generate(
        self,
        source: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        start: int = 0,
        end: int = 0,
        use_cache: bool = True,
    ) -> Tensor:
        """A target for each row of source (B, S): (B, T), T at most max_new_tokens, -1 behind the token `end`, at which a row stops.

        Chosen as GPT.generate does, and as there what row i says depends on i, `seed` and its source only; temperature=0 is greedy.
        The source is read once. `use_cache=False` works out the whole target again for every token, and gives the same.
        Raises ValueError for more tokens than fit.
        """
        check_sampling(temperature, top_k, top_p, min_p)
        self.check_room(max_new_tokens)
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        draws = uniform_draws(seed, range(len(source)), max_new_tokens).to(source.device)  # (B, max_new_tokens)
        with evaluating(self):
            memory = self.encode(source)
            caches = self.caches(len(source), max_new_tokens) if use_cache else None
            going = torch.arange(len(source), device=source.device)  # the rows that have not ended
            tokens = torch.full((len(source), max_new_tokens + 1), -1, device=source.device)
            tokens[:, 0] = start
            longest = 0
            for i in range(max_new_tokens):
                longest = i + 1
                seen = tokens[going, i : i + 1] if caches else tokens[going, : i + 1]
                logits = self.decode(seen, memory, caches, i)[:, -1]  # (N, V) of the N rows that go on
                chosen = next_token(logits, draws[going, i], temperature, top_k, top_p, min_p)
                tokens[going, i + 1] = chosen
                if (on := chosen != end).all():
                    continue
                going, memory = going[on], memory.take(on)
                caches = [taken(cache, on) for cache in caches] if caches else None
                if not len(going):
                    break
        return tokens[:, 1 : longest + 1]

    @torch.no_grad()
    def beam_search(
        self, source: Tensor, beams: int, max_new_tokens: int, length_penalty: float = 1.0, start: int = 0, end: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The likeliest targets that can be found for each row of source (B, S), best first: tokens (B, beams, T), -1 behind `end`,
        and their log-probabilities (B, beams), -inf where there are fewer targets than beams.

        Each step extends the `beams` best of each row by every token, and keeps the best of these. Ended ones stay as they are
        and compete. Best is what has the highest log-probability / tokens ** length_penalty (Wu et al. 2016). One beam is greedy.
        Raises ValueError for fewer beams or tokens than one, for more tokens than fit, and for an `end` that is no token.
        """
        if beams < 1 or max_new_tokens < 1:
            raise ValueError(f"beams={beams} and max_new_tokens={max_new_tokens} must be at least 1")
        if not 0 <= end < self.config.vocab_size:
            raise ValueError(f"end={end} is outside the vocabulary: 0 to {self.config.vocab_size - 1} would fit")
        self.check_room(max_new_tokens)
        B, V, device = len(source), self.config.vocab_size, source.device
        with evaluating(self):
            memory = self.encode(source).take(torch.arange(B, device=device).repeat_interleave(beams))  # B * beams rows
            caches = self.caches(B * beams, max_new_tokens)
            tokens = torch.full((B, beams, max_new_tokens + 1), -1, device=device)
            tokens[:, :, 0] = start
            total = torch.full((B, beams), -math.inf, dtype=torch.float64, device=device)  # log-probability of each
            total[:, 0] = 0.0  # all begin alike: only the first counts
            length = torch.zeros(B, beams, dtype=torch.int64, device=device)
            ended = torch.zeros(B, beams, dtype=torch.bool, device=device)
            stay = torch.full((V,), -math.inf, dtype=torch.float64, device=device)
            stay[end] = 0.0  # the one way in which what has ended goes on
            for i in range(max_new_tokens):
                logits = self.decode(tokens.view(B * beams, -1)[:, i : i + 1].clamp(min=0), memory, caches, i)[:, -1]
                chances = logits.double().log_softmax(-1).view(B, beams, V)
                ways = total[..., None] + torch.where(ended[..., None], stay, chances)  # (B, beams, V)
                lengths = length + ~ended
                best = (ways / lengths[..., None] ** length_penalty).flatten(1).topk(beams).indices  # (B, beams) of beam * V + token
                parent, token = best // V, best % V
                total = ways.flatten(1).gather(1, best)
                was = ended.gather(1, parent)
                length, ended = lengths.gather(1, parent), was | (token == end)
                tokens = tokens.gather(1, parent[..., None].expand_as(tokens))
                tokens[:, :, i + 1] = token.masked_fill(was, -1)
                if ended.all():
                    break
                rows = (parent + beams * torch.arange(B, device=device)[:, None]).flatten()
                caches = [taken(cache, rows) for cache in caches]
        return tokens[:, :, 1 : i + 2], total

    @torch.no_grad()
    def log_probabilities(self, source: Tensor, tokens: Tensor, start: int = 0) -> Tensor:
        """That of each target (B, T), -1 being padding, given its source (B, S): (B,) float64, by one pass through the model."""
        target_in = torch.cat((torch.full_like(tokens[:, :1], start), tokens[:, :-1]), dim=1)
        with evaluating(self):
            chances = self(source, target_in)[0].double().log_softmax(-1)  # (B, T, V)
        return (chances.gather(2, tokens.clamp(min=0)[..., None])[..., 0] * (tokens >= 0)).sum(1)

    def check_room(self, max_new_tokens: int) -> None:
        """Raise ValueError for more tokens than the decoder reads, of which a cache would say nothing until they are there."""
        if max_new_tokens > self.config.block_size:
            raise ValueError(f"max_new_tokens={max_new_tokens} do not fit: block_size={self.config.block_size} is the longest target")

    def num_parameters(self) -> int:
        """How many numbers training sets."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, length: int | None = None) -> int:
        """Of a training step, for a token of the target and one of the source, counted as GPT does, at rows of `length`."""
        c, length = self.config, self.config.block_size if length is None else length
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear)) + c.tied_head * self.wte.weight.numel()
        return 6 * weights + 12 * 3 * c.n_layer * c.n_embd * length

    init_weights = GPT.init_weights


def decoder_mask(target_in: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T) bool: what came before and is no padding. Padding, of which nothing is used, sees itself, to be no nan."""
    i = torch.arange(target_in.size(1), device=target_in.device)
    return padding_mask(target_in) & (i <= i[:, None]) | (i == i[:, None])
