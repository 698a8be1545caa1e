"""End to end: train.py and sample.py on texts, with each tokenizer."""

import csv
import json
import math
import re

import numpy as np
import pytest
import tiktoken
import torch
from conftest import ROOT, assert_one_line, train
from test_train import assert_same_run, repr_exact, stop_at

import sample
import train as train_program
from config.command_line import known_configs, read_config, settings_for_training
from data import tokenizers
from data.tokenizers import BPETokenizer
from engine import checkpoint
from engine.errors import Stopped, UserError

TINY = """
dataset = "text"
tokenizer = "char"
vocab_size = 300
block_size = 32
n_layer = 1
n_head = 2
n_embd = 16
dropout = 0.1
optimizer = "muon"
learning_rate = 1e-2
batch_size = 8
max_steps = 40
eval_interval = 10
log_interval = 5
warmup_steps = 5
num_samples = 2
max_new_tokens = 60
"""
FILES = {"settings.json", "tokenizer.json", "model.safetensors", "last", "log.csv", "loss.png", "samples.txt", "summary.json"}


@pytest.fixture
def config(tmp_path, prose_file):
    path = tmp_path / "tiny_text.py"
    path.write_text(TINY + f"source = {str(prose_file)!r}\nprepared_dir = {str(tmp_path / 'prepared')!r}\n")
    return path


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("tokenizer", ["char", "bpe", "word"])
def test_a_run_on_a_text(config, tmp_path, capsys, tokenizer, prose):
    train(config, f"--tokenizer={tokenizer}")
    out = capsys.readouterr().out
    folder = tmp_path / "out/tiny_text"
    assert {path.name for path in folder.iterdir()} == FILES | ({"tokenizer.tiktoken"} if tokenizer == "bpe" else set())
    summary = summary_of(folder)
    data = json.loads((folder / "settings.json").read_text())["data"]
    for split, loss in summary["loss"].items():
        assert 0 < loss < math.log(data["vocab_size"])
        if summary["unknown"][split]:
            assert tokenizer == "word" and summary["bits_per_byte"][split] is None
            continue
        bits = loss / math.log(2) * (data["splits"][split]["tokens"] - 1) / data["bytes"][split]
        assert summary["bits_per_byte"][split] == pytest.approx(bits)
        assert f"{bits:.4f}" in out
    assert "bits/byte" in out
    page = out.split("everything is in")[1].split("\n", 1)[1]
    assert len(page.strip()) > 20
    with open(folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    prompt = " and the old"
    sample.main(["--num_samples=3", f"--prompt={prompt}"])
    texts = capsys.readouterr().out.split("\n\n---\n\n")
    assert len(texts) == 3 and all(text.startswith(prompt) for text in texts)


@pytest.mark.parametrize("stop", [5, 20, 23])
def test_resumed_is_uninterrupted_bit_for_bit_with_muon(config, tmp_path, monkeypatch, stop):
    train(config, "--run=straight")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, stop)
        train(config, "--run=halved")
    train(config, "--run=halved", "--resume")
    straight, halved = tmp_path / "out/straight", tmp_path / "out/halved"
    assert_same_run(straight, halved)
    a, b = (checkpoint.load_state(folder) for folder in (straight, halved))
    for part in ("model", "optimizer", "loader", "random"):
        assert repr_exact(a[part]) == repr_exact(b[part])


def test_unknown_words_are_reported_and_bits_per_byte_are_not(config, tmp_path, capsys):
    train(config, "--tokenizer=word", "--vocab_size=12", "--max_steps=5")
    out = capsys.readouterr().out
    assert "undefined" in out and re.search(r"\d% / \d+.\d\d% / \d+.\d\d% of the tokens are unknown", out)
    summary = summary_of(tmp_path / "out/tiny_text")
    assert summary["bits_per_byte"] == {"train": None, "val": None, "test": None}
    assert all(0 < share < 1 for share in summary["unknown"].values())


def test_a_text_of_nothing_but_unknown_words(config, tmp_path, capsys):
    (tmp_path / "long.txt").write_text("a" * 3000)
    train(config, f"--source={tmp_path}/long.txt", "--tokenizer=word", "--block_size=1", "--max_steps=2")
    summary = summary_of(tmp_path / "out/tiny_text")
    assert summary["tokens_per_byte"]["val"] is None and summary["unknown"]["val"] == 1


def test_sampling_needs_nothing_but_the_run_folder(config, tmp_path, prose_file, capsys):
    """The prompt is encoded with the run's own tokenizer."""
    for name in ("bpe", "word"):
        train(config, f"--tokenizer={name}", f"--run={name}", "--max_steps=5")
    prose_file.unlink()
    capsys.readouterr()
    for name in ("bpe", "word"):
        sample.main([f"--run={name}", "--prompt= and the old", "--num_samples=1"])
        assert capsys.readouterr().out.startswith(" and the old")
    with pytest.raises(UserError, match="'Zyx' is none of the"):
        sample.main(["--run=word", "--prompt= the Zyx"])
    sample.main(["--run=bpe", "--prompt=Zyx 日本", "--num_samples=1"])
    assert capsys.readouterr().out.startswith("Zyx 日本")
    with pytest.raises(UserError, match="--only_new: .*trained on a text"):
        sample.main(["--only_new"])


