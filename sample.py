"""Sample from a trained run: python sample.py [--option=value ...]

    python sample.py                              the newest run under out/, with the options it was trained with
    python sample.py --prompt=jo --temperature=0.7
    python sample.py --run=names --num_samples=50 --only_new

After a list such as the names, a * marks a text that is not in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from config.command_line import parse
from config.settings import SamplingSettings
from data import tokenizers
from engine import checkpoint
from engine.device import pick_device
from engine.errors import UserError, run_program
from engine.generation import continuations, only_new, page


@dataclass
class SampleSettings(SamplingSettings):
    """All options of sample.py."""

    prompt: str = ""
    """What every text begins with."""
    only_new: bool = False
    """Draw until there are num_samples distinct texts that are not in the training list."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""


def main(arguments: list[str]) -> None:
    asked = parse(SampleSettings, arguments, description=__doc__)
    folder = checkpoint.find_run(asked.run, asked.out_dir)
    description = checkpoint.read_settings(folder)
    settings = parse(SampleSettings, arguments, checkpoint.sampling_settings(description, SampleSettings))

    model = checkpoint.load_model(folder, pick_device(settings.device))
    tokenizer = tokenizers.load(folder / "tokenizer.json")
    if tokenizer.vocab_size != model.config.vocab_size:
        raise UserError(
            f"{folder / 'tokenizer.json'} has {tokenizer.vocab_size} tokens, its model {model.config.vocab_size}; train the run again"
        )
    data = description["data"]
    texts = continuations(model, tokenizer, settings, data.get("opening", [tokenizer.boundary_id]), settings.prompt)
    if data.get("kind") == "rows":
        show_rows(texts, settings, read_seen(folder, data.get("documents", {}).get("train")), folder)
    elif settings.only_new:
        raise UserError(f"--only_new: {folder} was trained on a text, not on a list of which a sample could be part; leave it out")
    else:
        print("\n\n---\n\n".join(page(text) for text in islice(texts, settings.num_samples)))


def show_rows(texts: Iterator[str], settings: SampleSettings, seen: set[str], folder: Path) -> None:
    """Print one text a line, with a * before those that are new."""
    seen = seen | {""}  # an empty text is nothing new
    if settings.only_new:
        chosen, drawn = only_new(texts, seen, settings.num_samples)
    else:
        chosen, drawn = list(islice(texts, settings.num_samples)), settings.num_samples
    for text in chosen:
        print(" " if text in seen else "*", text)
    new = len(set(chosen) - seen)
    print(f"\n{folder}: {new} of {drawn} drawn are new and distinct ({new / drawn:.0%}); * is not in the training list")


def read_seen(folder: Path, count: int | None) -> set[str]:
    """The training documents of the run in this folder. Raises UserError unless there are `count` of them."""
    path = folder / "seen.txt"
    try:
        seen = set(path.read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; it tells which texts are new: train the run again") from None
    if len(seen) != count:
        raise UserError(f"{path} has {len(seen)} texts, where the run was trained on {count}; train the run again")
    return seen


if __name__ == "__main__":
    run_program(main)
