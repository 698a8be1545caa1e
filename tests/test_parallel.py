"""Two processes against one. Without dropout they compute the same; with it each draws its own."""

import csv
import os
import subprocess
import sys

import pytest
import torch
from conftest import CPU, ROOT, assert_one_line, small_model, train

from engine.parallel import World, like, share, whole

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--", ROOT / "train.py"]


def two(*arguments):
    """`torchrun --standalone --nproc_per_node=2 -- train.py ...`"""
    done = subprocess.run([sys.executable, *TWO, *map(str, arguments)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done


def losses(folder):
    with open(folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [float(row[name]) for row in rows for name in ("step", "train_loss", "val_loss", "grad_norm") if row[name]]


def test_two_processes_equal_one_on_names_and_one_goes_on_for_two(tiny_config, tmp_path):
    options = ["--dropout=0", "--schedule=constant", "--optimizer=muon", "--ema=0.9", "--grad_accum=2"]
    train(tiny_config, "--run=one", *options)
    done = two(tiny_config, "--run=two", "--max_steps=20", *options)
    assert done.stdout.count("model:") == 1 and "2 processes" in done.stdout  # one of them speaks
    assert done.stdout.count("4 new names") == 1
    train(tiny_config, "--run=two", "--resume", *options)
    assert losses(tmp_path / "out/two") == pytest.approx(losses(tmp_path / "out/one"), rel=1e-5)
    assert (tmp_path / "out/two/samples.txt").read_text().count("step ") == 4


def test_two_processes_count_what_one_counts(tiny_config, tmp_path):
    train(tiny_config, "--run=one", "--model=bigram")
    done = two(tiny_config, "--run=two", "--model=bigram", "--ema=0.9")
    assert done.stdout.count("4 new names") == 1
    weights = [(tmp_path / "out" / run / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]
    assert losses(tmp_path / "out/two") == pytest.approx(losses(tmp_path / "out/one"), rel=1e-6)


def test_two_sharded_processes_go_on_for_one_on_a_stream(tmp_path, prose_file):
    config = tmp_path / "stream.py"
    model = "block_size=16; n_layer=2; n_head=2; n_embd=16; batch_size=5; max_steps=40; eval_interval=10; log_interval=5; warmup_steps=5"
    config.write_text(f"dataset='text'; source={str(prose_file)!r}; prepared_dir={str(tmp_path / 'prepared')!r}; {model}; num_samples=1")
    options = ["--schedule=constant", "--optimizer=muon", "--ema=0.9"]
    train(config, "--run=one", *options)
    train(config, "--run=two", "--max_steps=20", *options)
    done = two(config, "--run=two", "--resume", "--shard", *options)
    assert "resume: out/two at step 20" in done.stdout and "Warning" not in done.stderr
    assert losses(tmp_path / "out/two") == pytest.approx(losses(tmp_path / "out/one"), rel=1e-5)
    assert (tmp_path / "out/two/model.safetensors").stat().st_size == (tmp_path / "out/one/model.safetensors").stat().st_size


def test_two_processes_tell_classes_from_letters_that_they_have_guessed_together(tmp_path, names_file):
    """A run that begins with another, which is trained first: two worlds, one after the other."""
    common = "n_layer = 1; n_head = 2; n_embd = 16; block_size = 16; batch_size = 8; max_steps = 8; eval_interval = 4; log_interval = 1\n"
    first, second, births = (tmp_path / name for name in ("guess.py", "tell.py", "births.csv"))
    births.write_text("name,sex,births\n" + "".join(f"{name},{'FM'[len(name) % 2]},5\n" for name in names_file.read_text().split()))
    first.write_text(f"dataset = 'names'; model = 'encoder'; source = {str(names_file)!r}; {common}")
    second.write_text(f"dataset = 'sexes'; model = 'encoder'; source = {str(births)!r}; start_from = {str(first)!r}; {common}")
    places = [f"--prepared_dir={tmp_path / 'prepared'}", "--optimizer=muon", "--token_noise=0.1"]
    train(second, *places, "--out_dir=one")
    done = two(second, *places, "--out_dir=two")
    assert done.stdout.count("to start from:") == 1 and done.stdout.count("new: head.weight, head.bias") == 1
    for run in ("guess", "tell"):
        assert losses(tmp_path / "two" / run) == pytest.approx(losses(tmp_path / "one" / run), rel=1e-4)


def test_a_mistake_is_said_once(tiny_config):
    done = subprocess.run([sys.executable, *TWO, tiny_config, "--batch_size=1"], capture_output=True, text=True, timeout=180)
    assert done.returncode != 0
    assert done.stderr.count("batches of 1 rows (batch_size=1) are too small for 2 processes; 1 would do") == 1


def test_a_world_that_cannot_meet(program, tiny_config, tmp_path):
    env = {**os.environ, "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    assert_one_line(program("train.py", tiny_config, env=env), "WORLD_SIZE=2", "cannot meet", "torchrun")
    del env["RANK"]
    assert_one_line(program("train.py", tiny_config, env=env), "WORLD_SIZE=2", "cannot meet", "RANK")
    assert_one_line(program("train.py", tiny_config, "--n_head=0", env={**os.environ, "RANK": "1"}), "n_head")


def test_a_world_of_one_does_nothing():
    world, tensor, model = World(), torch.ones(2), small_model()
    world.add_up(tensor)
    assert tensor.tolist() == [1, 1] and world.highest(3) == 3 and world.gathered("a") == ["a"] and world.of_first(lambda: 5) == 5
    with world.one_first():
        pass
    assert share(model, world, CPU, shard=True) is model
    tree = {"a": [tensor, 1], "b": "text"}
    assert whole(tree) == tree and like(tensor, tensor) is tensor
