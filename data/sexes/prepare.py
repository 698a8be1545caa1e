"""Prepare a list of names with the births of each sex: how often each name was given to a girl, and how often to a boy.

    python data/sexes/prepare.py                            the list bundled with data/names, US baby names of 2022
    python data/sexes/prepare.py --source=yob1990.txt       a year as the Social Security Administration publishes it
    python data/sexes/prepare.py --source=names.zip --year=1990

The parts are those of data/names: what a model has learned of the names of one, it may use for the other.
train.py calls `prepare` by itself when there is nothing prepared yet for its source and options.
"""

import io
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import SexesSettings  # noqa: E402
from data import prepared  # noqa: E402
from data.names.prepare import BUNDLED, SSA_LINE, clean, read_source, split  # noqa: E402
from data.tokenizers import CharTokenizer, encode_documents  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import read_text, sha256, shown  # noqa: E402

PREPARED = HERE / "prepared"
CLASSES = ["female", "male"]
Births = dict[str, tuple[int, int]]  # a name's births, female and male


def prepare(settings: SexesSettings) -> prepared.Prepared:
    """The prepared names for these settings, from disk when they are there and whole, else made anew. Says which.

    Raises UserError for a source that cannot be read, says no sexes and births, or holds too few names.
    """
    source = Path(settings.source) if settings.source else BUNDLED
    content = read_source(source, settings.year)
    options = {"split_seed": settings.split_seed}
    folder = Path(settings.prepared_dir or PREPARED) / prepared.key(sha256(content), options)
    shown_source = settings.source or f"data/names/{BUNDLED.name}"
    if data := prepared.reuse(folder, "sexes", shown_source):
        return data
    lines = "".join(read_text(io.BytesIO(content), source)).splitlines()
    births, dropped = births_of([line.strip() for line in lines], shown_source)
    if len(births) < 3:
        raise UserError(
            f"{shown_source} has {len(births)} distinct names with births; at least 3 are needed, for training, validation and test"
        )
    splits = split(sorted(births), settings.split_seed)
    tokenizer = CharTokenizer("".join(births), fold=True)
    tokens = {part: [encode_documents(part_names, tokenizer)] for part, part_names in splits.items()}
    counts = {part: {"counts": np.array([births[name] for name in part_names], dtype=np.int64)} for part, part_names in splits.items()}
    summary = (
        f"{len(births):,} distinct names, {sum(min(pair) > 0 for pair in births.values()):,} of them of both sexes, "
        + " / ".join(f"{len(part_names):,}" for part_names in splits.values())
        + " to train / validate / test"
    )
    meta = {
        "dataset": "sexes",
        "kind": "classes",
        "source": shown_source,
        "source_sha256": sha256(content),
        "options": {**options, "year": settings.year},
        "documents": {part: len(part_names) for part, part_names in splits.items()},
        "longest": max(map(len, births)),
        "classes": CLASSES,
        "shape": {"n_classes": len(CLASSES)},
        "dropped": dropped,
        "summary": summary,
    }
    prepared.save(folder, tokens, tokenizer, meta, counts)
    print(f"sexes: dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items()) or 'none'}")
    print(f"sexes: {summary} (written to {shown(folder)})")
    return prepared.load(folder)


def births_of(lines: list[str], source: str) -> tuple[Births, dict[str, int]]:
    """The births of each name that data/names takes from a list, and what was dropped, by reason. What a list says of one name and
    sex in several lines is added up. Raises UserError for a list without sexes and births."""
    names, dropped = clean(lines)
    dropped.pop("seen before", None)  # the second sex of a name, which counts here
    filled = [line for line in lines if line]
    sex, number = columns_of(filled, source)
    counts = {name: [0, 0] for name in names}
    without = 0
    for line in filled[dropped.get("header", 0) :]:
        cells = [cell.strip() for cell in line.split(",")]
        name = unicodedata.normalize("NFC", cells[0].lower())
        if name not in counts:  # dropped already
            continue
        if len(cells) > max(sex, number) and cells[sex].upper() in ("F", "M") and re.fullmatch(r"[0-9]{1,18}", cells[number]):
            counts[name]["FM".index(cells[sex].upper())] += int(cells[number])
        else:
            without += 1
    if without:
        dropped["without a sex, F or M, or a number of births"] = without
    births = {name: (female, male) for name, (female, male) in counts.items() if female + male}
    if (total := sum(map(sum, births.values()))) >= 2**63:
        raise UserError(f"{source} has {total:.1e} births in all, more than can be counted; fewer than {2**63:.1e} would do")
    if len(births) < len(names):
        dropped["names without births"] = len(names) - len(births)
    return births, dropped


def columns_of(lines: list[str], source: str) -> tuple[int, int]:
    """In which columns sex and births stand. Raises UserError where there are none."""
    header = [cell.strip().lower() for cell in lines[0].split(",")] if lines else []
    if header[:1] == ["name"] and {"sex", "births"} <= set(header):
        return header.index("sex"), header.index("births")
    if header[:1] != ["name"] and sum(bool(SSA_LINE.fullmatch(line)) for line in lines) > len(lines) / 2:
        return 1, 2
    raise UserError(
        f"{source} does not say how many births of each sex a name has; a CSV with the header name,sex,births or a yobYYYY.txt would do"
    )


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(SexesSettings, arguments, description=__doc__)))
