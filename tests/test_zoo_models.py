"""The models of the ladder in every program, end to end."""

import json
from dataclasses import asdict

import pytest
import torch
from conftest import CPU, ROOT, train

import compare
import evaluate
import sample
import visualize
from config.command_line import read_config
from engine import checkpoint
from engine.errors import UserError
from model import GPT, GPTConfig
from zoo.ladder import KINDS, AttentionMLP, Bigram, LadderConfig, SequenceMLP, Transformer, Uniform
from zoo.models import LADDER, config_from, make
from zoo.ngram import KneserNey

CLASSES = {
    "uniform": Uniform,
    "bigram": Bigram,
    "mlp": SequenceMLP,
    "attention": AttentionMLP,
    "transformer": Transformer,
    "ngram": KneserNey,
}
COUNTED = {"uniform": {}, "bigram": {}, "ngram": {"order": 3}}
LEARNED = {"bigram-learned": {"smoothing": None}, "mlp": {"n_hidden": 16}, "attention": {"n_hidden": 16}, "transformer": {"n_layer": 2}}
EACH = pytest.mark.parametrize(("name", "options"), [*COUNTED.items(), *LEARNED.items()], ids=[*COUNTED, *LEARNED])
CONFIGS = sorted((ROOT / "config/ladder").glob("*.py"))


@pytest.fixture
def config_of(tmp_path, names_file):
    """Write a tiny config for a kind; returns its path."""

    def written(name, options):
        common = {"dataset": "names", "block_size": 16, "n_head": 2, "n_embd": 8, "batch_size": 8, "max_steps": 6, "eval_interval": 3}
        common |= {"warmup_steps": 2, "num_samples": 3, "source": str(names_file), "prepared_dir": str(tmp_path / "prepared")}
        settings = {"model": name.removesuffix("-learned"), **common, **options}
        path = tmp_path / "rung.py"
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
        return path

    return written


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def measured(split):
    folder = checkpoint.find_run("rung")
    return evaluate.measure(evaluate.EvaluationSettings(split=split), folder, checkpoint.read_settings(folder)).loss


@EACH
def test_every_kind_trains_samples_evaluates_and_resumes(config_of, tmp_path, monkeypatch, capsys, name, options):
    config, folder = config_of(name, options), tmp_path / "out/rung"
    train(config)
    summary = summary_of(folder)
    assert summary["steps"] == (0 if name in COUNTED else 6)
    assert "3 new names" in capsys.readouterr().out
    model = checkpoint.load_model(folder, CPU)
    assert type(model) is CLASSES[name.removesuffix("-learned")] and summary["parameters"] == model.num_parameters()
    for split in ("train", "val", "test"):
        assert measured(split) == pytest.approx(summary["loss"][split], abs=1e-4)
    evaluate.main([])
    assert f"{summary['loss']['test']:.4f} ±" in capsys.readouterr().out

    sample.main(["--num_samples=4", "--seed=3"])
    drawn = capsys.readouterr().out
    assert len(drawn.splitlines()) == 4 + 2 and "of 4 drawn are new" in drawn
    sample.main(["--num_samples=4", "--seed=3"])
    assert capsys.readouterr().out == drawn
    sample.main(["--num_samples=2", "--prompt=ba", "--temperature=0"])
    assert all(line[2:].startswith("ba") for line in capsys.readouterr().out.splitlines()[:2])

    monkeypatch.setattr(sample, "missing_compiler", lambda device: None)  # whether or not this machine has one
    for program, arguments in ((sample.main, ["--compile"]), (visualize.main, ["attention", "--text=ba"]), (compare.main, ["--run=rung"])):
        with pytest.raises(UserError, match=f"rung is another model, {name.removesuffix('-learned')}; ") as raised:
            program(arguments)
        assert "\n" not in str(raised.value)

    if name in LEARNED:
        train(config, "--resume", "--max_steps=12")
        again = summary_of(folder)
        assert again["steps"] == 12 and again["loss"]["train"] < summary["loss"]["train"]
        assert measured("val") == pytest.approx(again["loss"]["val"], abs=1e-4)


