import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import data.cmudict.prepare as cmudict_prepare
import data.images.prepare as images_prepare
import data.names.prepare as names_prepare
import data.odyssey.prepare as odyssey_prepare
import data.sexes.prepare as sexes_prepare
import data.text.prepare as text_prepare
import train as train_program
from data.tokenizers import CharTokenizer
from model import GPT, GPTConfig

CPU = torch.device("cpu")
NAMES = ["ada", "eve", "kim", "lee", "maria", "jo", "alexander"]
TOKENIZER = CharTokenizer("".join(NAMES))
BOOK = os.environ.get("ODYSSEY_TXT")
YOB2022 = os.environ.get("YOB2022_TXT")
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
    for module in (names_prepare, odyssey_prepare, text_prepare, cmudict_prepare, sexes_prepare, images_prepare):
        monkeypatch.setattr(module, "PREPARED", tmp_path / "prepared")
    monkeypatch.setattr(odyssey_prepare, "BOOK", tmp_path / "no-book-here.txt")
    monkeypatch.delenv("ODYSSEY_TXT", raising=False)


@pytest.fixture
def book():
    """The real Odyssey, as Project Gutenberg has it."""
    if not BOOK:
        pytest.skip("ODYSSEY_TXT does not name Project Gutenberg's eBook 1727")
    return Path(BOOK)


@pytest.fixture
def yob2022():
    """The names of 2022 as the Social Security Administration first published them."""
    if not YOB2022:
        pytest.skip("YOB2022_TXT does not name the SSA's yob2022.txt")
    return Path(YOB2022)


@pytest.fixture
def prose():
    """A text with structure to learn: words of a small vocabulary, sentences, wrapped lines, paragraphs."""
    return small_prose(seed=1, paragraphs=60)


@pytest.fixture
def prose_file(tmp_path, prose):
    path = tmp_path / "prose.txt"
    path.write_text(prose, encoding="utf-8", newline="\n")
    return path


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


def small_prose(seed, paragraphs):
    chance = random.Random(seed)
    words = "the old king of Ithaca spoke to his son and said that no ship would sail for Troy before dawn naïve “yes”".split()  # noqa: SIM905
    blocks = []
    for _ in range(paragraphs):
        sentences = (" ".join(chance.choices(words, k=chance.randint(4, 12))).capitalize() + chance.choice(".!?") for _ in range(3))
        blocks.append(textwrap.fill(" ".join(sentences), 60))
    return "\n\n".join(blocks) + "\n"
