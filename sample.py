"""Sample from a trained run: python sample.py [--option=value ...]

    python sample.py                              the newest run under out/, with the options it was trained with
    python sample.py --prompt=jo --temperature=0.7
    python sample.py --run=names --num_samples=50 --only_new

A * marks a text that is not in the training list.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from config.command_line import parse
from config.settings import SamplingSettings
from data import tokenizers
from engine import checkpoint
from engine.device import pick_device
from engine.errors import UserError, run_program
from engine.generation import continuations, only_new


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
    seen = read_seen(folder, description["data"].get("documents", {}).get("train")) | {""}  # an empty text is nothing new
    texts = continuations(model, tokenizer, settings, settings.prompt)
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
