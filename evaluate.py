"""Measure a trained run on a whole split or on a text: python evaluate.py [--option=value ...]

python evaluate.py                               the newest run under out/, on its test split
python evaluate.py --run=names --split=val
python evaluate.py --run=odyssey --stride=16     more text before each token, and a longer wait
python evaluate.py --text=mybook.txt             on another text (after a list such as the names: one document a line)
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tqdm import tqdm

from config.command_line import parse
from config.settings import Range, Settings
from data import tokenizers
from data.batches import RowLoader, StreamLoader
from data.examples import ExampleLoader
from engine import checkpoint
from engine.device import pick_device, pick_dtype
from engine.errors import UserError, run_program
from engine.evaluation import Score, evaluate, score
from engine.files import read_text
from engine.run_data import data_of
from engine.tasks import Task, task_of_run


@dataclass
class EvaluationSettings:
    """All options of evaluate.py."""

    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""
    split: Literal["train", "val", "test"] = "test"
    """Part of the run's data to measure on."""
    text: str | None = None
    """File to measure on instead."""
    stride: Annotated[int | None, Range(1)] = None
    """Tokens between the beginnings of two windows of a long text: fewer give each token more to go by; None: half a window."""
    batch_size: Annotated[int | None, Range(1)] = None
    """Windows, or rows of documents, at once; None: as in training."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Precision of the matrix products; auto: bfloat16 where the device has units for it."""


def main(arguments: list[str]) -> None:
    settings = parse(EvaluationSettings, arguments, description=__doc__)
    folder = checkpoint.find_run(settings.run, settings.out_dir)
    description = checkpoint.read_settings(folder)
    if task := task_of_run(folder, description):
        return print_measured(task, settings, folder, description)
    print_score(measure(settings, folder, description), settings, folder, is_rows(description))


def print_measured(task: Task, settings: EvaluationSettings, folder: Path, description: dict[str, Any]) -> None:
    """The loss of a model that writes no text, and what else there is to tell of it."""
    for option in ("text", "stride"):
        if getattr(settings, option) is not None:
            raise UserError(f"--{option} is for models that write texts, and {folder} is none; leave it out")
    device = pick_device(settings.device)
    model, _ = checkpoint.load_run(folder, device)
    ran = checkpoint.settings_of(folder, description)
    data = data_of(folder, description)
    batch_size = settings.batch_size or ran.batch_size
    dtype, _ = pick_dtype(settings.dtype, device, batch_size * model.config.block_size, model.config.n_embd)
    batches = ExampleLoader(*task.examples(settings.split, data, ran), batch_size).once()
    loss = evaluate(model, batches, device, dtype)
    print(f"{folder} on its {settings.split} split: loss {loss:.4f} nats\n")
    print(task.report({settings.split: task.measure(model, data, settings.split)}))


def measure(settings: EvaluationSettings, folder: Path, description: dict[str, Any]) -> Score:
    """How well the run in this folder, of this description, predicts what the settings ask for."""
    if settings.split != "test" and settings.text is not None:
        raise UserError(f"--split={settings.split} and --text={settings.text}: one run is measured on one of them; leave one out")
    if settings.stride and is_rows(description):
        raise UserError(f"--stride={settings.stride} is for long texts, and {folder} was trained on a list; leave it out")
    device = pick_device(settings.device)
    model, tokenizer = checkpoint.load_run(folder, device)
    block_size = model.config.block_size
    batch_size = settings.batch_size or description["settings"].get("batch_size", Settings.batch_size)
    dtype, _ = pick_dtype(settings.dtype, device, batch_size * block_size, model.config.n_embd)

    if (settings.stride or 1) > block_size:
        raise UserError(f"stride={settings.stride} must be at least 1 and at most block_size={block_size}")
    if settings.text is None:
        tokens = data_of(folder, description, "--text=FILE measures on a text").tokens[settings.split]
    elif is_rows(description):
        tokens = tokens_of_lines(settings.text, tokenizer, block_size)
    else:
        tokens = np.append(tokenizer.boundary_id, tokenizer.encode_all(content(settings.text)))
    if is_rows(description):
        batches = RowLoader(tokens, tokenizer.boundary_id, block_size, batch_size).once()
    elif len(tokens) > block_size:
        batches = StreamLoader(tokens, block_size, batch_size).once(stride=settings.stride)
    else:
        batches = StreamLoader(tokens, len(tokens) - 1, batch_size).once()  # one shorter window
    batches = tqdm(batches, unit="batch", leave=False, disable=None)  # None: where there is no terminal
    return score(model, batches, tokenizer, block_size, device, dtype)


def is_rows(description: dict[str, Any]) -> bool:
    """Whether the run learned from a list of short documents, not from long texts."""
    return description["data"].get("kind") == "rows"


def content(path: str) -> str:
    """The text in a file. Raises UserError for a file that cannot be read or is empty."""
    try:
        with open(path, "rb") as file:
            text = "".join(read_text(file, path))
    except OSError as error:
        raise UserError(f"--text={path}: {error.strerror}; a UTF-8 text file would do") from None
    if not text.strip():
        raise UserError(f"--text={path} holds no text; one with something to predict would do")
    return text


def tokens_of_lines(path: str, tokenizer: tokenizers.CharTokenizer, block_size: int) -> np.ndarray:
    """The ids of a file's lines, empty ones left out, each a document, in the form of a rows split. Raises UserError, with the
    line, for one that the model cannot read."""
    boundary = [tokenizer.boundary_id]
    documents = [boundary]
    for number, line in enumerate(content(path).split("\n"), start=1):
        try:
            ids = tokenizer.encode(line.strip())
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if tokenizer.boundary_id in ids:
            raise UserError(f"{path}:{number}: {line.strip()!r}: {tokenizer.boundary} marks where a document ends; leave it out")
        if len(ids) >= block_size:
            raise UserError(f"{path}:{number}: {line.strip()[:40]!r} has {len(ids)} characters; this model reads up to {block_size - 1}")
        if ids:
            documents.append(ids + boundary)
    return np.concatenate(documents)


def print_score(found: Score, settings: EvaluationSettings, folder: Path, rows: bool) -> None:
    """The score as a table."""
    tokens, n_bytes, unknown = found.amount
    error = "-" if found.standard_error is None else f"{found.standard_error:.4f}"
    unit = found.unit if found.pieces > 1 else found.unit.removesuffix("s")
    bits = found.loss / math.log(2) if rows else found.amount.bits_per_byte(found.loss)  # rows: the boundary is a character too
    table = {
        "loss": f"{found.loss:.4f} ± {error} nats per token (standard error over {found.pieces:,} {unit})",
        "perplexity": f"{math.exp(found.loss) if found.loss < 700 else math.inf:.3f}",  # exp(710) is no float
        "bits per character" if rows else "bits per byte": "undefined: the text of unknown tokens is not told"
        if bits is None
        else f"{bits:.4f}",
        "tokens": f"{tokens:,}",
        "documents": f"{found.documents:,}",
        "bytes": f"{n_bytes:,}{', of the known tokens' if unknown else ''}",
        "unknown tokens": f"{unknown:,} ({unknown / tokens:.2%}){'; whatever they stand for, they are one easy token' if unknown else ''}",
    }
    print(f"{folder} on {settings.text or f'its {settings.split} split'}")
    for name, value in table.items():
        print(f"  {name:20}{value}")


if __name__ == "__main__":
    run_program(main)
