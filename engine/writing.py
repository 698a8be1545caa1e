"""From prompts to texts: what the decode loop writes as text, piece by piece or whole."""

import codecs
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import groupby, repeat
from typing import Any, NamedTuple, TypeVar

from config.settings import SamplingSettings
from data.tokenizers import BPETokenizer, Tokenizer
from engine.errors import UserError
from engine.generation import ROWS_AT_ONCE, Token, generate
from engine.sampling import Choice
from model import GPT

T = TypeVar("T")


class Piece(NamedTuple):
    """What a new token adds to a text."""

    token: Token
    text: str  # never half a character, and nothing that may turn out to be the beginning of a stop string


class Text(NamedTuple):
    """A finished continuation."""

    text: str  # without the prompt, and without the stop string
    tokens: list[Token]


class Writer:
    """Text from tokens as they come.

    stop_strings: the text ends before the first of them, wherever token borders are; but none counts that is complete within
    the first min_new_tokens tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), min_new_tokens: int = 0, before: Sequence[int] = ()) -> None:
        self.tokenizer, self.stop_strings, self.left = tokenizer, stop_strings, min_new_tokens
        self.bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self.last = list(before[-1:])  # the token before, on which the blank of an unknown word depends
        self.held = ""
        self.ended = False

    def add(self, token: int) -> str:
        """The text that is certain once this token is there. Sets `ended` when it completes a stop string."""
        self.left -= 1
        self.held += self._decoded(token)
        found = [place for place in map(self.held.find, self.stop_strings) if place >= 0] if self.left < 0 else []
        if found:
            self.ended = True
            certain, self.held = self.held[: min(found)], ""
        else:
            cut = len(self.held) - max((beginning(self.held, string) for string in self.stop_strings), default=0)
            certain, self.held = self.held[:cut], self.held[cut:]
        return certain

    def rest(self) -> str:
        """What was held back, when no more tokens come. Half a character becomes a �."""
        return "" if self.ended else self.held + self.bytes.decode(b"", final=True)

    def _decoded(self, token: int) -> str:
        if isinstance(self.tokenizer, BPETokenizer):
            return self.bytes.decode(self.tokenizer.decode_bytes([token]))
        before, self.last = self.last, [token]
        return self.tokenizer.decode(before + self.last)[len(self.tokenizer.decode(before)) :]


def beginning(text: str, string: str) -> int:
    """How many characters at the end of the text are the beginning of the string, but not all of it."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


def pieces(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Iterable[list[int]],
    max_new_tokens: int,
    choice: Choice,
    stop_strings: Sequence[str] = (),
    first_row: int = 0,
    **options: Any,
) -> Iterator[Piece]:
    """What `generate` writes, with its options, as text: the rows in turn. A row's last piece has the reason in `token.finish`."""
    writers: dict[int, Writer] = {}
    certain: dict[int, str] = {}

    def noted() -> Iterator[list[int]]:
        for row, prompt in enumerate(prompts, first_row):
            writers[row] = Writer(tokenizer, stop_strings, choice.min_new_tokens, prompt)
            yield prompt

    def ended(row: int, token: int) -> bool:
        certain[row] = writers[row].add(token)
        return writers[row].ended

    for token in generate(model, noted(), max_new_tokens, choice, ended=ended, first_row=first_row, **options):
        text = certain.pop(token.row, "")  # nothing, for a stop token
        if token.finish:
            text += writers.pop(token.row).rest()
        yield Piece(token, text)


def in_order(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces of one row after those of the other: at once those of the first that is not finished, the others when it is."""
    waiting: dict[int, list[Piece]] = {}
    current = None
    for piece in pieces:
        current = piece.token.row if current is None else current
        waiting.setdefault(piece.token.row, []).append(piece)
        while current in waiting:
            now = waiting.pop(current)
            yield from now
            if now[-1].token.finish:
                current += 1


def texts(pieces: Iterable[Piece]) -> Iterator[Text]:
    """Whole texts, one row after the other."""
    for _, row in groupby(in_order(pieces), key=lambda piece: piece.token.row):
        parts = list(row)
        yield Text("".join(part.text for part in parts), [part.token for part in parts])


def choice_of(settings: SamplingSettings, stop_token: int, banned: Sequence[int] = ()) -> Choice:
    """The choice that these settings, or more of the same names, describe."""
    known = {f.name: getattr(settings, f.name) for f in fields(Choice) if hasattr(settings, f.name)}
    return Choice(**known, stop_tokens=(stop_token,), banned=tuple(banned))


def continuations(model: GPT, tokenizer: Tokenizer, settings: SamplingSettings, opening: list[int]) -> Iterator[str]:
    """Texts without end, from row 0 on: what a model writes after `opening`, which its data name (`meta["opening"]`). Text i
    depends on the seed and i only; it ends at the boundary token, or after max_new_tokens."""
    choice = choice_of(settings, tokenizer.boundary_id)
    rows = min(settings.num_samples, ROWS_AT_ONCE)
    length = settings.max_new_tokens or model.config.block_size
    written = pieces(model, tokenizer, repeat(opening), length, choice, seed=settings.seed, rows_at_once=rows)
    return (text.text for text in texts(written))


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt. Raises UserError for one the tokenizer has no tokens for, or with the boundary in it."""
    ids = tokenizer.encode(prompt)
    if tokenizer.boundary_id in ids:
        boundary = tokenizer.decode([tokenizer.boundary_id])
        raise UserError(f"prompt {prompt!r}: {boundary} marks where a text ends; a prompt without it would do")
    return ids


def only_new(texts: Iterator[T], seen: set[str], count: int, written: Callable[[T], str] = str) -> tuple[list[T], int]:
    """The first `count` distinct texts that are not in `seen`, and how many it took to find them. `written`: what a text says.

    Gives up, with fewer, after 1,000 texts in a row that brought none: a model may know its training list by heart.
    """
    new: dict[str, T] = {}
    drawn, last = 0, 0
    while len(new) < count and drawn - last < 1000:
        text = next(texts)
        drawn += 1
        if written(text) not in seen and written(text) not in new:
            new[written(text)] = text
            last = drawn
    return list(new.values()), drawn


def page(text: str, width: int = 80) -> str:
    """The text for reading: its own line ends kept, longer lines wrapped, blank lines around it cut."""
    lines = (line if len(line) <= width else textwrap.fill(line, width, break_long_words=False) for line in text.split("\n"))
    return "\n".join(lines).strip("\n")
