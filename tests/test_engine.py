"""The small rooms of engine/: device, optimizer, evaluation, generation, files, errors, logs."""

import math
import os
import signal
import sys
from dataclasses import replace
from itertools import islice

import pytest
import torch

from config.settings import SamplingSettings, Settings
from data.batches import RowLoader
from data.tokenizers import CharTokenizer, encode_documents
from engine import files
from engine.device import autocast, pick_device, pick_dtype
from engine.errors import Stopped, UserError, nearest, run_program
from engine.evaluation import evaluate
from engine.generation import continuations, only_new
from engine.logs import Log, plot_loss, read_log
from engine.optimizer import learning_rate_at, make_optimizer, set_learning_rate
from engine.signals import StopRequest
from model import GPT, GPTConfig

CPU = torch.device("cpu")
NAMES = ["ada", "eve", "kim", "lee", "maria", "jo", "alexander"]
TOKENIZER = CharTokenizer("".join(NAMES))


def small_model(**changes):
    torch.manual_seed(0)
    return GPT(GPTConfig(**{"block_size": 12, "vocab_size": TOKENIZER.vocab_size, "n_layer": 1, "n_head": 2, "n_embd": 16, **changes}))


# device


def test_devices_are_honoured_or_refused():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("tpu!", "gpu", "cuda:99", "mps", "cuda:-1"):
        with pytest.raises(UserError, match="device="):
            pick_device(name)


def test_dtypes():
    assert pick_dtype("auto", CPU) == torch.float32
    assert pick_dtype("bfloat16", CPU) == torch.bfloat16
    with autocast(CPU, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


# optimizer


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 50, 100])
def test_learning_rates(schedule, warmup):
    settings = Settings(learning_rate=1.0, min_learning_rate=0.1, max_steps=50, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate_at(step, settings) for step in range(50)]
    assert all(0 < rate <= 1 for rate in rates)
    rising = rates[:warmup]
    assert rising == pytest.approx([(i + 1) / warmup for i in range(len(rising))])
    falling = rates[warmup:]
    assert falling == sorted(falling, reverse=True)
    if falling:
        assert falling[0] == 1.0
        assert falling[-1] >= (1.0 if schedule == "constant" else 0.1)


def test_schedules_by_hand():
    settings = Settings(learning_rate=2.0, min_learning_rate=1.0, max_steps=110, warmup_steps=10)
    assert learning_rate_at(60, replace(settings, schedule="linear")) == pytest.approx(1.5)
    assert learning_rate_at(35, replace(settings, schedule="cosine")) == pytest.approx(1 + (1 + math.cos(math.pi / 4)) / 2)


def test_only_matrices_decay():
    model = small_model()
    optimizer = make_optimizer(model, Settings(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert decayed["weight_decay"] == 0.3 and plain["weight_decay"] == 0
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == model.num_parameters()
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


# evaluation


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_evaluation_counts_every_target_once(batch_size):
    model = small_model(dropout=0.5).train()
    tokens = encode_documents(NAMES, TOKENIZER)
    loss = evaluate(model, RowLoader(tokens, 0, 12, batch_size).once(), CPU)
    assert model.training
    model.eval()
    total = count = 0
    for name in NAMES:
        ids = torch.tensor([TOKENIZER.encode(f"${name}$")])
        with torch.no_grad():
            total += model(ids[:, :-1], ids[:, 1:])[1].item() * (len(name) + 1)
        count += len(name) + 1
    assert loss == pytest.approx(total / count, abs=1e-6)
    assert loss == evaluate(model, RowLoader(tokens, 0, 12, batch_size).once(), CPU)


# generation


def test_continuations_begin_with_the_prompt_and_depend_on_their_row_only():
    model = small_model()
    settings = SamplingSettings(max_new_tokens=20, num_samples=3)
    texts = list(islice(continuations(model, TOKENIZER, settings, "mar"), 9))
    assert all(text.startswith("mar") and "$" not in text and len(text) <= 23 for text in texts)
    assert len(set(texts)) > 6
    assert list(islice(continuations(model, TOKENIZER, replace(settings, num_samples=9), "mar"), 9)) == texts
    assert list(islice(continuations(model, TOKENIZER, settings, "mar", first_row=4), 5)) == texts[4:]
    long = next(continuations(model, TOKENIZER, settings, "alexander" * 3))
    assert long.startswith("alexander" * 3)


def test_a_text_that_ends_at_once_is_empty():
    model = small_model(tied_head=False, position="rotary")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight[0] = 100
    assert list(islice(continuations(model, TOKENIZER, SamplingSettings(num_samples=2), ""), 2)) == ["", ""]


def test_only_new():
    texts = iter(["a", "b", "b", "c", "a", "d", "e"])
    assert only_new(texts, {"a"}, 3) == (["b", "c", "d"], 6)
    endless = iter(lambda: "a", None)
    assert only_new(endless, {"a"}, 3) == ([], 1000)


# files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "f.txt"
    files.write_text(path, "one é\n")
    assert path.read_bytes() == "one é\n".encode()
    with pytest.raises(ZeroDivisionError), files.replacing(path) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert path.read_text(encoding="utf-8") == "one é\n"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_shown_paths(tmp_path):
    assert files.shown(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert files.shown(tmp_path.parent / "x") == str(tmp_path.parent / "x")


# errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no\nsuch thing"), 2, "no such thing"),
        (PermissionError(13, "Permission denied", "out/x"), 2, "out/x: Permission denied"),
        (OSError(28, "No space left on device", "out/x"), 2, "out/x: No space left on device"),
        (MemoryError("80 GiB"), 2, "not enough memory: 80 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "not enough memory"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped(signal.SIGTERM), 143, ""),
        (Stopped(signal.SIGINT), 130, ""),
    ],
)
def test_how_programs_end(monkeypatch, capfd, error, code, message):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))

    def main(arguments):
        raise error

    with pytest.raises(SystemExit) as stop:
        run_program(main)
    sys.stderr.flush()
    assert stop.value.code == code
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == bool(message)


def test_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
    with pytest.raises(RuntimeError, match="a bug"):
        run_program(lambda arguments: (_ for _ in ()).throw(RuntimeError("a bug")))


def test_nearest():
    assert nearest("n_layr", ["n_layer", "n_head"]) == "; did you mean n_layer?"
    assert nearest("zzz", ["n_layer"]) == ""


# logs


def test_log_goes_on_after_the_last_checkpoint(tmp_path):
    log = Log(tmp_path)
    for step in (1, 5, 10, 15):
        log.add(step=step, epoch=0, train_loss=2.5 / step, learning_rate=0.1, grad_norm=1.0, val_loss=0.1 if step == 10 else None)
    whole = (tmp_path / "log.csv").read_bytes()
    with open(tmp_path / "log.csv", "a") as file:
        file.write("20,0,1.")  # cut short by a kill
    log = Log(tmp_path, up_to_step=10)
    assert [row["step"] for row in read_log(tmp_path / "log.csv")] == ["1", "5", "10"]
    log.add(step=15, epoch=0, train_loss=2.5 / 15, learning_rate=0.1, grad_norm=1.0)
    assert (tmp_path / "log.csv").read_bytes() == whole


def test_loss_picture(tmp_path):
    log = Log(tmp_path)
    for step in range(1, 21):
        val_loss = 3 - step / 25 if step % 5 == 0 else None
        log.add(step=step, epoch=0, train_loss=3 - step / 20, val_loss=val_loss, learning_rate=0.1, grad_norm=1.0)
    plot_loss(tmp_path, log.rows, best_step=20)
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


# signals


def test_the_first_signal_is_a_request():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before  # the second acts at once
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
