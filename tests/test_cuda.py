"""What only a GPU shows. `benchmarks/gpu.sh` runs it there; elsewhere it is skipped."""

import csv

import pytest
import torch
from conftest import CPU, small_model, train
from test_train import stop_at

import train as train_program
from config.command_line import settings_for_training
from engine.errors import Stopped
from engine.generation import generate
from engine.sampling import Choice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CUDA = torch.device("cuda")


def losses(folder):
    with open(folder / "log.csv", newline="") as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("attention", ["manual", "fused"])
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_gpu_computes_what_a_cpu_does(attention, position):
    model = small_model(attention=attention, position=position, n_layer=2)
    idx = torch.randint(model.config.vocab_size, (4, 12))
    positions = (torch.arange(12) % 5).expand(4, 12)
    expected, expected_loss = model(idx, idx, positions)
    logits, loss = model.to(CUDA)(idx.to(CUDA), idx.to(CUDA), positions.to(CUDA))
    torch.testing.assert_close(logits.to(CPU), expected, atol=2e-3, rtol=1e-3)
    assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_texts_of_a_gpu_are_those_of_the_plain_loop(compiled):
    model = small_model(position="rotary", n_layer=2).to(CUDA)
    prompts = [[0], [0, 3, 5], [0, 1]]
    made: dict[int, list[int]] = {}
    for token in generate(model, prompts, 30, Choice(top_k=8), seed=3, compiled=compiled):  # past the context of 12
        made.setdefault(token.row, []).append(token.id)
    expected = model.generate(torch.tensor([prompts[0]], device=CUDA), 30, top_k=8, seed=3, use_cache=False)
    assert made[0] == expected[0, 1:].tolist()
    assert all(len(tokens) == 30 for tokens in made.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_on_a_gpu_follow_those_on_a_cpu(tiny_config, tmp_path, dtype, optimizer):
    options = ["--dropout=0", f"--optimizer={optimizer}", "--compile=False"]
    train(tiny_config, "--device=cpu", "--dtype=float32", "--run=cpu", *options)
    train(tiny_config, "--device=cuda", f"--dtype={dtype}", "--run=gpu", *options)
    assert losses(tmp_path / "out/gpu") == pytest.approx(losses(tmp_path / "out/cpu"), abs=2e-2)


def test_a_run_moves_from_cpu_to_gpu_and_back(tiny_config, tmp_path, monkeypatch):
    options = ["--dropout=0", "--dtype=float32", "--compile=False", "--ema=0.9", "--optimizer=muon"]
    train(tiny_config, "--device=cpu", "--run=cpu", *options)
    for stop, device in ((10, "cpu"), (25, "cuda")):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stop_at(patch, stop)
            train(tiny_config, f"--device={device}", "--run=moved", *options, *(["--resume"] if stop > 10 else []))
    train(tiny_config, "--device=cpu", "--run=moved", "--resume", *options)
    assert losses(tmp_path / "out/moved") == pytest.approx(losses(tmp_path / "out/cpu"), abs=5e-3)


def test_resumed_on_a_gpu_is_uninterrupted(tiny_config, tmp_path, monkeypatch):
    torch.use_deterministic_algorithms(True, warn_only=True)
    options = ["--device=cuda", "--dtype=float32", "--compile=False"]  # with dropout, drawn on the GPU
    try:
        train(tiny_config, *options, "--run=straight")
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stop_at(patch, 23)
            train(tiny_config, *options, "--run=halved")
        train(tiny_config, *options, "--run=halved", "--resume")
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses(tmp_path / "out/halved") == pytest.approx(losses(tmp_path / "out/straight"), abs=1e-5)


def test_no_step_waits_for_the_gpu(tiny_config):
    run = train_program.start(settings_for_training([str(tiny_config), "--compile=False", "--optimizer=muon", "--dtype=bfloat16"], ""))
    for _ in range(3):
        train_program.training_step(run)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            train_program.training_step(run)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.progress.step == 6 and len(run.unread) == 6  # none waited, or it would have raised; none was looked at
    train_program.close(run)


def test_compiled_on_a_gpu(tiny_config, tmp_path):
    options = ["--device=cuda", "--dropout=0", "--max_steps=20"]
    train(tiny_config, *options, "--compile=True", "--run=compiled")
    train(tiny_config, *options, "--compile=False", "--run=eager")
    assert losses(tmp_path / "out/compiled") == pytest.approx(losses(tmp_path / "out/eager"), abs=2e-2)
    assert '"compile": true' in (tmp_path / "out/compiled/settings.json").read_text()
