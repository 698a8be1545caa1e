"""From logits to the next token of each row: what may be chosen, what is penalised, what was drawn.

In this order: repetition, presence and frequency penalties; tokens that may not come; then temperature, top_k, top_p and
min_p as in `model.next_token_probabilities`; then one number drawn by chance.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model import check_sampling, next_token


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen. Raises ValueError for a value that means nothing."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0  # divides positive logits of tokens in prompt or text, multiplies negative (Keskar et al. 2019)
    presence_penalty: float = 0.0  # taken from the logits of tokens in the text so far
    frequency_penalty: float = 0.0  # the same, for each time they are there
    banned: tuple[int, ...] = ()  # never chosen
    stop_tokens: tuple[int, ...] = ()  # end a text
    min_new_tokens: int = 0  # none of stop_tokens comes before a text has so many

    def __post_init__(self) -> None:
        check_sampling(*self.filters)
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty} must be above 0; 1 changes nothing")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)} must be a finite number; 0 changes nothing")
        if self.min_new_tokens < 0:
            raise ValueError(f"min_new_tokens={self.min_new_tokens} must be 0 or above")

    @property
    def filters(self) -> tuple[float, int | None, float | None, float | None]:
        return self.temperature, self.top_k, self.top_p, self.min_p

    @property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError for ids there are not, and when no token is left to choose."""
        for name in ("banned", "stop_tokens"):
            for token in getattr(self, name):
                if not 0 <= token < vocab_size:
                    raise ValueError(f"{name}: id {token} is outside the vocabulary: 0 to {vocab_size - 1} would fit")
        if len({*self.banned, *(self.stop_tokens if self.min_new_tokens else ())}) == vocab_size:
            raise ValueError(f"all {vocab_size} tokens are banned; at least one must be left to choose")

    def forbidden(self, new_tokens: int) -> tuple[int, ...]:
        """The tokens that may not come after so many new ones."""
        return self.banned + self.stop_tokens if new_tokens < self.min_new_tokens else self.banned


class State(NamedTuple):
    """What the choice of the next token depends on beside the logits."""

    draw: Tensor  # (B,) numbers in [0, 1)
    forbidden: Tensor | None  # ids that may not come now
    in_prompt: Tensor | None  # (B, V) bool, which tokens the prompt has
    counts: Tensor | None  # (B, V) how often the text so far has each


def allowed(logits: Tensor, choice: Choice, state: State) -> Tensor:
    """logits (B, V) with the penalties, and without the tokens that may not come now."""
    if state.counts is not None:
        logits, written = logits.double(), state.counts > 0
        divided = torch.where(logits > 0, logits / choice.repetition_penalty, logits * choice.repetition_penalty)
        logits = torch.where(written | state.in_prompt, divided, logits)
        logits = logits - choice.presence_penalty * written - choice.frequency_penalty * state.counts
    if state.forbidden is not None:
        logits = logits.index_fill(1, state.forbidden, -math.inf)
    return logits


def choose(logits: Tensor, choice: Choice, state: State) -> Tensor:
    """logits (B, V) -> the next tokens (B,)."""
    return next_token(allowed(logits, choice, state), state.draw, *choice.filters)


class Memory:
    """What the choice has to know of the rows that are being written."""

    @torch.inference_mode()
    def __init__(self, choice: Choice, prompts: list[list[int]], vocab_size: int, device: torch.device, seed: int, first_row: int) -> None:
        choice.check_vocabulary(vocab_size)
        self.choice, self.device, self.new_tokens = choice, device, 0
        rows = range(first_row, first_row + len(prompts))
        self.chance = [np.random.default_rng((seed, row)) for row in rows]
        self.draws: list[Tensor] = []  # (B,) for each of the next steps, the nearest last
        self.in_prompt = self.counts = None
        if choice.penalises:
            self.in_prompt = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
            for row, prompt in zip(self.in_prompt, prompts, strict=True):
                row[sorted(set(prompt) - set(choice.stop_tokens))] = True  # a boundary before the text is no repetition
            self.counts = torch.zeros(len(prompts), vocab_size, dtype=torch.float64, device=device)

    def next_state(self) -> State:
        """For the next token of each row. Every row has its own chance: its draws are the same whatever rows stand beside it."""
        self.draws = self.draws or self._draw(32)
        forbidden = self.choice.forbidden(self.new_tokens)
        ids = torch.tensor(forbidden, device=self.device) if forbidden else None
        return State(self.draws.pop(), ids, self.in_prompt, self.counts)

    @torch.inference_mode()
    def _draw(self, count: int) -> list[Tensor]:
        """For each of so many steps (B,) numbers in [0, 1). The last one is the nearest step's."""
        ahead = np.stack([chance.random(count) for chance in self.chance], axis=1)  # (count, B)
        return list(torch.from_numpy(ahead).to(self.device))[::-1]

    def note(self, tokens: Tensor) -> None:
        """These tokens (B,) were chosen."""
        self.new_tokens += 1
        if self.counts is not None:
            self.counts[torch.arange(len(tokens), device=self.device), tokens] += 1

    def take(self, slots: list[int]) -> None:
        """Go on with these rows only."""
        self.chance = [self.chance[slot] for slot in slots]
        self.draws = [draw[slots] for draw in self.draws]
        if self.counts is not None:
            self.in_prompt, self.counts = self.in_prompt[slots], self.counts[slots]
