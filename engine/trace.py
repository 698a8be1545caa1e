"""How a text comes about, token by token: what could have come, how likely each was, and what was drawn."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from data.tokenizers import BPETokenizer, Tokenizer
from engine.generation import Rows, check_prompts, evaluating, log_probabilities
from engine.sampling import Choice, Memory, allowed, choose
from model import GPT, next_token_probabilities


class TracedStep(NamedTuple):
    history: list[int]  # what the model has read
    probabilities: Tensor  # (V,) float64, from which was drawn: after penalties and filters, 0 for what they left out
    token: int  # what was drawn
    logprob: float  # natural logarithm of the probability it has in the model: before all of them


def traced(model: GPT, prompt: list[int], max_new_tokens: int, choice: Choice, seed: int, slide: bool = False) -> Iterator[TracedStep]:
    """The steps in which `generate` writes row 0. Raises ValueError for a prompt that the model cannot read."""
    check_prompts(model, [prompt])
    rows = Rows(model, [prompt], max_new_tokens, slide)
    memory = Memory(choice, [prompt], model.config.vocab_size, rows.device, seed, 0)
    history, token = list(prompt), -1
    with evaluating(model):
        rows.read_prompts()
        while len(history) < len(prompt) + max_new_tokens and token not in choice.stop_tokens:
            with torch.inference_mode():
                logits, state = rows.next_logits(), memory.next_state()
                probabilities = next_token_probabilities(allowed(logits, choice, state), *choice.filters)[0].cpu()
                chosen = choose(logits, choice, state)
                memory.note(chosen)
                rows.append(chosen)
                token, logprob = int(chosen), float(log_probabilities(logits, chosen))
            yield TracedStep(list(history), probabilities, token, logprob)
            history.append(token)


def trace_table(steps: list[TracedStep], tokenizer: Tokenizer, width: int = 24, shown: int = 6) -> str:
    """A step a line: the end of its history, the likeliest candidates and the rest of them, what was drawn. Then the product."""
    chances = [float(step.probabilities[step.token]) for step in steps]
    lines = [f"{'step':>4}  {'history':>{width}}  {'drawn':<10} {'p':>6}  candidates left"]
    for number, (step, chance) in enumerate(zip(steps, chances, strict=True), start=1):
        history = visible(tokenizer.decode(step.history))
        history = history if len(history) <= width else "…" + history[1 - width :]
        left = int((step.probabilities > 0).sum())
        best = step.probabilities.topk(min(shown, left))
        candidates = [f"{token_name(i, tokenizer)} {p:.3f}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        if left > shown:
            candidates.append(f"{left - shown} more {max(0.0, 1 - float(best.values.sum())):.3f}")
        lines.append(f"{number:4}  {history:>{width}}  {token_name(step.token, tokenizer):<10} {chance:6.3f}  {'  '.join(candidates)}")
    logarithm = sum(map(math.log, chances))
    factors = " x ".join(f"{chance:.3f}" for chance in chances)
    in_model = sum(step.logprob for step in steps)
    return "\n".join(
        [
            *lines,
            "",
            "The probability of the whole is the product of its steps:",
            f"{factors} = {math.exp(logarithm):.3g}, whose natural logarithm is {logarithm:.4f}",
            f"(in the model itself, before penalties, temperature and filters: {in_model:.4f})",
        ]
    )


def token_name(token: int, tokenizer: Tokenizer) -> str:
    """A token as a table should show it."""
    text = tokenizer.decode([token])
    if isinstance(tokenizer, BPETokenizer) and "\N{REPLACEMENT CHARACTER}" in text:  # bytes that are no characters
        return repr(tokenizer.decode_bytes([token]))[2:-1]
    return visible(text)


def shortened(token: str, longest: int = 16) -> str:
    """The beginning of a token's name, for a label."""
    return token if len(token) <= longest else token[: longest - 1] + "…"


def visible(text: str) -> str:
    """The text on one line, with blanks and line ends that can be seen."""
    return "".join("␣" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)
