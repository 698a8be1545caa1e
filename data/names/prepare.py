"""Prepare a list of names: read it, clean it, split it, write it as tokens.

    python data/names/prepare.py                            the bundled list, US baby names of 2022
    python data/names/prepare.py --source=yob1990.txt       a year as the Social Security Administration publishes it
    python data/names/prepare.py --source=names.zip --year=1990
    python data/names/prepare.py --source=cities.txt        any text with one name a line

train.py calls `prepare` by itself when there is nothing prepared yet for its source and options.
"""

import io
import re
import sys
import unicodedata
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import NamesSettings  # noqa: E402
from data import prepared  # noqa: E402
from data.tokenizers import BOUNDARY, CharTokenizer, encode_documents  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import read_text, sha256, shown  # noqa: E402

PREPARED = HERE / "prepared"
BUNDLED = HERE / "us_names_2022.csv"
SSA_LINE = re.compile(r"[^,]+,[MF],\d+")  # Name,Sex,Count


def prepare(settings: NamesSettings) -> prepared.Prepared:
    """The prepared names for these settings, from disk when they are there and whole, else made anew. Says which.

    Raises UserError for a source that cannot be read or holds too few names.
    """
    source = Path(settings.source) if settings.source else BUNDLED
    content = read_source(source, settings.year)
    options = {"split_seed": settings.split_seed}
    folder = Path(settings.prepared_dir or PREPARED) / prepared.key(sha256(content), options)
    shown_source = settings.source or f"data/names/{BUNDLED.name}"
    if data := prepared.reuse(folder, "names", shown_source):
        return data
    lines = "".join(read_text(io.BytesIO(content), source)).splitlines()
    names, dropped = clean([line.strip() for line in lines])
    if len(names) < 3:
        raise UserError(f"{source} has {len(names)} distinct names; at least 3 are needed, for training, validation and test")
    splits = split(sorted(names), settings.split_seed)
    # The alphabet is that of the whole list: a letter only the test names have gets a token too, though none learns it.
    tokenizer = CharTokenizer("".join(names), fold=True)
    tokens = {part: [encode_documents(part_names, tokenizer)] for part, part_names in splits.items()}
    summary = (
        f"{len(names):,} distinct names of {tokenizer.vocab_size - 1} letters, "
        + " / ".join(f"{len(part_names):,}" for part_names in splits.values())
        + " to train / validate / test"
    )
    meta = {
        "dataset": "names",
        "kind": "rows",
        "source": shown_source,
        "source_sha256": sha256(content),
        "options": {**options, "year": settings.year},
        "opening": [tokenizer.boundary_id],
        "documents": {part: len(part_names) for part, part_names in splits.items()},
        "longest": max(map(len, names)),
        "dropped": dropped,
        "vocabulary": tokenizer.characters,
        "summary": summary,
    }
    prepared.save(folder, tokens, tokenizer, meta)
    print(f"names: read {sum(dropped.values()) + len(names):,} lines of {shown(source)}")
    print(f"names: dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items()) or 'none'}")
    print(f"names: {summary} (written to {shown(folder)})")
    return prepared.load(folder)


def read_source(source: Path, year: int | None) -> bytes:
    """The bytes of the list; with a names.zip, those of `year` in it."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise UserError(
            f"--source={source}: {error.strerror}; a CSV, yobYYYY.txt, names.zip or a text with one name a line would do"
        ) from None
    if not content.startswith(b"PK\x03\x04"):
        if year is not None:
            raise UserError(f"--year={year} chooses from a names.zip, and {source} is not one")
        return content
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            years = sorted(int(m[1]) for m in (re.fullmatch(r"yob(\d{4})\.txt", name) for name in archive.namelist()) if m)
            if not years:
                raise UserError(f"{source} holds no yobYYYY.txt; the SSA's names.zip does")
            if year not in years:
                raise UserError(f"{source} holds the years {years[0]} to {years[-1]}; choose one with --year={years[-1]}")
            return archive.read(f"yob{year}.txt")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise UserError(f"{source} is a damaged zip file ({error}); download it again") from None


def clean(lines: list[str]) -> tuple[set[str], dict[str, int]]:
    """The distinct names of a CSV with the header name,sex,births, of SSA lines, or of plain lines; and what was dropped, by reason."""
    dropped: Counter[str] = Counter()
    filled = [line for line in lines if line]
    if len(filled) < len(lines):
        dropped["blank lines"] = len(lines) - len(filled)
    if filled and filled[0].lower().split(",")[0].strip() == "name":
        filled = filled[1:]
        dropped["header"] = 1
        has_columns = True
    else:
        has_columns = sum(bool(SSA_LINE.fullmatch(line)) for line in filled) > len(filled) / 2
    names: set[str] = set()
    for line in filled:
        name = line.split(",")[0].strip() if has_columns else line
        name = unicodedata.normalize("NFC", name.lower())
        reason = why_not(name, names)
        if reason:
            dropped[reason] += 1
        else:
            names.add(name)
    return names, dict(dropped)


def why_not(name: str, names: set[str]) -> str | None:
    """The reason to leave a name out, if there is one."""
    if not name:
        return "without a name"
    if BOUNDARY in name:
        return f"with the boundary mark {BOUNDARY}"
    if re.search(r"[,;\t\"]", name):
        return "with a comma, semicolon, tab or quote: not a name, and not a line of a CSV with the header name,sex,births"
    if not name.isprintable():
        return "with control characters"
    return "seen before" if name in names else None


def split(names: list[str], seed: int) -> dict[str, list[str]]:
    """80 / 10 / 10 by chance, at least one each. Distinct names, so that none is in two parts."""
    order = np.random.default_rng(seed).permutation(len(names))
    held_out = max(1, len(names) // 10)
    parts = {"train": order[2 * held_out :], "val": order[:held_out], "test": order[held_out : 2 * held_out]}
    return {part: [names[i] for i in chosen] for part, chosen in parts.items()}


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(NamesSettings, arguments, description=__doc__)))
