"""End to end: train.py and sample.py on a small list of names."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from conftest import ROOT, assert_one_line, train
from safetensors.torch import load_file

import train as train_program
from config.command_line import settings_for_training
from data.batches import RowLoader
from engine import checkpoint
from engine.errors import Stopped, UserError
from engine.evaluation import evaluate

FILES = {"settings.json", "tokenizer.json", "model.safetensors", "last", "log.csv", "loss.png", "samples.txt", "summary.json", "seen.txt"}


def stop_at(monkeypatch, step, signum=signal.SIGINT):
    """Send a signal during this step, as a user's Ctrl-C would."""
    original = train_program.training_step

    def training_step(run):
        row = original(run)
        if run.progress.step == step:
            signal.raise_signal(signum)
        return row

    monkeypatch.setattr(train_program, "training_step", training_step)


def log_rows(folder):
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def assert_same_run(a, b):
    """Two run folders hold the same, but for the speed."""
    for name in ("samples.txt", "model.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    clocked = {"tokens_per_second", "mfu"}
    rows = [[{key: value for key, value in row.items() if key not in clocked} for row in log_rows(folder)] for folder in (a, b)]
    assert rows[0] == rows[1]


def test_a_run_leaves_its_folder(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=60")
    out = capsys.readouterr().out
    folder = tmp_path / "out" / "tiny"
    assert {path.name for path in folder.iterdir()} == FILES
    summary = json.loads((folder / "summary.json").read_text())
    for split, loss in summary["loss"].items():
        assert 0 < loss < math.log(20)
        assert summary["bits_per_character"][split] == pytest.approx(loss / math.log(2))
        assert summary["perplexity"][split] == pytest.approx(math.exp(loss))
        assert f"{loss:.4f}" in out
    assert summary["tokens_per_second"] > 0 and summary["wall_seconds"] > 0
    rows = log_rows(folder)
    assert [int(row["step"]) for row in rows] == [1, *range(5, 61, 5)]
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    assert float(rows[0]["learning_rate"]) > 0
    assert [int(row["step"]) for row in rows if row["val_loss"]] == [10, 20, 30, 40, 50, 60]
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["settings"]["max_steps"] == 60
    assert settings["model"]["vocab_size"] == settings["data"]["vocab_size"]
    assert settings["ran"] == {"device": "cpu", "dtype": "float32", "attention": "fused", "threads": 1, "compile": False, "processes": 1}
    (session,) = settings["sessions"]
    assert session["versions"]["torch"] == torch.__version__ and session["from_step"] == 0
    assert all(float(row["tokens_per_second"]) > 0 and 0 < float(row["mfu"]) < 1 for row in rows)
    assert 2**20 < summary["peak_memory_bytes"] < 2**36 and 0 < summary["mfu"] < 1
    assert (folder / "samples.txt").read_text().count("step ") == 6
    assert "4 new names" in out


def test_the_summary_is_the_loss_of_the_saved_weights(tiny_config, tmp_path):
    train(
        tiny_config, "--learning_rate=0.3", "--max_steps=60", "--warmup_steps=0", "--schedule=constant"
    )  # bounces: the last is not the best
    folder = tmp_path / "out" / "tiny"
    summary = json.loads((folder / "summary.json").read_text())
    losses = {int(row["step"]): float(row["val_loss"]) for row in log_rows(folder) if row["val_loss"]}
    best = min(losses, key=losses.get)
    assert summary["best_step"] == best
    model = checkpoint.load_model(folder, torch.device("cpu"))
    data = train_program.start(settings_for_training([str(tiny_config), "--run=other"], ""))
    loss = evaluate(model, data.loaders["val"].once(), torch.device("cpu"))
    assert loss == pytest.approx(losses[best], abs=1e-6) == pytest.approx(summary["loss"]["val"], abs=1e-6)


@pytest.mark.parametrize("stop", [5, 20, 23])
def test_resumed_is_uninterrupted_bit_for_bit(tiny_config, tmp_path, monkeypatch, capsys, stop):
    train(tiny_config, "--run=straight")
    with monkeypatch.context() as patch:
        stop_at(patch, stop)
        with pytest.raises(Stopped):
            train(tiny_config, "--run=halved")
    assert f"stopped at step {stop}; to go on" in capsys.readouterr().out
    assert (tmp_path / "out/halved/model.safetensors").exists()  # also before the first evaluation
    train(tiny_config, "--run=halved", "--resume")
    straight, halved = tmp_path / "out" / "straight", tmp_path / "out" / "halved"
    assert_same_run(straight, halved)
    a, b = (checkpoint.load_state(folder) for folder in (straight, halved))
    for part in ("model", "optimizer", "loader", "random"):
        assert repr_exact(a[part]) == repr_exact(b[part])
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (straight, halved)]
    assert summaries[0]["loss"] == summaries[1]["loss"]


def repr_exact(tree):
    """A comparable form of nested dicts, lists and tensors, exact to the bit."""
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tuple(tree.shape), tree.detach().numpy().tobytes()
    if isinstance(tree, dict):
        return {key: repr_exact(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [repr_exact(value) for value in tree]
    return tree


def test_a_kill_between_checkpoints_loses_only_the_steps_since(tiny_config, tmp_path, monkeypatch):
    train(tiny_config, "--run=straight")
    original = train_program.training_step

    def killed(run):
        if run.progress.step == 27:
            raise ZeroDivisionError
        return original(run)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(train_program, "training_step", killed)
        train(tiny_config, "--run=killed")
    train(tiny_config, "--run=killed", "--resume")
    assert_same_run(tmp_path / "out/straight", tmp_path / "out/killed")


def test_gradient_accumulation_equals_a_large_batch(tiny_config, tmp_path):
    # 3 batches of 8 rows are not the rows of one batch of 24: compare the gradient itself, on the same rows
    options = ["--dropout=0", "--max_steps=1", "--grad_clip=0"]
    run = train_program.start(settings_for_training([str(tiny_config), *options, "--grad_accum=3", "--run=a"], ""))
    loader = RowLoader(run.data.tokens["train"], 0, 16, 8, run.settings.seed)
    batches = [next(loader) for _ in range(3)]
    joined = [torch.cat([batch[i] for batch in batches]) for i in range(3)]
    _, expected = run.model(*joined)
    gradients = torch.autograd.grad(expected, list(run.model.parameters()))
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))
    row = train_program.training_step(run) | train_program.read_numbers(run)
    assert row["train_loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    assert row["learning_rate"] > 0


def test_gradients_are_clipped(tiny_config):
    updates = []
    for clip in ("0", "1e-9"):
        options = ["--max_steps=1", f"--grad_clip={clip}", "--dropout=0", "--weight_decay=0", f"--run=clip{clip}"]
        run = train_program.start(settings_for_training([str(tiny_config), *options], ""))
        before = run.model.lm_head.weight.clone()
        train_program.training_step(run)
        updates.append((run.model.lm_head.weight - before).abs().max().item())
    assert updates[1] < updates[0] / 2  # so small a gradient drowns in AdamW's epsilon


def test_an_older_run_is_set_aside(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=10")
    first = (tmp_path / "out/tiny/model.safetensors").read_bytes()
    train(tiny_config, "--max_steps=10", "--seed=2")
    train(tiny_config, "--max_steps=10", "--seed=3")
    assert "the older run" in capsys.readouterr().out
    kept = sorted(path for path in (tmp_path / "out").iterdir() if path.name.startswith("tiny-"))
    assert len(kept) == 2
    assert any((path / "model.safetensors").read_bytes() == first for path in kept)
    assert {path.name for path in kept[0].iterdir()} == FILES


def test_early_stop(tiny_config, tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.1, 1.9, 2.5, 2.0, 1.95] + [2.0] * 9)  # evaluated every 10 steps
    monkeypatch.setattr(train_program, "evaluate", lambda *arguments: next(losses))
    train(tiny_config, "--patience=3", "--max_steps=1000")
    summary = json.loads((tmp_path / "out/tiny/summary.json").read_text())
    assert (summary["steps"], summary["best_step"]) == (70, 40)
    train(tiny_config, "--patience=3", "--max_steps=1000", "--resume")
    assert json.loads((tmp_path / "out/tiny/summary.json").read_text())["steps"] == 70


def test_a_loss_that_is_no_number_stops_the_run(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=10")
    with pytest.raises(UserError, match=r"(loss is|gradient has length) (nan|inf) at step 2, on batch 2 of epoch 0: a lower"):
        train(tiny_config, "--run=hot", "--learning_rate=1e12", "--grad_clip=0", "--warmup_steps=0", "--log_interval=10")


def test_a_huge_finite_loss_is_reported(tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_program, "evaluate", lambda *arguments: 1e4)
    train(tiny_config, "--max_steps=5")
    assert json.loads((tmp_path / "out/tiny/summary.json").read_text())["perplexity"]["test"] == math.inf
    assert "inf" in capsys.readouterr().out


@pytest.fixture
def compiler():
    """Restores the compiler's options, which a run that compiles changes."""
    with torch._dynamo.config.patch(suppress_errors=False), torch._inductor.config.patch(fallback_random=False):
        yield
    torch._dynamo.reset()


def test_weights_carry_no_compile_prefix_and_gpt2s_names(compiler, tiny_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # the same wrapper, without the minute of compiling
    train(tiny_config, "--max_steps=2", "--compile=True")
    assert "compiled in" in capsys.readouterr().out
    names = set(load_file(tmp_path / "out/tiny/model.safetensors"))
    assert "transformer.h.0.attn.c_attn.weight" in names and "transformer.wte.weight" in names
    assert not any("_orig_mod" in name for name in names)


def test_a_compiler_that_fails_is_gone_without(compiler, tiny_config, tmp_path, monkeypatch, capsys):
    def broken(graph, inputs):
        raise RuntimeError("out of\ngremlins")

    train(tiny_config, "--max_steps=5", "--dropout=0", "--compile=False", "--run=plain")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    train(tiny_config, "--max_steps=5", "--dropout=0", "--compile=True", "--run=broken")
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if "compiling failed" in line and "gremlins" in line]) == 1
    losses = [[float(row["train_loss"]) for row in log_rows(tmp_path / "out" / run)] for run in ("plain", "broken")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)  # not to the bit: a compiled run's batches are filled up with empty rows
    assert json.loads((tmp_path / "out/broken/settings.json").read_text())["ran"]["compile"] is False


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_is_eager_and_resumes_bit_for_bit(compiler, tiny_config, tmp_path, monkeypatch):
    options = ["--max_steps=30", "--compile=True", "--activation=relu2", "--norm=rmsnorm", "--position=rotary", "--qk_norm"]
    train(tiny_config, *options, "--run=compiled")
    for run, compiling in (("plain", False), ("undropped", True)):
        train(tiny_config, *options, f"--run={run}", f"--compile={compiling}", "--dropout=0")
    losses = [[float(row["train_loss"]) for row in log_rows(tmp_path / "out" / run)] for run in ("plain", "undropped")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 13)
        train(tiny_config, *options, "--run=halved")
    train(tiny_config, *options, "--run=halved", "--resume", "--compile=auto")
    assert_same_run(tmp_path / "out/compiled", tmp_path / "out/halved")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_of_version_1_goes_on(tiny_config, tmp_path, optimizer, capsys):
    shutil.copytree(ROOT / "tests/checkpoints/1" / optimizer, tmp_path / "out" / optimizer)
    config = tmp_path / "old.py"
    config.write_text(tiny_config.read_text() + "n_layer = 2; n_embd = 8; dropout = 0.0")
    options = [f"--optimizer={optimizer}", f"--run={optimizer}", "--resume"]
    run = train_program.start(settings_for_training([str(config), *options], ""))
    old = torch.load(ROOT / "tests/checkpoints/1" / optimizer / "last/state.pt", weights_only=True)
    kept = [tensor for part in old["optimizers"] for state in part["state"].values() for tensor in state.values()]
    state = checkpoint.optimizer_state(run.optimizers, run.model)
    assert sorted(float(t.sum()) for t in kept) == sorted(float(t.sum()) for s in state.values() for t in s.values())
    assert "note: device" not in capsys.readouterr().out
    train_program.loop(run)
    train_program.finish(run)
    train_program.close(run)
    with open(ROOT / f"tests/checkpoints/1/{optimizer}-whole.csv", newline="") as file:
        expected = [float(row["train_loss"]) for row in csv.DictReader(file)]
    found = [float(row["train_loss"]) for row in log_rows(tmp_path / "out" / optimizer)]
    assert found == pytest.approx(expected, rel=1e-5 if optimizer == "adamw" else 1e-2)  # Muon has learned to keep q, k and v apart
    settings = json.loads((tmp_path / "out" / optimizer / "settings.json").read_text())
    assert [session.get("from_step") for session in settings["sessions"]] == [None, 20]


def test_a_checkpoint_of_a_later_version(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=10")
    path = tmp_path / "out/tiny/last/state.pt"
    torch.save({**torch.load(path, weights_only=True), "version": 99}, path)
    with pytest.raises(UserError, match=r"written by a later version \(99; this one reads up to 2\)"):
        train(tiny_config, "--max_steps=20", "--resume")


def test_a_second_process_in_the_same_folder_is_refused(program, tiny_config, tmp_path):
    run = train_program.start(settings_for_training([str(tiny_config)], ""))
    for options in ([], ["--resume"]):
        assert_one_line(program("train.py", tiny_config, *options), "another process is training in out/tiny", "--run")
    train_program.close(run)
    assert program("train.py", tiny_config, "--max_steps=5", "--resume").returncode == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny"]


def test_a_run_stopped_before_its_first_checkpoint_begins_again(tiny_config, tmp_path, capsys):
    train(tiny_config, "--run=straight")
    train_program.close(train_program.start(settings_for_training([str(tiny_config), "--run=stopped"], "")))
    (tmp_path / "out/stopped/samples.txt").write_text("of a step that comes again")
    train(tiny_config, "--run=stopped", "--resume")
    assert "out/stopped has no checkpoint yet" in capsys.readouterr().out
    assert_same_run(tmp_path / "out/straight", tmp_path / "out/stopped")


def test_the_average_is_what_is_evaluated_and_kept(tiny_config, tmp_path, monkeypatch):
    train(tiny_config, "--ema=0.9", "--run=straight", "--patience=0")
    run = train_program.start(settings_for_training([str(tiny_config), "--ema=0.9", "--run=other"], ""))
    checkpoint.load_weights(tmp_path / "out/straight", run.best)
    summary = json.loads((tmp_path / "out/straight/summary.json").read_text())
    assert evaluate(run.average, run.loaders["val"].once(), torch.device("cpu")) == pytest.approx(summary["loss"]["val"], abs=1e-6)
    state = checkpoint.load_state(tmp_path / "out/straight")
    assert not state["average"]["lm_head.weight"].equal(state["model"]["lm_head.weight"])
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 17)
        train(tiny_config, "--ema=0.9", "--run=halved")
    train(tiny_config, "--ema=0.9", "--run=halved", "--resume")
    assert_same_run(tmp_path / "out/straight", tmp_path / "out/halved")


@pytest.mark.parametrize("option", ["--n_embd=32", "--seed=5", "--batch_size=4", "--dropout=0", "--split_seed=3"])
def test_resuming_with_what_cannot_change(tiny_config, option):
    train(tiny_config, "--max_steps=10")
    name = option[2:].split("=")[0]
    with pytest.raises(UserError, match=f"--resume: {name} was .* give --{name}="):
        train(tiny_config, "--max_steps=10", "--resume", option)


def test_resuming_further_or_from_nothing(tiny_config, tmp_path, names_file):
    with pytest.raises(UserError, match="no run in out/tiny"):
        train(tiny_config, "--resume")
    train(tiny_config, "--max_steps=10")
    train(tiny_config, "--max_steps=20", "--resume")
    assert json.loads((tmp_path / "out/tiny/summary.json").read_text())["steps"] == 20
    names_file.write_text(names_file.read_text() + "zed\n")
    with pytest.raises(UserError, match="other data"):
        train(tiny_config, "--max_steps=20", "--resume")
    (tmp_path / "out/tiny/last/state.pt").write_bytes(b"PK\3\4 half")
    names_file.write_text(names_file.read_text().removesuffix("zed\n"))
    with pytest.raises(UserError, match="state.pt is damaged"):
        train(tiny_config, "--max_steps=20", "--resume")
    for wrong in ([1, 2], torch.zeros(2), {"version": "2"}):
        torch.save(wrong, tmp_path / "out/tiny/last/state.pt")
        with pytest.raises(UserError, match="state.pt is no state of this run"):
            train(tiny_config, "--max_steps=20", "--resume")
    torch.save([1, 2], tmp_path / "out/tiny/last/state.pt")
    with pytest.raises(UserError, match="state.pt is no state of this run"):
        train(tiny_config, "--max_steps=20", "--resume")


def test_the_dtype_is_honoured(tiny_config, tmp_path):
    for dtype in ("float32", "bfloat16"):
        train(tiny_config, f"--dtype={dtype}", f"--run={dtype}", "--max_steps=10", "--dropout=0")
    weights = load_file(tmp_path / "out/bfloat16/model.safetensors")
    assert all(w.dtype == torch.float32 for w in weights.values())
    a, b = (float(log_rows(tmp_path / "out" / dtype)[0]["train_loss"]) for dtype in ("float32", "bfloat16"))
    assert a != b and a == pytest.approx(b, abs=5e-4)


def test_stopped_before_an_evaluation_and_not_gone_further(tiny_config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 5)
        train(tiny_config)
    train(tiny_config, "--resume", "--max_steps=5")
    summary = json.loads((tmp_path / "out/tiny/summary.json").read_text())
    assert (summary["steps"], summary["best_step"]) == (5, 5)
    before = summary["wall_seconds"]
    train(tiny_config, "--resume", "--max_steps=5")  # already there: measured again, nothing lost
    summary = json.loads((tmp_path / "out/tiny/summary.json").read_text())
    assert summary["steps"] == 5 and summary["wall_seconds"] > 0.5 * before
    assert {path.name for path in (tmp_path / "out/tiny").iterdir()} == FILES


def test_a_padded_vocabulary_trains_and_samples(tiny_config, tmp_path):
    train(tiny_config, "--pad_vocab_to=64", "--max_steps=10")
    assert load_file(tmp_path / "out/tiny/model.safetensors")["transformer.wte.weight"].shape[0] == 64


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["optimizer"].clear(),
        lambda state: state["optimizer"]["transformer.wte.weight"].pop("exp_avg"),
        lambda state: state["optimizer"]["transformer.wte.weight"].update(exp_avg=torch.zeros(3)),
        lambda state: state["progress"].update(step="forty"),
        lambda state: state["progress"].update(seconds=None),
        lambda state: state["loader"].update(batch=10**6),
        lambda state: state["model"].update({"lm_head.weight": torch.zeros(2, 2)}),
        lambda state: state.pop("random"),
    ],
)
def test_resuming_from_a_state_with_wrong_contents(tiny_config, tmp_path, damage):
    train(tiny_config, "--max_steps=10")
    path = tmp_path / "out/tiny/last/state.pt"
    state = torch.load(path, weights_only=True)
    damage(state)
    torch.save(state, path)
    with pytest.raises(UserError, match="state.pt is no state of this run"):
        train(tiny_config, "--max_steps=20", "--resume")


