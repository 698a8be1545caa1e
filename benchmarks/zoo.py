"""The shapes of the zoo on their data, beside what else can be done there.

    python benchmarks/zoo.py        # about half an hour on two cores

Prints a Markdown table. Each run is an ordinary run folder under out/, and one that is already there is not repeated.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from config.command_line import parse  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.tables import table  # noqa: E402

# config, shape, what may be seen, task
ROWS = (
    ("pronounce", "encoder-decoder", "letters: both ways; sounds: what came before, and all letters", "how is it said?"),
    ("masked_names", "encoder", "both ways", "which letters are hidden?"),
    ("sex_of_name", "encoder", "both ways", "girl or boy?"),
    ("digits", "Vision Transformer", "all patches", "which digit?"),
)


@dataclass
class ZooSettings:
    out_dir: str = "out"
    """Folder of the run folders."""


def main(arguments: list[str]) -> None:
    settings = parse(ZooSettings, arguments, description=__doc__)
    rows = []
    for config, shape, mask, task in ROWS:
        summary = trained(config, Path(settings.out_dir).resolve())
        measured, seconds = summary["measured"]["test"], f"{summary['wall_seconds']:.0f}"
        rows.append((f"`{config}`", shape, mask, task, figure(config, measured), f"{summary['parameters']:,}", seconds))
    print(table(("config", "shape", "who sees what", "task", "on the test split", "parameters", "seconds"), rows))


def trained(config: str, out_dir: Path) -> dict:
    """The summary of a config's run, which is made unless it is there."""
    path = out_dir / config / "summary.json"
    if not path.exists():
        command = [sys.executable, ROOT / "train.py", ROOT / f"config/zoo/{config}.py", f"--out_dir={out_dir}"]
        if code := subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode:
            raise UserError(f"{config}: train.py ended with {code}")
    return json.loads(path.read_text(encoding="utf-8"))


def figure(config: str, measured: dict) -> str:
    """What is to be told of a run."""
    if config == "pronounce":
        greedy, beam = (measured[name] for name in ("greedy", "beam 5"))
        words = f"{greedy['word_error_rate']:.1%} of words wrong, {beam['word_error_rate']:.1%} with five beams"
        return f"{words}; {beam['phoneme_error_rate']:.1%} of sounds"
    if config == "masked_names":
        return f"{measured['accuracy']:.1%} guessed right"
    if config == "sex_of_name":
        ours, ngrams = ((found["accuracy"], found["counted_accuracy"]) for found in (measured, measured["ngrams"]))
        return f"{ours[0]:.1%} of names right, {ours[1]:.1%} of births (n-grams: {ngrams[0]:.1%}, {ngrams[1]:.1%})"
    return f"{measured['accuracy']:.1%} right"


if __name__ == "__main__":
    run_program(main)
