"""From prompts to new tokens: one decode loop for rows of different lengths, which keeps the keys and values of what it has read."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.errors import UserError
from engine.sampling import Choice, Memory, State, choose
from model import GPT, KVCache

ROWS_AT_ONCE = 256
CACHE_BYTES = 2**30  # for the keys and values of all rows at once, unless a single one needs more


class Token(NamedTuple):
    """A new token of a row."""

    row: int
    id: int
    logprob: float | None  # natural logarithm of its probability in the model: before temperature, filters and penalties
    finish: str | None  # why it is the last one of its row: "stop_token", "stop_string" or "length"; None: it is not


def generate(
    model: GPT,
    prompts: Iterable[Sequence[int]],
    max_new_tokens: int,
    choice: Choice = Choice(),  # noqa: B008  (it cannot be changed)
    *,
    ended: Callable[[int, int], bool] | None = None,
    seed: int = 0,
    first_row: int = 0,
    logprobs: bool = False,
    context: Literal["exact", "slide"] = "exact",
    compiled: bool = False,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Iterator[Token]:
    """The new tokens of each prompt, as they are made: one of each row in turn, of up to `rows_at_once` rows side by side.

    prompts: at least one id each; of one longer than the context its last block_size ids count. The rows are numbered from
    first_row on, and what a row says depends on its number, its prompt, `seed` and `choice` only: not on the others. It ends
    with one of `choice.stop_tokens`, after max_new_tokens, or when `ended(row, id)`, called for every other token, says so.

    Once the context is full, the text goes on as if the last block_size tokens were all there is: each of them has moved
    to another position, so that the whole window is read anew for every token. context="slide" (rotary positions) keeps
    the keys and values instead, and is a faster but another function: they were worked out with older tokens in sight.

    compiled: let torch.compile make the step of one token, whose shape then never changes: rows that have ended idle.

    Raises ValueError for an empty prompt, ids outside the vocabulary, numbers that mean nothing, and context="slide" with
    learned positions.
    """
    for name, value, lowest in (("max_new_tokens", max_new_tokens, 0), ("rows_at_once", rows_at_once, 1), ("seed", seed, 0)):
        if type(value) is not int or value < lowest:
            raise ValueError(f"{name}={value} must be a whole number, {lowest} or above")
    if context not in ("exact", "slide"):
        raise ValueError(f"context={context!r} is not one of exact, slide")
    if context == "slide" and model.config.position != "rotary":
        raise ValueError("context='slide' needs rotary positions; context='exact' works with learned ones")
    rows_at_once = min(rows_at_once, max(1, CACHE_BYTES // row_bytes(model)))
    step = compiled_step(device_of(model).type) if compiled else None
    prompts, wide = iter(prompts), 0
    with evaluating(model):
        while some := [list(prompt) for prompt in islice(prompts, rows_at_once)]:
            check_prompts(model, some)
            count = len(some)
            if compiled and wide:
                some += [some[0]] * (wide - count)  # rows that idle from the beginning: the same shape needs no new compilation
            wide = len(some)
            rows = Rows(model, some, max_new_tokens, context == "slide", step)
            memory = Memory(choice, some, model.config.vocab_size, rows.device, seed, first_row)
            rows.going = rows.going[:count]
            yield from write(rows, memory, max_new_tokens, first_row, ended, logprobs)
            first_row += count


def write(
    rows: "Rows", memory: Memory, max_new_tokens: int, first_row: int, ended: Callable[[int, int], bool] | None, logprobs: bool
) -> Iterator[Token]:
    """Write these rows side by side. Those that have ended leave the batch, or idle where it may not change its shape."""
    numbers = list(range(first_row, first_row + len(rows.lengths)))  # of the row in each slot
    stops = set(memory.choice.stop_tokens)
    rows.read_prompts()
    for left in reversed(range(max_new_tokens)):
        tokens, ids, chances = next_tokens(rows, memory, logprobs)
        going = []
        for slot in rows.going:
            number, token = numbers[slot], ids[slot]
            finish = None if left else "length"
            if token in stops:
                finish = "stop_token"
            elif ended is not None and ended(number, token):
                finish = "stop_string"
            if finish is None:
                going.append(slot)
            yield Token(number, token, chances[slot] if chances else None, finish)
        if not going:
            return
        if rows.step:
            rows.going = going
        elif len(going) < len(numbers):
            slots = closed_up(going)
            rows.take(slots)
            memory.take(slots)
            tokens, numbers = tokens[slots], [numbers[slot] for slot in slots]
        rows.append(tokens)


@torch.inference_mode()
def next_tokens(rows: "Rows", memory: Memory, logprobs: bool) -> tuple[Tensor, list[int], list[float] | None]:
    """Choose a token for each row, (B,): as a tensor, as numbers, and the logarithms of their probabilities if asked for."""
    logits, tokens = rows.next(memory.choice, memory.next_state())
    memory.note(tokens)
    chances = log_probabilities(logits, tokens).tolist() if logprobs else None
    return tokens, tokens.tolist(), chances


def closed_up(slots: list[int]) -> list[int]:
    """The slots in an order in which as few as possible move: the last ones fill the gaps."""
    there = set(slots)
    moving = [slot for slot in slots if slot >= len(slots)]
    return [slot if slot in there else moving.pop() for slot in range(len(slots))]


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """logits (B, V) and tokens (B,) -> the natural logarithms of their probabilities (B,)."""
    return logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@contextmanager
def evaluating(model: GPT) -> Iterator[None]:
    """Without dropout; afterwards as it was."""
    was_training = model.training
    if was_training:  # switching goes through every module, which takes as long as a token of a small model
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def check_prompts(model: GPT, prompts: list[list[int]]) -> None:
    """Raise ValueError for prompts that a model cannot read."""
    for prompt in prompts:
        if not prompt:
            raise ValueError("a prompt needs at least one token, such as the boundary between documents")
        if min(prompt) < 0 or max(prompt) >= model.config.vocab_size:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise ValueError(f"token id {wrong} is outside the vocabulary: 0 to {model.config.vocab_size - 1} would fit")


def row_bytes(model: GPT) -> int:
    """What the keys and values of one row take at most."""
    return model.config.block_size * sum(tensor.nbytes for cache in model.caches(1, 1) for tensor in cache)


def device_of(model: GPT) -> torch.device:
    return model.caches(1, 1)[0].k.device


# ------------------------------------------------------------------------------------------------------------------------
# What the model sees

Step = Callable[[GPT, list[KVCache], Tensor, Tensor, Choice, State], tuple[Tensor, Tensor]]


def decode_step(model: GPT, caches: list[KVCache], newest: Tensor, starts: Tensor, choice: Choice, state: State) -> tuple[Tensor, Tensor]:
    """From the newest token of each row (B,), which stands at position starts (B,), to the logits (B, V) and the next one (B,)."""
    logits = model.next_logits(newest[:, None], caches, starts)
    return logits, choose(logits, choice, state)


@functools.cache
def compiled_step(device_type: str) -> Step:
    """`decode_step`, compiled when it is called first, and for each new shape: on a GPU as one CUDA graph, on a CPU as C++ that
    calls its kernels without going through Python, and multiplies a single token with a matrix in loops of its own."""
    torch._dynamo.config.recompile_limit = 64  # every shape and every choice is a variant of its own
    if device_type == "cuda":
        return torch.compile(decode_step, dynamic=False, fullgraph=True, mode="reduce-overhead")
    options = {"cpp_wrapper": True, "post_grad_fusion_options": {"decompose_mm_pass": {}}}
    return torch.compile(decode_step, dynamic=False, fullgraph=True, options=options)


class Rows:
    """Texts that are being written, a slot of the batch each, and the caches of their keys and values.

    A row of n tokens has them at the positions 0 to n - 1; the newest is not in the caches yet. A row whose first token has
    fallen out of the context is *full*: it is read anew each time. With `slide` there are no full rows: the positions go on
    beyond block_size, and in the caches the newest takes the slot of the oldest. With a compiled `step` the number of rows and
    slots stays as it is.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: GPT,
        prompts: list[list[int]],
        max_new_tokens: int,
        slide: bool = False,
        step: Step | None = None,
    ) -> None:
        self.model, self.slide, self.step, self.device = model, slide, step, device_of(model)
        self.size = model.config.block_size
        self.prompts = [prompt[-self.size :] for prompt in prompts]
        self.lengths = [len(prompt) for prompt in self.prompts]
        self.going = list(range(len(prompts)))  # slots of rows that have not ended
        self.full: set[int] = set()
        self.checked: int | None = None
        longest = max(self.lengths) + max_new_tokens
        slots = self.size if step else min(self.size, longest)
        self.caches = model.caches(len(prompts), slots)
        self.newest = torch.tensor([prompt[-1] for prompt in prompts], device=self.device)  # (B,)
        self.tokens: Tensor | None = None  # (B, block_size) the last ones of each row, where rows may become full
        if longest > self.size and not slide:
            self.tokens = torch.tensor(filled_up(self.prompts, self.size), device=self.device)

    @torch.inference_mode()
    def read_prompts(self) -> None:
        """Store the keys and values of all but the newest tokens. Equal prompts are read once."""
        numbers: dict[tuple[int, ...], int] = {}
        which = [numbers.setdefault(tuple(prompt[:-1]), len(numbers)) for prompt in self.prompts]
        longest = max(map(len, numbers))
        if longest == 0:
            return
        idx = torch.tensor(filled_up(numbers, longest), device=self.device)  # no token sees what is behind its row's end
        read = [cache.part(len(numbers), longest) for cache in self.caches]
        self.model.next_logits(idx, read)
        if len(numbers) < len(which):
            for k, v in (cache.part(len(which), longest) for cache in self.caches):
                k[:], v[:] = k[which], v[which]

    def append(self, tokens: Tensor) -> None:
        """Add a token to each row, (B,)."""
        self.newest = tokens
        if self.tokens is not None:
            self._push([slot for slot in self.going if self.lengths[slot] == self.size])
        for slot in self.going:
            self.lengths[slot] += slot not in self.full
        if self.tokens is not None:
            self._write()

    @torch.inference_mode()
    def _push(self, slots: list[int]) -> None:
        """Let the first token of these rows fall out."""
        self.full.update(slots)
        if slots:
            self.tokens[slots] = self.tokens[slots].roll(-1, 1)

    @torch.inference_mode()
    def _write(self) -> None:
        """Put the newest tokens where they stand."""
        self.tokens[torch.arange(len(self.lengths), device=self.device), self._starts()] = self.newest

    def next(self, choice: Choice, state: State) -> tuple[Tensor, Tensor]:
        """The logits after the newest token of each row (B, V), and the next tokens (B,)."""
        if self.step and self.full.isdisjoint(self.going):
            return self._compiled(choice, state)
        logits = self.next_logits()
        return logits, choose(logits, choice, state)

    def _compiled(self, choice: Choice, state: State) -> tuple[Tensor, Tensor]:
        """`next` by the compiled step. Whether what was compiled fits the model and its options is checked in the first call:
        that takes a fifth of a small model's step, and only `forbidden` can be of another kind later."""
        kind, self.checked = self.checked, 0 if state.forbidden is None else len(state.forbidden)
        checks = torch.compiler.set_stance("default", skip_guard_eval_unsafe=True) if kind == self.checked else nullcontext()
        with checks:
            try:
                logits, tokens = self.step(self.model, self.caches, self.newest, self._starts(), choice, state)
            except Exception as error:  # a compiler may fail in any way
                if kind is not None:
                    raise
                reason = " ".join(str(error).split())[:100]
                raise UserError(f"compiling failed ({type(error).__name__}: {reason}); without --compile it would work") from None
        if kind is None and logits.isnan().any():
            raise ValueError("the logits are nan: the weights of this model are broken")
        return logits, tokens

    def next_logits(self) -> Tensor:
        """The logits after the newest token of each row (B, V)."""
        full = [slot for slot in self.going if slot in self.full]
        if len(full) == len(self.going):
            return self.model.next_logits(self.tokens)
        longest = max(self.lengths)
        if min(self.lengths) == longest <= self.size:  # all at the same place: no need of a mask
            logits = self.model.next_logits(self.newest[:, None], self.caches, longest - 1)
        else:
            caches = [cache.part(len(self.lengths), longest) for cache in self.caches]
            logits = self.model.next_logits(self.newest[:, None], caches, self._starts())
        if full:  # for those it was for nothing, and little beside the window of each
            logits = logits.index_copy(0, torch.tensor(full, device=self.device), self.model.next_logits(self.tokens[full]))
        return logits

    def _starts(self) -> Tensor:
        """Where the newest token of each row stands (B,)."""
        return torch.tensor([length - 1 for length in self.lengths], device=self.device)

    @torch.inference_mode()
    def take(self, slots: list[int]) -> None:
        """Go on with these rows only, in this order. A row may be taken more than once, but not more rows than there are."""
        moved = [slot for slot, source in enumerate(slots) if source != slot]
        sources = [slots[slot] for slot in moved]
        for tensor in (self.tokens, *(tensor for cache in self.caches for tensor in cache)):
            if moved and tensor is not None:
                tensor[moved] = tensor[sources]
        self.caches = [cache.part(len(slots), cache.k.size(2)) for cache in self.caches]
        self.tokens = None if self.tokens is None else self.tokens[: len(slots)]
        self.lengths = [self.lengths[source] for source in slots]
        self.full = {slot for slot, source in enumerate(slots) if source in self.full}
        self.going = list(range(len(slots)))


def filled_up(prompts: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """The prompts with zeros at their ends, all of the same length."""
    return [[*prompt, *[0] * (length - len(prompt))] for prompt in prompts]


def lay_out(model: GPT, dtype: torch.dtype = torch.float32) -> GPT:
    """Ready a model, in place, for nothing but writing: weights in `dtype`, and on a CPU in the order that is read fastest.

    A single token is multiplied with a matrix as fast as that comes from memory. A matrix with more rows than columns comes
    twice as fast when its columns are what lies together (measured with MKL; others are as fast as before).
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False).data = parameter.data.to(dtype)  # the tables of rotary angles stay as exact as they are
    if isinstance(model, GPT) and device_of(model).type == "cpu":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)  # not the table of embeddings
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear) and layer.out_features > layer.in_features:
                layer.weight.data = layer.weight.data.t().contiguous().t()
    return model.eval()
