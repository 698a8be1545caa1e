"""From a model and a prompt to texts."""

import textwrap
from collections.abc import Iterator

import torch

from config.settings import SamplingSettings
from data.tokenizers import Tokenizer
from engine.errors import UserError
from model import GPT

ROWS_AT_ONCE = 256


def continuations(
    model: GPT, tokenizer: Tokenizer, settings: SamplingSettings, opening: list[int], prompt: str = "", first_row: int = 0
) -> Iterator[str]:
    """Texts that begin with `prompt`, without end: row first_row, first_row + 1, ...

    Text i depends only on the seed, i and the prompt. It ends at the boundary token, or after max_new_tokens.
    opening: what the model reads before the prompt, as its data say (`meta["opening"]`).
    Raises UserError for a prompt the tokenizer has no tokens for, or with the boundary in it.
    """
    prompt_ids = tokenizer.encode(prompt)
    if tokenizer.boundary_id in prompt_ids:
        boundary = tokenizer.decode([tokenizer.boundary_id])
        raise UserError(f"--prompt={prompt!r}: {boundary} marks where a text ends; a prompt without it would do")
    ids = [*opening, *prompt_ids]
    device = next(model.parameters()).device
    rows = min(settings.num_samples, ROWS_AT_ONCE)
    while True:
        idx = torch.tensor([ids], device=device).expand(rows, -1)  # (B, T)
        tokens = model.generate(
            idx,
            settings.max_new_tokens or model.config.block_size,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
            stop_token=tokenizer.boundary_id,
            seed=settings.seed,
            first_row=first_row,
        )
        for row in tokens.tolist():
            row.append(tokenizer.boundary_id)  # the end of one that ran out of tokens
            yield tokenizer.decode(row[len(opening) : row.index(tokenizer.boundary_id, len(ids))])
        first_row += rows


def only_new(texts: Iterator[str], seen: set[str], count: int) -> tuple[list[str], int]:
    """The first `count` distinct texts that are not in `seen`, and how many it took to find them.

    Gives up, with fewer, after 1,000 texts in a row that brought none: a model may know its training list by heart.
    """
    new: dict[str, None] = {}
    drawn, last = 0, 0
    while len(new) < count and drawn - last < 1000:
        text = next(texts)
        drawn += 1
        if text not in seen and text not in new:
            new[text] = None
            last = drawn
    return list(new), drawn


def page(text: str, width: int = 80) -> str:
    """The text for reading: its own line ends kept, longer lines wrapped, blank lines around it cut."""
    lines = (line if len(line) <= width else textwrap.fill(line, width, break_long_words=False) for line in text.split("\n"))
    return "\n".join(lines).strip("\n")
