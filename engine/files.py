"""Files that are whole or not there: written under a temporary name in the same folder, flushed, moved into place."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; move it to `path` when the block ends well, remove it when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace the file by `text`, in UTF-8 with \\n line ends on every system."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def shown(path: Path) -> str:
    """The path as a message should give it: from the current folder when it lies below that."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