def test_resuming_without_its_samples_or_what_it_is_told_of_its_choices(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=10", "--threads=2")
    (tmp_path / "out/tiny/samples.txt").unlink()
    (tmp_path / "out/tiny/last/lock").unlink()
    capsys.readouterr()
    train(tiny_config, "--max_steps=20", "--resume")
    out = capsys.readouterr().out
    assert "note: threads" not in out and "2 threads" in out and "note: max_steps was 10 and is 20 from here on" in out
    assert (tmp_path / "out/tiny/samples.txt").read_text().count("step ") == 1


def test_what_is_kept_when_the_numbers_break(tiny_config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 23)
        train(tiny_config)
    before = (tmp_path / "out/tiny/last/state.pt").read_bytes()
    original = train_program.training_step

    def breaking(run):
        if run.progress.step == 26:
            run.model.transformer.wte.weight.data[0] = math.inf
        return original(run)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"at step 27, on batch .* the checkpoint of step 23 is kept"):
        patch.setattr(train_program, "training_step", breaking)
        train(tiny_config, "--resume")
    assert (tmp_path / "out/tiny/last/state.pt").read_bytes() == before
    train(tiny_config, "--resume")


@pytest.mark.parametrize("run", ["a/b", ".", "..", "", "-x", "a\nb", "\udcff"])
def test_a_run_has_a_plain_name(tiny_config, run):
    with pytest.raises(UserError, match="must be a plain name"):
        train(tiny_config, f"--run={run}")


