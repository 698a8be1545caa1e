"""Kill a training run again and again at random moments, resume it each time, and compare its end with an undisturbed run's.

    python benchmarks/kills.py --kills=50        # about six minutes

A run is killed (SIGKILL) anywhere between the start of Python and its end, resumed until it is through, then begun anew, until
there were enough kills. Every run must end with the same weights, to the bit, the same samples and the same losses.
"""

import csv
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from config.command_line import parse  # noqa: E402
from config.settings import SEED, Range  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402

SHORT = ["--n_layer=1", "--n_embd=16", "--batch_size=4", "--max_steps=400", "--eval_interval=10", "--eval_tokens=500", "--threads=1"]


@dataclass
class KillSettings:
    kills: Annotated[int, Range(1)] = 50
    """How many."""
    seed: Annotated[int, SEED] = 1337
    """Seed of the moments."""


def main(arguments: list[str]) -> None:
    settings = parse(KillSettings, arguments, description=__doc__)
    with tempfile.TemporaryDirectory() as folder:
        runs, seconds = survive(Path(folder), settings.kills, settings.seed)
    print(f"{settings.kills} kills, {runs} runs brought to their end, all equal to the undisturbed one ({seconds:.1f} s long) to the bit")


def survive(out_dir: Path, kills: int, seed: int, options: list[str] = SHORT) -> tuple[int, float]:
    """Returns how many runs came to their end and how long an undisturbed one took. Raises UserError for one that ended otherwise."""
    chance = random.Random(seed)
    began = time.perf_counter()
    start(out_dir, "undisturbed", options).wait()
    seconds = time.perf_counter() - began
    expected = result(out_dir / "undisturbed")
    done, runs = 0, 0
    while True:
        process = start(out_dir, f"killed{runs}", options)
        if done < kills:
            try:
                process.wait(chance.uniform(0, 1.1 * seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                done += 1
                print(f"kill {done}", file=sys.stderr)
        if process.wait() == -9:
            continue
        if process.returncode or result(out_dir / f"killed{runs}") != expected:
            raise UserError(f"run {runs} of {out_dir} came to another end (exit code {process.returncode}) than the undisturbed one")
        runs += 1
        if done == kills:
            return runs, seconds


def start(out_dir: Path, run: str, options: list[str]) -> subprocess.Popen:
    """A training process that goes on with the run if there is one."""
    resume = ["--resume"] if (out_dir / run / "settings.json").exists() else []
    command = [sys.executable, ROOT / "train.py", ROOT / "config/names.py", *options, f"--out_dir={out_dir}", f"--run={run}", *resume]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def result(folder: Path) -> dict[str, object]:
    """What a run came to, all of it but the speed."""
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("model.safetensors", "samples.txt")}
    with open(folder / "log.csv", newline="", encoding="utf-8") as file:
        rows = [(row["step"], row["train_loss"], row["val_loss"], row["grad_norm"]) for row in csv.DictReader(file)]
    return {**files, "log": rows, "files": sorted(path.name for path in folder.iterdir())}


if __name__ == "__main__":
    run_program(main)
