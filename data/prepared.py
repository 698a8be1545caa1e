"""Prepared data on disk: one folder per source and options, `train.bin`, `val.bin`, `test.bin`, `tokenizer.json`, `meta.json`.

A .bin file is token ids and nothing else (uint16, or uint32 for vocabularies beyond 65,536); meta.json says how many, of what
type, and with which checksum. What is no token, such as pixels and classes, lies in arrays beside them, `train.classes.npy`.
The folder's name is a hash of all that went in, so changed inputs lead to another folder.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import tokenizers
from engine.errors import UserError
from engine.files import sha256, sha256_of_file, shown, write_text

FORMAT = 3  # goes into every key: raise it when the format or a prepare.py changes what it writes
SPLITS = ("train", "val", "test")


@dataclass
class Prepared:
    """An open folder of prepared data."""

    folder: Path
    meta: dict  # kind ("rows", "stream", "pairs", "classes"), opening (ids before a text), splits, options, source, what else there is
    tokenizer: tokenizers.Tokenizer | None  # None: there are no tokens
    tokens: dict[str, np.ndarray]  # split -> ids, memory-mapped
    arrays: dict[str, dict[str, np.ndarray]]  # split -> name -> what else there is, memory-mapped


def key(source_sha256: str, options: dict) -> str:
    """The folder name for these inputs."""
    inputs = json.dumps([FORMAT, source_sha256, options], sort_keys=True)
    return sha256(inputs.encode("utf-8"))[:12]


def reuse(folder: Path, dataset: str, source: str) -> Prepared | None:
    """The prepared data in `folder`. None when there are none; damaged ones are removed, too. Says which."""
    if not folder.exists():
        return None
    try:
        found = load(folder)
    except UserError as error:
        print(f"{dataset}: preparing again: {error}")
        shutil.rmtree(folder)
        return None
    found.meta["source"] = source  # the same bytes may have had another name then
    print(f"{dataset}: {found.meta['summary']} (already in {shown(folder)})")
    return found


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A temporary folder in `root`, removed at the end. Raises UserError where none can be made."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=root))
    except OSError as error:
        raise UserError(f"cannot write prepared data to {root}: {error.strerror}; choose another place with --prepared_dir") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(
    folder: Path,
    tokens: dict[str, Iterable[np.ndarray]],
    tokenizer: tokenizers.Tokenizer | None,
    meta: dict,
    arrays: dict[str, dict[str, np.ndarray]] | None = None,
) -> None:
    """Write a folder whole or not at all. One that is there already is left as it is.

    tokens: the ids of each split, in as many pieces as suit: only one is in memory at a time. arrays: split -> name -> array.
    """
    vocab_size = tokenizer.vocab_size if tokenizer else 0
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    with scratch(folder.parent) as place:
        temporary = place / folder.name
        temporary.mkdir()
        splits = {}
        for name in tokens:
            count, unknown, checksum = 0, 0, hashlib.sha256()
            with open(temporary / f"{name}.bin", "wb") as file:
                for piece in tokens[name]:
                    ids = np.ascontiguousarray(piece, dtype=dtype)
                    file.write(ids.data)
                    checksum.update(ids.data)
                    count += len(ids)
                    unknown += 0 if tokenizer.unknown_id is None else int((ids == tokenizer.unknown_id).sum())
            splits[name] = {"tokens": count, "unknown": unknown, "dtype": dtype.name, "sha256": checksum.hexdigest()}
        written = {**meta, "vocab_size": vocab_size, "splits": splits, "arrays": {}}
        for name, array in ((f"{split}.{name}.npy", array) for split, named in (arrays or {}).items() for name, array in named.items()):
            np.save(temporary / name, array, allow_pickle=False)
            written["arrays"][name] = sha256_of_file(temporary / name)
        if tokenizer:
            tokenizer.save(temporary / "tokenizer.json")
            written["tokenizer_sha256"] = sha256_of_file(temporary / "tokenizer.json")
        written["meta_sha256"] = meta_checksum(written)
        write_text(temporary / "meta.json", json.dumps(written, indent=1) + "\n")
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():  # else another process has just prepared the same
                raise


def meta_checksum(meta: dict) -> str:
    """The checksum of everything in meta.json but itself."""
    rest = {name: value for name, value in meta.items() if name != "meta_sha256"}
    return sha256(json.dumps(rest, sort_keys=True).encode("utf-8"))


def load(folder: Path) -> Prepared:
    """Open a prepared folder. Raises UserError when a file is missing, truncated or was changed since it was written."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["meta_sha256"] != meta_checksum(meta):
            raise UserError(f"{shown(folder)}/meta.json is not what was written there")
        tokenizer = None
        if "tokenizer_sha256" in meta:
            if meta["tokenizer_sha256"] != sha256_of_file(folder / "tokenizer.json"):
                raise UserError(f"{shown(folder)}/tokenizer.json is not what was written there")
            tokenizer = tokenizers.load(folder / "tokenizer.json")
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for name, checksum in meta.get("arrays", {}).items():
            if sha256_of_file(folder / name) != checksum:
                raise UserError(f"{shown(folder / name)} is not what was written there")
            split, inner, _ = name.split(".")
            arrays.setdefault(split, {})[inner] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        tokens = {}
        for name, expected in meta["splits"].items():
            ids = np.memmap(folder / f"{name}.bin", dtype=expected["dtype"], mode="r")
            if len(ids) != expected["tokens"] or sha256_of_file(ids.filename) != expected["sha256"]:
                raise UserError(f"{shown(folder / name)}.bin is not what was written there")
            tokens[name] = ids
        return Prepared(folder, meta, tokenizer, tokens, arrays)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{shown(folder)} holds no whole prepared data ({type(error).__name__}: {error})") from None
