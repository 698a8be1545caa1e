"""How fast a large text is prepared, and how much memory that and training on it takes.

    ODYSSEY_TXT=pg1727.txt python benchmarks/prepare.py --megabytes=70
    ODYSSEY_TXT=pg1727.txt python benchmarks/prepare.py --megabytes=1000 --tokenizer=bpe

The text is the Odyssey again and again. Everything runs on one core, in processes of its own whose peak memory the system tells.
Prints one line each for encoding alone, preparing, and twenty steps of training.
"""

import json
import os
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
from config.settings import OdysseySettings, Range, TokenizerSettings  # noqa: E402
from data.odyssey.prepare import find_book  # noqa: E402
from data.tokenizers import load  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402

WATCHED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@dataclass
class PrepareSettings(TokenizerSettings):
    megabytes: Annotated[int, Range(1)] = 70
    """Size of the text."""


def main(arguments: list[str]) -> None:
    settings = parse(PrepareSettings, arguments, PrepareSettings(tokenizer="bpe"), description=__doc__)
    _, book = find_book(OdysseySettings().source)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        with open(text, "wb") as file:
            while file.tell() < settings.megabytes * 10**6:
                file.write(book)
        size = text.stat().st_size / 1e6
        prepared = Path(folder) / "prepared"
        options = [f"--source={text}", f"--prepared_dir={prepared}", f"--tokenizer={settings.tokenizer}"]
        options += [f"--vocab_size={settings.vocab_size}", f"--min_count={settings.min_count}"]
        seconds, peak = watched("data/text/prepare.py", *options)
        print(f"prepared {size:,.0f} MB in {seconds:.1f} s ({size / seconds:.1f} MB/s), peak memory {peak} MiB")
        (meta,) = prepared.glob("*/meta.json")
        print(f"encoding alone: {encoding_speed(meta, book.decode('utf-8-sig')):.1f} MB/s")
        steps = ["--max_steps=20", "--eval_interval=20", "--eval_tokens=10000", "--num_samples=1", f"--out_dir={folder}/out"]
        seconds, peak = watched("train.py", "config/text.py", *options, *steps)
        tokens = json.loads(meta.read_text(encoding="utf-8"))["splits"]["train"]["tokens"]
        print(f"20 steps of training on its {tokens:,} tokens: {seconds:.1f} s, peak memory {peak} MiB")


def watched(program: str, *arguments: str) -> tuple[float, int]:
    """Seconds and peak memory in MiB of one of the programs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", WATCHED, program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise UserError(f"{program}: {done.stderr}")
    return seconds, int(done.stderr.split()[-1])


def encoding_speed(meta: Path, text: str) -> float:
    """Median MB/s of five rounds over the book, with the tokenizer that was trained."""
    tokenizer = load(meta.with_name("tokenizer.json"))
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        tokenizer.encode_all(text)
        rounds.append(len(text.encode("utf-8")) / 1e6 / (time.perf_counter() - start))
    return sorted(rounds)[2]


if __name__ == "__main__":
    run_program(main)
