"""Prepare pictures, each of a class.

    python data/images/prepare.py                                       scikit-learn's 1,797 handwritten digits of 8 x 8 pixels
    python data/images/prepare.py --source=FOLDER --image_size=32       your own: FOLDER has a folder for each class, named after it
    python data/images/prepare.py --source=FOLDER --image_size=32 --channels=3      in colours

A picture of a source is cut to the square in its middle and brought to image_size x image_size pixels; of a moving one, the first
is taken. train.py calls `prepare` by itself when there is nothing prepared yet for its source and options.
"""

import hashlib
import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))  # run as a program: make the rooms of the repository importable

from config.command_line import parse  # noqa: E402
from config.settings import ImagesSettings  # noqa: E402
from data import prepared  # noqa: E402
from data.pictures import read_picture  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.files import sha256, sha256_of_file, shown  # noqa: E402

PREPARED = HERE / "prepared"
FEWEST = 3  # pictures of a class: one for each part
Files = dict[str, list[Path]]  # the files of each class


def prepare(settings: ImagesSettings) -> prepared.Prepared:
    """The prepared pictures for these settings, from disk when they are there and whole, else made anew. Says which.

    Raises UserError for a source that is no folder of class folders or holds too few pictures, and where a package is missing.
    """
    options = {"split_seed": settings.split_seed, "image_size": settings.image_size, "channels": settings.channels}
    shown_source = settings.source or "scikit-learn's digits"
    if not settings.source:
        images, classes = bundled(settings)
        names, checksum, dropped = [str(digit) for digit in range(10)], sha256(images.tobytes() + classes.tobytes()), Counter()
    else:
        files, dropped = class_files(settings.source)
        checksum = checksum_of(files, settings.source)
    folder = Path(settings.prepared_dir or PREPARED) / prepared.key(checksum, options)
    if data := prepared.reuse(folder, "images", shown_source):
        return data
    if settings.source:
        images, classes, unread = read_files(files, settings.image_size, settings.channels)
        names, dropped = list(files), dropped + unread
    check_counts(names, np.bincount(classes, minlength=len(names)), shown_source)
    parts = split(classes, settings.split_seed)
    summary = (
        f"{len(images):,} pictures of {settings.image_size} x {settings.image_size} pixels in {len(names)} classes, "
        + " / ".join(f"{len(chosen):,}" for chosen in parts.values())
        + " to train / validate / test"
    )
    meta = {
        "dataset": "images",
        "kind": "classes",
        "source": shown_source,
        "source_sha256": checksum,
        "options": options,
        "documents": {part: len(chosen) for part, chosen in parts.items()},
        "classes": names,
        "shape": {"n_classes": len(names), "image_size": settings.image_size, "channels": settings.channels},
        "dropped": dict(dropped),
        "summary": summary,
    }
    arrays = {part: {"images": images[chosen], "classes": classes[chosen]} for part, chosen in parts.items()}
    prepared.save(folder, {}, None, meta, arrays)
    print(f"images: dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items()) or 'none'}")
    print(f"images: {summary} (written to {shown(folder)})")
    return prepared.load(folder)


def bundled(settings: ImagesSettings) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits: images (1797, 1, 8, 8) uint8 and classes (1797,) int64. Raises UserError where they do not fit."""
    for name, value in (("image_size", 8), ("channels", 1)):
        if getattr(settings, name) != value:
            raise UserError(f"{name}={getattr(settings, name)}: scikit-learn's digits have {name}={value}; --source=FOLDER has others")
    if importlib.util.find_spec("sklearn") is None:
        raise UserError("the package scikit-learn is not installed; pip install -e '.[zoo]' would do, or --source=FOLDER")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.rint(digits.images[:, None] * (255 / 16)).astype(np.uint8), digits.target.astype(np.int64)  # they are 0 to 16


def class_files(source: str) -> tuple[Files, Counter[str]]:
    """The files in each folder of a folder, in the order of their names, and what was left out, by reason. Raises UserError."""
    root = Path(source)
    if not root.is_dir():
        what = "is a file" if root.exists() else "there is no such folder"
        raise UserError(f"--source={source}: {what}; a folder with a folder of pictures for each class would do")
    dropped: Counter[str] = Counter()
    files: Files = {}
    for path in sorted(root.iterdir()):
        if path.name.startswith("."):
            dropped["hidden"] += 1
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file())
            files[path.name] = [file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)]
            dropped["hidden"] += len(found) - len(files[path.name])
        else:
            dropped["outside the folders of classes"] += 1
    if len(files) < 2:
        raise UserError(
            f"--source={source} has {len(files)} folders; at least 2 would do, one for each class: {source}/cat/1.png, {source}/dog/1.png"
        )
    return files, +dropped  # +: without those that are 0


def checksum_of(files: Files, source: str) -> str:
    """Of the names and the bytes of all files, in order. Raises UserError for one that cannot be read."""
    checksum = hashlib.sha256()
    for name, path in ((name, path) for name, paths in files.items() for path in paths):
        try:
            place = path.relative_to(Path(source) / name).as_posix()
            checksum.update(os.fsencode(f"{name}\0{place}\0{sha256_of_file(path)}\n"))
        except OSError as error:
            raise UserError(f"--source={source}: {path}: {error.strerror}; pictures that may be read would do") from None
    return checksum.hexdigest()


def read_files(files: Files, image_size: int, channels: int) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
    """Images (N, channels, image_size, image_size) uint8, the class of each (N,) int64, and how many files were dropped, by reason."""
    named = [(number, path) for number, paths in enumerate(files.values()) for path in paths]
    images = np.empty((len(named), channels, image_size, image_size), dtype=np.uint8)  # filled as far as there are pictures
    classes: list[int] = []
    dropped: Counter[str] = Counter()
    for number, path in tqdm(named, unit="picture", leave=False, disable=None):  # None: where there is no terminal
        found = read_picture(path, image_size, channels)
        if isinstance(found, str):
            dropped[found] += 1
        else:
            images[len(classes)] = found
            classes.append(number)
    return images[: len(classes)], np.array(classes, dtype=np.int64), dropped


def check_counts(names: list[str], counts: np.ndarray, source: str) -> None:
    """Raise UserError for a class with too few pictures."""
    for name, count in zip(names, counts.tolist(), strict=True):
        if count < FEWEST:
            raise UserError(f"{source}: class {name} has {count} pictures; at least {FEWEST} are needed, for training, validation and test")


def split(classes: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """72 / 8 / 20 by chance, of each class, at least one each: the numbers of the pictures, in their old order."""
    rng = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {part: [] for part in prepared.SPLITS}
    for number in np.unique(classes):
        order = rng.permutation(np.flatnonzero(classes == number))
        test, val = max(1, round(len(order) / 5)), max(1, round(len(order) * 0.08))
        for part, chosen in zip(prepared.SPLITS, (order[test + val :], order[test : test + val], order[:test]), strict=True):
            parts[part].append(chosen)
    return {part: np.sort(np.concatenate(chosen)) for part, chosen in parts.items()}


if __name__ == "__main__":
    run_program(lambda arguments: prepare(parse(ImagesSettings, arguments, description=__doc__)))