def test_gpt2s_vocabulary_is_padded_and_saved_with_the_run(config, tmp_path, monkeypatch, capsys):
    ranks = {bytes([i]): i for i in range(256)} | {f"w{i}".encode(): 256 + i for i in range(1000)}
    stand_in = tiktoken.Encoding("gpt2", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 1256})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: stand_in)
    train(config, "--tokenizer=gpt2", "--max_steps=5")
    folder = tmp_path / "out/tiny_text"
    model = checkpoint.load_model(folder, torch.device("cpu"))
    assert model.config.vocab_size == 1257 and model.transformer.wte.weight.shape[0] == 1280
    monkeypatch.delattr(tiktoken, "get_encoding")
    assert isinstance(tokenizers.load(folder / "tokenizer.json"), BPETokenizer)
    capsys.readouterr()
    sample.main(["--num_samples=1", "--prompt=<|endoftext|>"])
    assert capsys.readouterr().out.startswith("<|endoftext|>")


def test_evaluation_on_a_part(config, tmp_path):
    train(config, "--max_steps=5", "--run=whole")
    train(config, "--max_steps=5", "--run=part", "--eval_tokens=1000")
    whole, part = summary_of(tmp_path / "out/whole"), summary_of(tmp_path / "out/part")
    assert whole["loss"]["train"] != part["loss"]["train"] == pytest.approx(whole["loss"]["train"], abs=0.2)
    assert whole["loss"]["val"] == part["loss"]["val"]  # has fewer


def test_the_loss_of_a_split_is_that_of_its_text(config, tmp_path):
    """Windows, overlaps and masks against one pass over the whole text."""
    settings = settings_for_training([str(config), "--max_steps=5"], "")
    run = train_program.start(settings)
    tokens = np.array(run.data.tokens["val"])
    last = len(tokens) - 1 - 32
    starts = [*range(0, last, 16), last]
    losses = []
    run.model.eval()
    for i in range(1, len(tokens)):
        start = next(start for start in starts if start + 32 >= i)  # the first window that tells token i
        with torch.no_grad():
            logits, _ = run.model(torch.tensor(tokens[start:i].astype(np.int64))[None])
        losses.append(-logits[0, -1].log_softmax(-1)[int(tokens[i])].item())
    found = train_program.evaluate(run.model, run.loaders["val"].once(), torch.device("cpu"))
    assert found == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_mistakes(config, program, tmp_path, prose_file):
    for arguments, message in (
        (["--block_size=100000"], r"block_size=100000 is too large for a text of \d+ tokens; block_size=\d+ would fit"),
        (["--footnotes"], "footnotes=True means nothing for dataset=text"),
        (["--year=1990"], "year=1990 means nothing for dataset=text"),
        (["--source=nowhere.txt"], "nowhere.txt: No such file"),
        (["--tokenizer=bpe", "--vocab_size=10"], "vocab_size=10 is too small"),
        (["--resume"], "no run in"),
    ):
        with pytest.raises(UserError, match=message):
            train(config, *arguments)
    assert not (tmp_path / "out").exists()
    train(config, "--max_steps=5")
    with pytest.raises(UserError, match="tokenizer was char"):
        train(config, "--max_steps=5", "--resume", "--tokenizer=bpe")
    (tmp_path / "names.py").write_text('dataset = "names"\n')
    with pytest.raises(UserError, match="tokenizer='?bpe'? means nothing for dataset=names"):
        train(tmp_path / "names.py", "--tokenizer=bpe")
    assert_one_line(program("train.py", ROOT / "config/text.py"), "--source is missing")


@pytest.mark.parametrize("name", ["odyssey", "odyssey_char", "odyssey_word", "odyssey_bpe"])
def test_the_configs_run_on_the_real_book(book, name, tmp_path, capsys):
    options = ["--max_steps=2", "--eval_interval=2", "--eval_tokens=300", "--batch_size=2", "--max_new_tokens=20"]
    train(ROOT / f"config/{name}.py", f"--source={book}", *options)
    out = capsys.readouterr().out
    assert "569,926 / 31,416 / 31,583 bytes" in out
    assert summary_of(tmp_path / "out" / name)["steps"] == 2


def test_every_config_is_listed_and_fits_together():
    names = known_configs().split(", ")
    ladder = [f"ladder/{name}" for name in ("attention", "bigram", "bigram_learned", "mlp", "ngram", "transformer", "uniform")]
    expected = ["gpt2", *ladder, "names", "odyssey", "odyssey_bpe", "odyssey_char", "odyssey_word", "text"]
    zoo = [f"zoo/{name}" for name in ("digits", "masked_names", "pronounce", "sex_of_name")]
    assert names == [f"config/{name}.py" for name in expected + zoo]
    for name in names:
        settings = read_config(ROOT / name)
        settings.check_data_options()
        settings.model_config(vocab_size=1000)


def test_the_config_for_texts_learns_from_the_readme(tmp_path, capsys):
    options = ["--max_steps=60", "--eval_interval=30", "--batch_size=4", "--n_layer=2", "--max_new_tokens=50"]
    train(ROOT / "config/text.py", f"--source={ROOT / 'README.md'}", *options)
    assert summary_of(tmp_path / "out/text")["bits_per_byte"]["test"] < 5  # 8 without any learning, or nearly
