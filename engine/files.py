"""Files that are whole or not there: written under a temporary name in the same folder, flushed, moved into place."""

import codecs
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import UserError


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give errors such as a full disk, which come without a name, that of the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; move it to `path` when the block ends well, remove it when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named(path):
            yield temporary
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def output_file(option: str, name: str | None, otherwise: Path) -> Path:
    """The file that --option=name asks for, or that to take without it. Raises UserError when it cannot be one."""
    path = otherwise if name is None else Path(name)
    if name is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {path.parent}: {error.strerror}; choose another place with --{option}") from None
    elif not path.parent.is_dir():
        raise UserError(f"--{option}={name}: there is no folder {path.parent}; make it, or leave the option out for {otherwise}")
    if path.suffix != otherwise.suffix or (path.exists() and not path.is_file()):  # it would be replaced, whatever it is
        raise UserError(f"--{option}={name}: only a {otherwise.suffix} file can be written; {path.with_name(otherwise.name)} would do")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write to {path.parent}; choose another place with --{option}")
    return path


def filled_in(template: Path, data: dict) -> str:
    """A page of HTML with the data in the place that its template has for them: an element of JSON, which no text in the data can end."""
    written = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return template.read_text(encoding="utf-8").replace("{{data}}", written)


def write_text(path: Path, text: str) -> None:
    """Replace the file by `text`, in UTF-8 with \\n line ends on every system."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def append_text(path: Path, text: str) -> None:
    """Add `text` to the file, in the same form."""
    with named(path), open(path, "ab") as file:
        file.write(text.encode("utf-8"))


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path | str) -> str:
    """The checksum of a file, read piece by piece: it may be larger than memory."""
    checksum = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            checksum.update(piece)
    return checksum.hexdigest()


def read_text(file: BinaryIO, name: Path | str) -> Iterator[str]:
    """The UTF-8 text in a file, piece by piece, with a BOM or without; every kind of line end becomes \\n.

    Raises UserError, with the line, for what is no UTF-8 text.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    line = 1
    while True:
        data = file.read(2**20)
        if b"\0" in data:
            line += data[: data.index(b"\0")].count(b"\n")
            raise UserError(f"{name} is binary (or UTF-16): it has a zero byte in line {line}; a UTF-8 text would do")
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise UserError(f"{name} is not UTF-8: byte {error.object[error.start]:#04x} in line {line}; save it as UTF-8") from None
        line += text.count("\n")
        yield text
        if not data:
            return


def shown(path: Path) -> str:
    """The path as a message should give it: from the current folder when it lies below that."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
