"""What each part of the names model is worth: config/names.py as it is, then with one part at a time changed.

    python benchmarks/parts.py                # about two minutes a run on two cores, 8 runs a seed
    python benchmarks/parts.py --seeds=1 --jobs=2

Prints a Markdown table of the losses on the validation and the test split, the mean over the seeds. Each run is an
ordinary run folder under out/parts/, and a run that is already there is not repeated.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from config.command_line import parse  # noqa: E402
from config.settings import Range  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402

VARIANTS = {
    "config/names.py": [],
    "learned positions": ["--position=learned"],
    "LayerNorm": ["--norm=layernorm"],
    "GELU": ["--activation=gelu"],
    "no QK-norm": ["--qk_norm=False"],
    "untied head": ["--tied_head=False"],
    "GPT-2's initial weights": ["--init=gpt2"],
    "all of GPT-2's": [
        *("--position=learned", "--norm=layernorm", "--activation=gelu", "--qk_norm=False"),
        *("--init=gpt2", "--bias=True"),
    ],
}


@dataclass
class PartsSettings:
    seeds: Annotated[int, Range(1, 100)] = 1
    """Seeds for each variant."""
    jobs: Annotated[int, Range(1, 64)] = 1
    """Runs at a time, each with its share of the cores."""
    out_dir: str = "out/parts"
    """Folder of the run folders."""
    max_steps: Annotated[int | None, Range(1)] = None
    """Steps of each run; None: the config's."""


def main(arguments: list[str]) -> None:
    settings = parse(PartsSettings, arguments, description=__doc__)
    runs = [(variant, seed) for seed in range(settings.seeds) for variant in VARIANTS]
    with ThreadPoolExecutor(settings.jobs) as pool:
        losses = dict(zip(runs, pool.map(lambda run: train(*run, settings), runs), strict=True))
    print("| | validation | test |\n| --- | --- | --- |")
    for variant in VARIANTS:
        mean = {split: sum(losses[variant, seed][split] for seed in range(settings.seeds)) / settings.seeds for split in ("val", "test")}
        print(f"| {variant} | {mean['val']:.4f} | {mean['test']:.4f} |")


def train(variant: str, seed: int, settings: PartsSettings) -> dict[str, float]:
    """The losses of one run by split, from its summary."""
    name = f"{list(VARIANTS).index(variant)}-seed{seed}"
    summary = Path(settings.out_dir).resolve() / name / "summary.json"
    if not summary.exists():
        command = [sys.executable, ROOT / "train.py", ROOT / "config/names.py", f"--seed={seed}", f"--run={name}", *VARIANTS[variant]]
        command += [f"--out_dir={summary.parents[1]}", *([f"--max_steps={settings.max_steps}"] if settings.max_steps else [])]
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // settings.jobs))}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads})
        if done.returncode:
            raise UserError(f"{variant}: {done.stderr}")
    print(f"{variant}, seed {seed}: {summary}", file=sys.stderr)
    return json.loads(summary.read_text(encoding="utf-8"))["loss"]


if __name__ == "__main__":
    run_program(main)
