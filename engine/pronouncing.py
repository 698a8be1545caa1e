"""How words are said, by a model that reads letters and writes sounds; and how often it is wrong."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from config.settings import SamplingSettings, Settings
from data.examples import Make, documents_of, lengths_of, pairs
from data.prepared import Prepared
from data.tokenizers import PairTokenizer
from engine.errors import UserError
from engine.tables import table
from zoo.seq2seq import Seq2Seq

WORDS_AT_ONCE = 256
BEAMS = 5
CHANCE = ("num_samples", "temperature", "top_k", "top_p", "min_p", "seed")
KNOWS = ("beams", *CHANCE)
EXAMPLE = "telemachus"


class Pronunciation(NamedTuple):
    """One way to say a word."""

    sounds: tuple[str, ...]
    logprob: float  # natural logarithm of its probability in the model


def examples(split: str, data: Prepared, settings: Settings) -> tuple[np.ndarray, Make]:
    """As engine/tasks.py has it. Raises UserError for words that do not fit into the model."""
    if data.meta["longest"] >= settings.block_size:
        raise UserError(
            f"block_size={settings.block_size} is too small for the longest word; block_size={data.meta['longest'] + 1} would fit"
        )
    return pairs(data.tokens[split], data.tokenizer.boundary_id, settings.token_noise, data.tokenizer.vocab_size)


def samples(model: Seq2Seq, data: Prepared, settings: Settings, count: int) -> list[str]:
    """The likeliest pronunciations found greedily for the first validation words."""
    words = list(listed(data, "val", count))
    return [f"{word} {' '.join(said[0].sounds)}" for word, said in zip(words, pronounce(model, data.tokenizer, words, 1), strict=True)]


def measure(model: Seq2Seq, data: Prepared, split: str) -> dict[str, Any]:
    """The share of words, and of sounds, that are wrong, found greedily and with five beams. A word is right if what is said is
    any of its listed pronunciations; sounds are counted against the nearest of them."""
    known = listed(data, split)
    found = {}
    for name, beams in (("greedy", 1), (f"beam {BEAMS}", BEAMS)):
        said = [ways[0].sounds for ways in pronounce(model, data.tokenizer, list(known), beams)]
        wrong = [nearest_of(sounds, right) for sounds, right in zip(said, known.values(), strict=True)]
        found[name] = {
            "word_error_rate": sum(edits > 0 for edits, _ in wrong) / len(wrong),
            "phoneme_error_rate": sum(edits for edits, _ in wrong) / sum(length for _, length in wrong),
        }
    return {"words": len(known), **found}


def report(measured: dict[str, dict[str, Any]]) -> str:
    """A row for each split and way to search."""
    rows = [
        (split, f"{figures['words']:,}", name, f"{rates['word_error_rate']:.1%}", f"{rates['phoneme_error_rate']:.1%}")
        for split, figures in measured.items()
        for name, rates in figures.items()
        if name != "words"
    ]
    return table(("split", "words", "search", "words wrong", "phonemes wrong"), rows)


def answers(
    model: Seq2Seq, tokenizer: PairTokenizer, meta: dict[str, Any], prompts: Sequence[str], settings: SamplingSettings
) -> Iterator[tuple[str, dict[str, Any]]]:
    """How each word is said: the likeliest ways, best first, or, if an option of chance is given, ways drawn by chance."""
    defaults = type(settings)()
    drawing = settings.beams is None and any(getattr(settings, name) != getattr(defaults, name) for name in CHANCE)
    for word in prompts:
        found = drawn(model, tokenizer, word, settings) if drawing else pronounce(model, tokenizer, [word], settings.beams or BEAMS)[0]
        for way in found:
            text = " ".join(way.sounds)
            line = f"{word}  {text}  (probability {math.exp(way.logprob):.1%}, log-probability {way.logprob:.4f})"
            yield line, {"prompt": word, "text": text, "logprob": way.logprob}


def drawn(model: Seq2Seq, tokenizer: PairTokenizer, word: str, settings: SamplingSettings) -> list[Pronunciation]:
    """num_samples ways to say a word, drawn by chance."""
    size = model.config.block_size
    source = padded([source_ids(word, tokenizer, size)] * settings.num_samples).to(model.wte.weight.device)
    filters = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    tokens = model.generate(source, size, *filters, settings.seed, end=tokenizer.boundary_id)
    chances = model.log_probabilities(source, tokens)
    return [Pronunciation(sounds_of(way, tokenizer), chance) for way, chance in zip(tokens.tolist(), chances.tolist(), strict=True)]


def listed(data: Prepared, split: str, count: int | None = None) -> dict[str, list[tuple[str, ...]]]:
    """The first `count` words of a split, each with its pronunciations."""
    tokenizer: PairTokenizer = data.tokenizer
    documents = documents_of(data.tokens[split], tokenizer.boundary_id)
    lengths = lengths_of(documents) - 1  # without the boundary
    words: dict[str, list[tuple[str, ...]]] = {}
    for i in range(0, len(documents), 2):
        word = tokenizer.source.decode(documents[i, : lengths[i]])
        if word not in words and len(words) == count:
            break
        words.setdefault(word, []).append(tuple(tokenizer.target.symbols[j] for j in documents[i + 1, : lengths[i + 1]]))
    return words


def pronounce(model: Seq2Seq, tokenizer: PairTokenizer, words: Sequence[str], beams: int = BEAMS) -> list[list[Pronunciation]]:
    """The likeliest pronunciations of each word that `beams` beams find, best first. One beam is the greedy search.

    Raises UserError for a word with an unknown character, and for one that does not fit into the model.
    """
    ids = [source_ids(word, tokenizer, model.config.block_size) for word in words]
    found: list[list[Pronunciation]] = [[] for _ in words]
    order = sorted(range(len(words)), key=lambda i: len(ids[i]))  # words of about one length side by side
    for first in range(0, len(order), WORDS_AT_ONCE):
        some = order[first : first + WORDS_AT_ONCE]
        source = padded([ids[i] for i in some]).to(model.wte.weight.device)
        tokens, logprobs = model.beam_search(source, beams, model.config.block_size, length_penalty=0.0, end=tokenizer.boundary_id)
        for i, row, chances in zip(some, tokens.tolist(), logprobs.tolist(), strict=True):
            found[i] = [
                Pronunciation(sounds_of(way, tokenizer), chance) for way, chance in zip(row, chances, strict=True) if chance > -math.inf
            ]
    return found


def source_ids(word: str, tokenizer: PairTokenizer, block_size: int) -> list[int]:
    """What the model reads. Raises UserError for what it cannot read."""
    ids = tokenizer.source.encode(word)
    if not ids or tokenizer.boundary_id in ids:
        raise UserError(f"{word!r} is no word; letters would do")
    if len(ids) >= block_size:
        raise UserError(f"{word[:40]!r} has {len(ids)} letters; this model reads up to {block_size - 1}")
    return [*ids, tokenizer.boundary_id]


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """(B, longest) int64, -1 behind each row."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows])


def sounds_of(ids: Sequence[int], tokenizer: PairTokenizer) -> tuple[str, ...]:
    """What these ids say, up to the end."""
    return tuple(tokenizer.target.symbols[i] for i in ids if i >= 0 and i != tokenizer.boundary_id)


def nearest_of(said: Sequence[str], right: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The edits to the nearest of some pronunciations, and its length."""
    return min(((edit_distance(said, sounds), len(sounds)) for sounds in right), key=lambda pair: pair[0])


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest symbols to insert, leave out or replace that make b of a (Levenshtein 1966)."""
    row = list(range(len(b) + 1))  # from what is read of a so far to each beginning of b
    for i, left in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(diagonal + (left != right), row[j] + 1, row[j - 1] + 1)
    return row[-1]
