"""Prepare a text of your own: read it, split it by position, train its tokenizer, write it as tokens.

    python data/text/prepare.py --source=mybook.txt                        a UTF-8 text
    python data/text/prepare.py --source=notes --tokenizer=bpe             a folder: its .txt and .md files, by name
    python data/text/prepare.py --source=stories.jsonl --field=story       JSON lines, one document a line

Files may be larger than memory. train.py calls `prepare` by itself when there is nothing prepared yet.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import TextSettings  # noqa: E402
from data.prepared import Prepared  # noqa: E402
from data.stream import DOCUMENT_END, prepare_stream  # noqa: E402
from data.tokenizers import check_unicode  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import read_text, sha256, sha256_of_file  # noqa: E402

PREPARED = HERE / "prepared"
TEXT_FILES = (".txt", ".md")
JSON_LINES = (".jsonl", ".ndjson")


def prepare(settings: TextSettings) -> Prepared:
    """The prepared text for these settings, from disk when it is there and whole, else made anew.

    Raises UserError for a source that is missing, empty, not UTF-8, or lacks the field.
    """
    if settings.source is None:
        raise UserError("--source is missing: a text file, a folder of .txt and .md files, or JSON lines, as in --source=mybook.txt")
    files = files_of(Path(settings.source))
    options = {"field": settings.field} if is_json_lines(files[0]) else {}
    if not options and settings.field != TextSettings.field:
        raise UserError(f"--field={settings.field} is for JSON lines ({' or '.join(JSON_LINES)}), and {settings.source} is none")
    return prepare_stream(
        "text",
        Path(settings.prepared_dir or PREPARED),
        settings.source,
        sha256(" ".join(sha256_of_file(path) for path in files).encode()),
        options,
        settings,
        lambda: joined(documents(files, settings.field)),
    )


def files_of(source: Path) -> list[Path]:
    """The files to read: the source itself, or the texts below it when it is a folder."""

    def give_up(error: OSError) -> None:
        place = f"--source={source}" if error.filename == str(source) else f"--source={source}: {error.filename}"
        raise UserError(f"{place}: {error.strerror}; a text file, a folder of them or JSON lines would do")

    try:
        if not source.is_dir():
            if source.exists() and not source.is_file():
                raise UserError(f"--source={source} is no regular file; save the text to one")
            with open(source, "rb"):
                pass
            if source.suffix.lower() == ".json":
                raise UserError(f"--source={source}: JSON lines (.jsonl, one object a line) would do, JSON as a whole is not read")
            return [source]
    except OSError as error:
        give_up(error)
    found = [Path(folder) / name for folder, _, names in os.walk(source, onerror=give_up) for name in names]
    files = sorted(path for path in found if path.suffix.lower() in TEXT_FILES)
    if not files:
        raise UserError(f"--source={source}: the folder holds no {' or '.join(TEXT_FILES)} file")
    return files


def is_json_lines(path: Path) -> bool:
    return path.suffix.lower() in JSON_LINES


def documents(files: list[Path], field: str) -> Iterator[Iterable[str]]:
    """The texts in these files, each in pieces."""
    for path in files:
        with open(path, "rb") as file:
            pieces = read_text(file, path)
            if is_json_lines(path):
                yield from json_lines(pieces, path, field)
            else:
                yield pieces


def joined(documents: Iterable[Iterable[str]]) -> Iterator[str]:
    """One text, in pieces, with DOCUMENT_END between those documents that are not empty."""
    before = ""
    for document in documents:
        begun = False
        for piece in filter(None, document):
            yield piece if begun else before + piece
            begun, before = True, DOCUMENT_END


def json_lines(pieces: Iterator[str], path: Path, field: str) -> Iterator[list[str]]:
    """The text in each line of a JSON lines file. Raises UserError for a line without it."""
    for number, line in enumerate(lines_of(pieces), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not JSON ({error}); one object a line would do") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: not an object; one object a line would do")
        if field not in record:
            raise UserError(f"{path}:{number}: no field {field!r}; choose one with --field; there are: {', '.join(record)}")
        text = record[field]
        if not isinstance(text, str):
            raise UserError(f"{path}:{number}: {field} is of type {type(text).__name__}, not a text")
        try:
            check_unicode(text)
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        yield [text.replace(DOCUMENT_END, "").replace("\r\n", "\n").replace("\r", "\n")]


def lines_of(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces of a text as its lines."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from lines
    yield rest


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(TextSettings, arguments, description=__doc__)))
