"""The same model on the same book with three tokenizers, beside what compressors make of it.

    ODYSSEY_TXT=pg1727.txt python benchmarks/odyssey.py        # about half an hour on two cores; without ODYSSEY_TXT it downloads

Prints a Markdown table. Each run is an ordinary run folder under out/odyssey-table/, and a run that is already there is not
repeated. The compressors are charged for a part of the text what it adds to the training part's size: they have read that one, too.
"""

import bz2
import json
import lzma
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from config.command_line import parse  # noqa: E402
from config.settings import OdysseySettings  # noqa: E402
from data.odyssey.prepare import prepare  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402

CONFIGS = ("odyssey", "odyssey_char", "odyssey_bpe", "odyssey_word")
COMPRESSORS = {
    "xz -9": lambda data: lzma.compress(data, preset=9),
    "bzip2 -9": lambda data: bz2.compress(data, 9),
}


@dataclass
class TableSettings:
    out_dir: str = "out/odyssey-table"
    """Folder of the run folders."""


def main(arguments: list[str]) -> None:
    settings = parse(TableSettings, arguments, description=__doc__)
    folders = {config: train(config, Path(settings.out_dir).resolve()) for config in CONFIGS}
    texts = parts()
    print("\n| config | tokens | tokens/byte | parameters | loss: train | validation | test | bits/byte: validation | test | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for config, folder in folders.items():
        print(row(config, folder))
    for name, compress in COMPRESSORS.items():
        bits = {part: bits_per_byte(compress, texts["train"], texts[part]) for part in ("val", "test")}
        print(f"| `{name}` | | | | | | | {bits['val']:.3f} | {bits['test']:.3f} | |")
    print("\n| config | a line it wrote |\n| --- | --- |")
    for config, folder in folders.items():
        print(f"| {config} | {sampled_line(folder)} |")


def train(config: str, out_dir: Path) -> Path:
    """The run folder of a config, trained unless it is there."""
    folder = out_dir / config
    if not (folder / "summary.json").exists():
        done = subprocess.run([sys.executable, ROOT / "train.py", ROOT / f"config/{config}.py", f"--out_dir={out_dir}"], stdout=sys.stderr)
        if done.returncode:
            raise UserError(f"{config}: train.py ended with {done.returncode}")
    return folder


def row(config: str, folder: Path) -> str:
    """One run as a row of the table."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    data = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["data"]
    losses = " | ".join(f"{summary['loss'][part]:.3f}" for part in ("train", "val", "test"))
    bits = " | ".join(shown_bits(summary, part) for part in ("val", "test"))
    return (
        f"| {config} | {data['vocab_size']:,} {data['options']['tokenizer']} | {summary['tokens_per_byte']['test']:.3f} "
        f"| {summary['parameters']:,} | {losses} | {bits} | {summary['wall_seconds']:.0f} |"
    )


def shown_bits(summary: dict, part: str) -> str:
    """Bits per byte, or why there are none."""
    bits = summary["bits_per_byte"][part]
    return f"{summary['unknown'][part]:.1%} unknown" if bits is None else f"{bits:.3f}"


def sampled_line(folder: Path) -> str:
    """The last whole line of the last short sample."""
    last = (folder / "samples.txt").read_text(encoding="utf-8").rstrip("\n").rpartition("validation loss")[2]
    lines = [line.strip() for line in last.split("\n")[1:-1] if line.strip()]
    return lines[-1]


def parts() -> dict[str, bytes]:
    """The three parts of the book as bytes."""
    data = prepare(OdysseySettings())
    return {part: data.tokenizer.decode(ids[1:].tolist()).encode("utf-8") for part, ids in data.tokens.items()}


def bits_per_byte(compress, known: bytes, new: bytes) -> float:
    """What `new` adds to the compressed size of `known`, per byte of it."""
    return 8 * (len(compress(known + new)) - len(compress(known))) / len(new)


if __name__ == "__main__":
    run_program(main)
