"""A long text to prepared tokens: copied clean, split by position, its tokenizer trained, encoded piece by piece.

Nothing here holds the whole text, which may be larger than memory. Several documents are one text with a NUL character
between them. In the tokens the boundary stands for it, and begins each split.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from config.settings import TokenizerSettings
from data import prepared, tokenizers
from engine.errors import UserError
from engine.files import shown

DOCUMENT_END = "\0"
PIECE = 2**16  # bytes of text read at once
UNITS = {"char": "characters", "word": "words and marks", "bpe": "byte pairs", "gpt2": "of GPT-2's byte pairs"}


def prepare_stream(
    dataset: str,
    root: Path,
    source: str,
    source_sha256: str,
    options: dict,
    settings: TokenizerSettings,
    read: Callable[[], Iterable[str]],
) -> prepared.Prepared:
    """The prepared tokens of the text that `read()` yields in pieces, from disk when they are there and whole, else made anew.

    source: where the text is from, for messages. options: what beside the source and the tokenizer decides about the tokens.
    Raises UserError for a text too short to be split into three.
    """
    options = {**options, "tokenizer": settings.tokenizer}
    if settings.tokenizer in ("word", "bpe"):
        options.update(vocab_size=settings.vocab_size, min_count=settings.min_count)
    folder = root / prepared.key(source_sha256, options)
    if data := prepared.reuse(folder, dataset, source):
        return data
    with prepared.scratch(root) as place, open(place / "text", "w+b") as file:
        documents = write_clean(file, read())
        parts = split(file, source)
        training_text = (document for text in pieces(file, *parts["train"]) for document in text.split(DOCUMENT_END))
        tokenizer = tokenizers.train_tokenizer(settings.tokenizer, training_text, settings.vocab_size, settings.min_count)
        sizes = " / ".join(f"{stop - start:,}" for start, stop in parts.values())
        meta = {
            "dataset": dataset,
            "kind": "stream",
            "source": source,
            "source_sha256": source_sha256,
            "options": options,
            "opening": opening(tokenizer, documents),
            "documents": documents,
            "bytes": {part: stop - start for part, (start, stop) in parts.items()},
            "summary": f"{documents:,} document{'s' * (documents > 1)}, {sizes} bytes to train / validate / test, "
            f"in {tokenizer.vocab_size:,} {UNITS[settings.tokenizer]}",
        }
        prepared.save(folder, {part: encode(pieces(file, *limits), tokenizer) for part, limits in parts.items()}, tokenizer, meta)
    data = prepared.load(folder)
    print(f"{dataset}: {meta['summary']} (written to {shown(folder)})")
    for part, found in data.meta["splits"].items():
        if found["unknown"]:
            share = found["unknown"] / found["tokens"]
            print(f"{dataset}: {found['unknown']:,} of the {found['tokens']:,} tokens of the {part} part are unknown ({share:.2%})")
    return data


def opening(tokenizer: tokenizers.Tokenizer, documents: int) -> list[int]:
    """What a model of this text reads before it writes one: the boundary. In a text of one document it met that only once,
    so there it reads a blank line, after which a paragraph begins."""
    if documents == 1:
        try:
            return tokenizer.encode("\n") * 2  # one by one, as before a word: "\n\n" together may be another token
        except UserError:
            pass  # a text without line ends
    return [tokenizer.boundary_id]


def write_clean(file: BinaryIO, texts: Iterable[str]) -> int:
    """Write the text as UTF-8; return the number of documents in it."""
    documents = 1
    for text in texts:
        documents += text.count(DOCUMENT_END)
        file.write(text.encode("utf-8"))
    return documents


def split(file: BinaryIO, source: str) -> dict[str, tuple[int, int]]:
    """Byte ranges of the first 90 %, the next 5 % and the last 5 % of the text, their borders moved to natural ones."""
    size = file.seek(0, 2)
    borders = [0, *(border(file, int(size * share), min(2**20, size // 40)) for share in (0.90, 0.95)), size]
    if sorted(set(borders)) != borders:
        raise UserError(f"{source} has {size} bytes of text, too few for a training, a validation and a test part; 1,000 would do")
    return {part: (borders[i], borders[i + 1]) for i, part in enumerate(prepared.SPLITS)}


def border(file: BinaryIO, middle: int, reach: int) -> int:
    """The place to cut near the byte `middle`, at most `reach` away: where a document ends, else a paragraph, a line, a word or
    a character. Of several the first after the middle, else the last before it."""
    file.seek(middle - reach)
    around = file.read(2 * reach)
    for mark in (DOCUMENT_END.encode(), b"\n\n", b"\n", b" "):
        place = around.find(mark, reach)
        if place < 0:
            place = around.rfind(mark)
        if place >= 0:
            return middle - reach + place + len(mark)
    begins = (i for i in range(reach, 2 * reach) if around[i] & 0xC0 != 0x80)  # of a character in UTF-8
    return middle - reach + next(begins, 2 * reach)


def pieces(file: BinaryIO, start: int, stop: int) -> Iterator[str]:
    """The text between two byte offsets, piece by piece, each but the last ending just before the blank or line end after a
    word: no token of a word or byte-pair tokenizer spans such a cut. (Where none is near, a cut may be anywhere.)"""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    while start < stop:
        file.seek(start)  # each time: several may read from the same file
        data = file.read(min(PIECE, stop - start))
        start += len(data)
        rest += decoder.decode(data)
        word_end = re.match(r"(?s).*\S(?=[ \n])", rest)  # the last one
        cut = word_end.end() if word_end and start < stop else len(rest)
        yield rest[:cut]
        rest = rest[cut:]


def encode(texts: Iterable[str], tokenizer: tokenizers.Tokenizer) -> Iterator[np.ndarray]:
    """The ids of a split, piece by piece: the boundary, then the text, in which it also stands between documents."""
    boundary = np.array([tokenizer.boundary_id])
    yield boundary
    for text in texts:
        for i, document in enumerate(text.split(DOCUMENT_END)):
            if i > 0:
                yield boundary
            yield tokenizer.encode_all(document)
