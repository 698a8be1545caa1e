"""Prepare the Odyssey, in Samuel Butler's prose (Project Gutenberg eBook 1727): get it, cut it out, write it as tokens.

    python data/odyssey/prepare.py                          downloads it, once, to data/odyssey/odyssey.txt
    python data/odyssey/prepare.py --source=pg1727.txt      the file from Project Gutenberg, wherever you have it
    python data/odyssey/prepare.py --tokenizer=word --vocab_size=4096

The environment variable ODYSSEY_TXT may name the file, too. train.py calls `prepare` by itself when there is nothing prepared yet.
"""

import io
import os
import re
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import OdysseySettings  # noqa: E402
from data.prepared import Prepared  # noqa: E402
from data.stream import prepare_stream  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import read_text, replacing, sha256, shown  # noqa: E402

PREPARED = HERE / "prepared"
BOOK = HERE / "odyssey.txt"
ADDRESSES = ("https://www.gutenberg.org/cache/epub/1727/pg1727.txt", "https://www.gutenberg.org/files/1727/1727-0.txt")
TIMEOUT = 30  # seconds without a byte
PAUSES = (0, 2, 8)  # seconds before each try
BEGIN = re.compile(r"^\s*\*\*\* ?START OF TH[EI]S? PROJECT GUTENBERG EBOOK.*$", re.MULTILINE)
END = re.compile(r"^\s*\*\*\* ?END OF TH[EI]S? PROJECT GUTENBERG EBOOK", re.MULTILINE)
FOOTNOTES = re.compile(r"^FOOTNOTES:?$", re.MULTILINE)  # in the table of contents it is set in


def prepare(settings: OdysseySettings) -> Prepared:
    """The prepared book for these settings, from disk when it is there and whole, else made anew.

    Raises UserError for a book that can neither be found nor fetched, and for a file that is not it.
    """
    source, content = find_book(settings.source)
    return prepare_stream(
        "odyssey",
        Path(settings.prepared_dir or PREPARED),
        source,
        sha256(content),
        {"footnotes": settings.footnotes},
        settings,
        lambda: [narrative("".join(read_text(io.BytesIO(content), source)), source, settings.footnotes)],
    )


def find_book(source: str | None) -> tuple[str, bytes]:
    """Where the book is, and its bytes: from --source, from ODYSSEY_TXT, from this folder, else from Project Gutenberg."""
    for name, path in (("--source", source), ("ODYSSEY_TXT", os.environ.get("ODYSSEY_TXT")), ("", BOOK if BOOK.exists() else None)):
        if path:
            try:
                return shown(Path(path)), Path(path).read_bytes()
            except OSError as error:
                place = f"{name}={path}" if name else shown(BOOK)
                raise UserError(f"{place}: {error.strerror}; Project Gutenberg's eBook 1727 as plain text would do") from None
    print("odyssey: downloading Project Gutenberg's eBook 1727")
    content = download()
    with replacing(BOOK) as temporary:
        temporary.write_bytes(content)
    return shown(BOOK), content


def download() -> bytes:
    """The book from the first address that gives it whole. Raises UserError when none does."""
    for pause in PAUSES:
        time.sleep(pause)
        for address in ADDRESSES:
            try:
                content = fetch(address)
                narrative("".join(read_text(io.BytesIO(content), address)), address, footnotes=True)
                return content
            except (OSError, HTTPException, UserError) as error:
                reason = error if isinstance(error, UserError) else f"{address}: {getattr(error, 'reason', error)}"
    raise UserError(
        f"the Odyssey cannot be downloaded ({reason}); get {ADDRESSES[0]} some other way and save it as {shown(BOOK)}, "
        "or give its place with --source"
    )


def fetch(address: str) -> bytes:
    """What is at this address, with a progress bar. Raises OSError or HTTPException."""
    request = urllib.request.Request(address, headers={"User-Agent": "rhapsode"})
    content = bytearray()
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        size = int(answer.headers.get("Content-Length") or 0)
        with tqdm(total=size or None, unit="B", unit_scale=True, desc="the Odyssey", disable=None, leave=False) as bar:
            while piece := answer.read(2**16):
                content += piece
                bar.update(len(piece))
    if size and len(content) != size:
        raise OSError(f"the download broke off after {len(content):,} of {size:,} bytes")
    return bytes(content)


def narrative(text: str, source: str, footnotes: bool) -> str:
    """The book without Project Gutenberg's header and licence and, unless wanted, the translator's footnotes at its end."""
    begin, end = BEGIN.search(text), END.search(text)
    if not begin or not end:
        missing = "begins" if not begin else "ends"
        raise UserError(f"{source} is not Project Gutenberg's Odyssey: the line is missing with which the book {missing} (*** ... ***)")
    text = text[begin.end() : end.start()]
    notes = [match.start() for match in FOOTNOTES.finditer(text)]
    if notes and not footnotes:
        text = text[: notes[-1]]
    return text.strip() + "\n"


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(OdysseySettings, arguments, description=__doc__)))
