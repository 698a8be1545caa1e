import subprocess
import sys
from pathlib import Path

import pytest
import torch

import data.names.prepare as names_prepare
import train as train_program
from data.tokenizers import CharTokenizer
from model import GPT, GPTConfig

CPU = torch.device("cpu")
NAMES = ["ada", "eve", "kim", "lee", "maria", "jo", "alexander"]
TOKENIZER = CharTokenizer("".join(NAMES))
ROOT = Path(__file__).resolve().parents[1]
TINY = """
dataset = "names"
block_size = 16
n_layer = 1
n_head = 2
n_embd = 16
dropout = 0.1
batch_size = 8
max_steps = 40
eval_interval = 10
log_interval = 5
warmup_steps = 5
num_samples = 4
"""


@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, and prepared data go there too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names_prepare, "PREPARED", tmp_path / "prepared")


@pytest.fixture
def names_file(tmp_path):
    """A small list with structure to learn: consonant, vowel, consonant, vowel, ..."""
    path = tmp_path / "names.txt"
    path.write_text("\n".join(a + b + c + d for a in "bdkl" for b in "aei" for c in "mnrst" for d in ("a", "o", "an", "is")) + "\n")
    return path


@pytest.fixture
def tiny_config(tmp_path, names_file):
    path = tmp_path / "tiny.py"
    path.write_text(TINY + f"source = {str(names_file)!r}\nprepared_dir = {str(tmp_path / 'prepared')!r}\n")
    return path


@pytest.fixture
def program():
    """Run a program of the repository as a user does; returns the finished process."""

    def run(name, *arguments, **options):
        command = [sys.executable, ROOT / name, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, **options)

    return run


def assert_one_line(done, *parts):
    """A mistake of the user's: exit code 2, one line on stderr with these parts in it, no traceback."""
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]


def small_model(**changes):
    """An untrained model over the letters of NAMES."""
    torch.manual_seed(0)
    return GPT(GPTConfig(**{"block_size": 12, "vocab_size": TOKENIZER.vocab_size, "n_layer": 1, "n_head": 2, "n_embd": 16, **changes}))


def train(config, *options):
    """What `python train.py CONFIG ...` does, in this process."""
    train_program.main([str(config), *options])