def test_a_folder_with_anything_in_it_is_set_aside(tiny_config, tmp_path):
    (tmp_path / "out/tiny").mkdir(parents=True)
    (tmp_path / "out/tiny/samples.txt").write_text("mine")
    train(tiny_config, "--max_steps=5")
    (aside,) = (path for path in (tmp_path / "out").iterdir() if path.name.startswith("tiny-"))
    assert (aside / "samples.txt").read_text() == "mine"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a,b\n1,2\n", b"step,train_loss,val_loss\nfour,1,2\n", None])
def test_resuming_with_a_damaged_or_lost_log(tiny_config, tmp_path, content):
    train(tiny_config, "--max_steps=10")
    log = tmp_path / "out/tiny/log.csv"
    if content is None:
        log.unlink()
        train(tiny_config, "--max_steps=10", "--resume")  # nothing to draw but the frame
        assert (tmp_path / "out/tiny/loss.png").exists()
        return
    log.write_bytes(content)
    with pytest.raises(UserError, match="log.csv is damaged"):
        train(tiny_config, "--max_steps=10", "--resume")


def test_a_resume_tidies_up_and_completes_the_folder(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=10")
    folder = tmp_path / "out/tiny"
    (folder / "last/.state.pt.123.tmp").write_text("half")
    (folder / "seen.txt").unlink()
    train(tiny_config, "--max_steps=20", "--resume")
    assert {path.name for path in folder.rglob("*")} == {*FILES, "state.pt", "lock"}


# the programs as processes


def test_programs_from_the_shell(program, tiny_config, tmp_path):
    done = program("train.py", tiny_config, "--max_steps=10")
    assert done.returncode == 0, done.stderr
    assert "4 new names" in done.stdout and done.stderr == ""
    done = program("sample.py", "--num_samples=2", env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"})
    assert done.returncode == 0 and "drawn are new" in done.stdout
    assert_one_line(program("train.py"), "config/names.py")
    assert_one_line(program("train.py", tiny_config, "--n_layr=2"), "--n_layr", "--n_layer")
    assert_one_line(program("train.py", tiny_config, "--n_head=3"), "n_embd=16", "n_head=3", "n_embd=15")
    assert_one_line(program("train.py", tiny_config, "--learning_rate=-1"), "learning_rate=-1", "above 0")
    assert_one_line(program("sample.py", "--prompt=日本"), "日", "known ones")
    assert_one_line(program("sample.py", "--run=nowhere"), "nowhere", "tiny")
    assert_one_line(program("train.py", tiny_config, "--block_size=2"), "block_size=2", "block_size=6 would fit")
    before = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert before == ["tiny"]  # none of the mistakes has touched the run


def test_an_output_folder_that_cannot_be_written(program, tiny_config, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(program("train.py", tiny_config, f"--out_dir={tmp_path}/file/out"), "file/out", "--out_dir")
    readonly = tmp_path / "readonly"
    readonly.mkdir(mode=0o555)
    if not os.access(readonly, os.W_OK):
        assert_one_line(program("train.py", tiny_config, f"--out_dir={readonly}"), "readonly", "Permission denied", "--out_dir")


def test_a_full_disk(program, tiny_config, tmp_path):
    import resource

    train(tiny_config, "--max_steps=10")
    last, weights = tmp_path / "out/tiny/last", tmp_path / "out/tiny/model.safetensors"
    before = {path: path.read_bytes() for path in (last / "state.pt", weights)}
    for path, size in before.items():  # no file may grow beyond half of this one: to a program it is like a disk that is full
        limit = (len(size) // 2, resource.RLIM_INFINITY)
        done = program("train.py", tiny_config, "--resume", preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, limit))
        assert_one_line(done, f"out/tiny/{path.relative_to(tmp_path / 'out/tiny')}: File too large")
        assert (last / "state.pt").read_bytes() == before[last / "state.pt"]
        assert {path.name for path in last.iterdir()} == {"state.pt", "lock"}
    train(tiny_config, "--resume")
    assert json.loads((tmp_path / "out/tiny/summary.json").read_text())["steps"] == 40


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(tiny_config, tmp_path, signum, code):
    command = [sys.executable, ROOT / "train.py", tiny_config, "--max_steps=100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "out/tiny/log.csv"
    deadline = time.time() + 60
    while not (log.exists() and log.read_text().count("\n") > 3) and time.time() < deadline:
        time.sleep(0.1)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "--resume" in out + err and "Traceback" not in err
    state = checkpoint.load_state(tmp_path / "out/tiny")
    assert state["progress"]["step"] > 5
    assert (tmp_path / "out/tiny/model.safetensors").exists()


def test_the_names_config_learns_more_than_letter_pairs(tmp_path, capsys):
    train(ROOT / "config/names.py", "--max_steps=150", "--eval_interval=50", "--warmup_steps=20")
    summary = json.loads((tmp_path / "out/names/summary.json").read_text())
    assert summary["loss"]["test"] < 2.47  # add-one smoothed letter pairs, on a split of the same list
    printed = capsys.readouterr().out.split("in no part of the list")[1].split()[-10:]
    names = {line.split(",")[0] for line in (ROOT / "data/names/us_names_2022.csv").read_text().splitlines()}
    assert len(set(printed) - names) == 10
