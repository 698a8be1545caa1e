"""Beam search: the likeliest texts a model can be found to write, instead of texts drawn by chance."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.generation import Rows, check_prompts, evaluating
from engine.sampling import Choice
from model import GPT


class Hypothesis(NamedTuple):
    """A text, as far as it is written."""

    ids: list[int]  # new tokens, a stop token at the end included
    logprobs: list[float]  # natural logarithm of the probability of each in the model
    logprob: float  # their sum: that of the text
    score: float  # logprob / len(ids) ** length_penalty
    finish: str | None  # why it is complete: "stop_token", "stop_string" or "length"; None: it is not


def beam_search(
    model: GPT,
    prompt: list[int],
    beams: int,
    max_new_tokens: int,
    choice: Choice = Choice(),  # noqa: B008  (it cannot be changed)
    *,
    length_penalty: float = 1.0,
    ended: Callable[[list[int]], bool] | None = None,
    slide: bool = False,
) -> list[Hypothesis]:
    """The `beams` best continuations found, best first (Sutskever et al. 2014; Wu et al. 2016 for the length penalty).

    Each step extends the `beams` likeliest unfinished texts by every token, and keeps the likeliest of these. It ends when no
    unfinished text can come to a better score than the complete ones have. With beams = V ** max_new_tokens nothing is left
    out, and the first is the best there is.

    choice: of it count stop_tokens, banned and min_new_tokens: beam search draws nothing.
    length_penalty: 0 compares probabilities, which favours short texts; 1 their means per token.
    ended(ids): whether a text is complete; it is asked for the 2 * beams likeliest of each step.

    Raises ValueError for beams below 1, a length_penalty that is no number, and prompts as `generate` does.
    """
    if beams < 1 or not math.isfinite(length_penalty):
        raise ValueError(f"beams={beams} must be at least 1, and length_penalty={length_penalty} a finite number")
    choice.check_vocabulary(model.config.vocab_size)
    check_prompts(model, [prompt])
    with torch.inference_mode(), evaluating(model):
        rows = Rows(model, [prompt] * beams, max_new_tokens, slide)
        rows.read_prompts()
        running, complete = [Hypothesis([], [], 0.0, -math.inf, None)], []  # running[i] is in slot i; the slots beyond hold copies
        for length in range(1, max_new_tokens + 1):
            chances = rows.next_logits()[: len(running)].double().log_softmax(-1)  # (N, V)
            chances[:, list(choice.forbidden(length - 1))] = -math.inf
            chances += torch.tensor([[hypothesis.logprob] for hypothesis in running], dtype=torch.float64, device=rows.device)
            parents, grown = [], []
            for parent, token, logprob in likeliest(chances, 2 * beams, choice.stop_tokens):
                before = running[parent]
                ids, logprobs = [*before.ids, token], [*before.logprobs, logprob - before.logprob]
                finish = "length" if length == max_new_tokens else None
                if token in choice.stop_tokens:
                    finish = "stop_token"
                elif ended is not None and ended(ids):
                    finish = "stop_string"
                hypothesis = Hypothesis(ids, logprobs, logprob, logprob / length**length_penalty, finish)
                if finish:
                    complete.append(hypothesis)
                elif len(grown) < beams:
                    parents.append(parent)
                    grown.append(hypothesis)
            complete = sorted(complete, key=lambda hypothesis: -hypothesis.score)[:beams]
            final = max_new_tokens if length_penalty > 0 else length + 1  # the length at which what is running scores best
            if not grown or (len(complete) == beams and grown[0].logprob / final**length_penalty <= complete[-1].score):
                break
            running = grown
            parents += [0] * (beams - len(parents))
            rows.take(parents)
            rows.append(torch.tensor([hypothesis.ids[-1] for hypothesis in running] + [0] * (beams - len(running)), device=rows.device))
    return complete


def likeliest(chances: torch.Tensor, count: int, stop_tokens: tuple[int, ...]) -> list[tuple[int, int, float]]:
    """The `count` best ways to go on without a stop token and every way to stop, best first: (beam, token, logprob of the text).

    chances: (N, V) logarithm of the probability of beam n with token v behind it, -inf where that cannot be.
    """
    stops = [(beam, token, float(chances[beam, token])) for beam in range(len(chances)) for token in stop_tokens]
    chances = chances.index_fill(1, torch.tensor(stop_tokens, dtype=torch.int64, device=chances.device), -math.inf)
    best = chances.flatten().topk(min(count, chances.numel()))
    others = [(*divmod(i, chances.size(1)), chance) for i, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return sorted((way for way in stops + others if way[2] > -math.inf), key=lambda way: -way[2])
