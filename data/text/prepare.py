"""Prepare a text of your own: read it, split it by position, train its tokenizer, write it as tokens.

    python data/text/prepare.py --source=mybook.txt                        a UTF-8 text
    python data/text/prepare.py --source=notes --tokenizer=bpe             a folder: its .txt and .md files, by name
    python data/text/prepare.py --source=stories.jsonl --field=story       JSON lines, one document a line

Files may be larger than memory. train.py calls `prepare` by itself when there is nothing prepared yet.
"""

import json
import sys
from collections.abc import Iterator
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
from engine.files import read_text, sha256_of_files  # noqa: E402

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
    options = {"field": settings.field} if files[0].suffix in JSON_LINES else {}
    return prepare_stream(
        "text",
        Path(settings.prepared_dir or PREPARED),
        settings.source,
        sha256_of_files(files),
        {**options, "files": len(files)},
        settings,
        lambda: documents(files, settings.field),
    )


def files_of(source: Path) -> list[Path]:
    """The files to read: the source itself, or the texts below it when it is a folder."""
    try:
        if not source.is_dir():
            with open(source, "rb"):
                return [source]
        files = [path for path in sorted(source.rglob("*")) if path.suffix in TEXT_FILES and path.is_file()]
    except OSError as error:
        raise UserError(f"--source={source}: {error.strerror}; a text file, a folder of them or JSON lines would do") from None
    if not files:
        raise UserError(f"--source={source}: the folder holds no {' or '.join(TEXT_FILES)} file")
    return files


def documents(files: list[Path], field: str) -> Iterator[str]:
    """The text of all files, piece by piece, with DOCUMENT_END between documents. Raises UserError when there is none."""
    some = False
    for path in files:
        with open(path, "rb") as file:
            pieces = read_text(file, path)
            for document in json_lines(pieces, path, field) if path.suffix in JSON_LINES else [pieces]:
                begun = False
                for piece in filter(None, document):
                    if some and not begun:
                        yield DOCUMENT_END
                    some = begun = True
                    yield piece
    if not some:
        raise UserError(f"--source: there is no text in {', '.join(map(str, files[:3]))}")


def json_lines(pieces: Iterator[str], path: Path, field: str) -> Iterator[list[str]]:
    """The text in each line of a JSON lines file. Raises UserError for a line without it."""
    for number, line in enumerate(lines_of(pieces), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record[field]
            if not isinstance(text, str):
                raise UserError(f"{path}:{number}: {field} is of type {type(text).__name__}, not a text")
            check_unicode(text)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error}); one object a line would do") from None
        except (KeyError, TypeError):
            there = list(record) if isinstance(record, dict) else []
            raise UserError(f"{path}:{number}: no field {field!r}; choose one with --field; there are: {', '.join(there)}") from None
        yield [text.replace(DOCUMENT_END, "").replace("\r\n", "\n")]


def lines_of(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces of a text as its lines."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from lines
    yield rest


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(TextSettings, arguments, description=__doc__)))