@pytest.mark.parametrize(("name", "options"), COUNTED.items(), ids=COUNTED)
def test_a_counted_run_has_nothing_to_go_on_with(config_of, tmp_path, name, options):
    config, folder = config_of(name, options), tmp_path / "out/rung"
    train(config)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=f"--resume: model={name} has counted all there is"):
        train(config, "--resume")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_an_order_too_long_for_the_alphabet_is_refused_before_anything_is_made(config_of, tmp_path):
    source = tmp_path / "many.txt"
    source.write_text("\n".join(chr(0x4E00 + i) * 2 for i in range(300)), encoding="utf-8")
    with pytest.raises(UserError, match="order=10 is too long for vocab_size=301.*order=7 would fit"):
        train(config_of("ngram", {"order": 10, "source": str(source)}))
    assert not (tmp_path / "out").exists()


def test_a_learned_rung_resumed_is_uninterrupted_bit_for_bit(config_of, tmp_path):
    config = config_of("transformer", {"schedule": "constant"})
    train(config, "--max_steps=12", "--run=straight")
    train(config, "--run=halved")
    train(config, "--run=halved", "--resume", "--max_steps=12")
    assert (tmp_path / "out/straight/model.safetensors").read_bytes() == (tmp_path / "out/halved/model.safetensors").read_bytes()


def test_the_rungs_get_better_one_by_one(config_of, tmp_path):
    losses = []
    for name, options in COUNTED.items():
        train(config_of(name, options))
        losses.append(summary_of(tmp_path / "out/rung")["loss"]["val"])
    assert losses[0] > losses[1] + 0.5 > losses[2] + 0.5


def test_a_ladder_model_fits_one_process(config_of):
    with pytest.raises(UserError, match="--shard is for model=gpt; model=bigram fits anywhere"):
        train(config_of("bigram", {}), "--shard")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_its_class_and_goes_round_through_its_description(kind):
    config = LadderConfig(kind, block_size=9, vocab_size=11, n_embd=4, n_hidden=6, n_head=2, n_layer=3, smoothing=0.25, order=4)
    model = make(config)
    assert type(model) is CLASSES[kind] and model.config == config
    again = config_from(json.loads(json.dumps(asdict(config))))
    assert type(again) is LadderConfig and again == config
    assert set(LADDER) == set(KINDS) == set(CLASSES)


def test_a_gpt_goes_round_through_its_description():
    config = GPTConfig(block_size=9, vocab_size=11, n_layer=1, n_head=2, n_embd=8, position="rotary", tied_head=False)
    again = config_from(json.loads(json.dumps(asdict(config))))
    assert type(again) is GPTConfig and again == config
    assert type(make(again)) is GPT


@pytest.mark.parametrize("description", [{"kind": "rnn"}, {"kind": "mlp", "n_units": 3}, {"n_units": 3}, {"kind": "mlp", "n_hidden": 0}])
def test_what_describes_no_model_is_refused(description):
    with pytest.raises((TypeError, ValueError), match="rnn|n_units|n_hidden=0"):
        config_from(description)


def test_a_run_whose_description_is_no_model_says_so(config_of, tmp_path):
    train(config_of("bigram", {}))
    path = tmp_path / "out/rung/settings.json"
    description = json.loads(path.read_text())
    description["model"]["kind"] = "rnn"
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match="settings.json describes no model of this version .*kind='rnn'"):
        sample.main([])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_of_the_ladder_describes_its_model(path):
    settings = read_config(path)
    config = settings.model_config(27)
    assert settings.model == config.kind == path.stem.removesuffix("_learned")
    assert (config.block_size, config.vocab_size) == (32, 27)
    names = torch.zeros(2, 32, dtype=torch.int64)
    assert make(config)(names, names)[1].isfinite()


def test_every_kind_has_a_config():
    assert {path.stem for path in CONFIGS} == {*KINDS, "bigram_learned"}


def test_options_of_another_kind_are_named_and_left_out(config_of, capsys):
    train(config_of("bigram", {"norm": "rmsnorm", "order": 4}))
    note = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("note: model="))
    names = note.removeprefix("note: model=bigram has no ").removesuffix(": left out").split(", ")
    assert set(names) == {"n_head", "n_embd", "norm", "order"}


def test_options_of_its_own_kind_are_not_named(config_of, capsys):
    train(config_of("ngram", {"order": 4, "n_head": 4, "n_embd": 128}))
    assert "has no" not in capsys.readouterr().out
