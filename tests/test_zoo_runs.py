"""The three shapes in every program, end to end, at a size of seconds."""

import csv
import json

import numpy as np
import pytest
import torch
from conftest import CPU, ROOT, assert_one_line, train

import compare
import evaluate
import sample
import visualize
from config.command_line import read_config
from engine import checkpoint
from engine.attention_map import encoder_weights, seq2seq_weights
from engine.errors import UserError
from engine.pronouncing import Pronunciation
from zoo.encoder import Encoder
from zoo.models import config_from, make
from zoo.seq2seq import Seq2Seq
from zoo.vit import ViT

CONFIGS = {
    "pronounce": ({"source_vocab_size": 28}, Seq2Seq),
    "masked_names": ({}, Encoder),
    "sex_of_name": ({"n_classes": 2}, Encoder),
    "digits": ({"n_classes": 10, "image_size": 8, "channels": 1}, ViT),
}
SMALL = {"n_layer": 1, "n_head": 2, "n_embd": 16, "batch_size": 8, "max_steps": 8, "eval_interval": 4, "warmup_steps": 2}
SOUNDS = dict(zip("abdeiklmnorst", ["AA1", "B", "D", "EH1", "IY1", "K", "L", "M", "N", "OW0", "R", "S", "T"], strict=True))


def config_at(path, **settings):
    """A config file with these settings; returns its path."""
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in (SMALL | settings).items()))
    return path


@pytest.fixture
def speaking(tmp_path, names_file):
    """A config that learns to say the small list's names, letter by letter."""
    words = names_file.read_text().split()
    lines = [f"{word} {' '.join(SOUNDS[letter] for letter in word)}" for word in words]
    (tmp_path / "small.dict").write_text("\n".join(lines) + "\n")
    return config_at(
        tmp_path / "say.py", dataset="cmudict", model="seq2seq", block_size=16, position="sinusoidal", source=str(tmp_path / "small.dict")
    )


@pytest.fixture
def sexes_file(tmp_path, names_file):
    """The small list, those that end in a given to girls, others to boys, and some to both."""
    path = tmp_path / "sexes.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "sex", "births"))
        for i, name in enumerate(names_file.read_text().split()):
            rows.writerow((name, "F" if name.endswith("a") else "M", 10 + i))
            if i % 10 == 0:
                rows.writerow((name, "M" if name.endswith("a") else "F", 5))
    return path


@pytest.fixture
def telling(tmp_path, names_file, sexes_file):
    """A config that tells sexes, and begins with one that guesses letters."""
    first = config_at(tmp_path / "guess.py", dataset="names", model="encoder", block_size=16, source=str(names_file))
    return config_at(tmp_path / "tell.py", dataset="sexes", model="encoder", block_size=16, source=str(sexes_file), start_from=str(first))


@pytest.fixture
def seeing(tmp_path):
    """A config that tells dark pictures from bright ones."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            pixels = chance.integers(low, low + 100, size=(4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    return config_at(tmp_path / "see.py", dataset="images", model="vit", image_size=4, patch_size=2, source=str(tmp_path / "pictures"))


def weights_of(folder):
    return checkpoint.load_model(folder, CPU).state_dict()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_describes_a_model(name):
    shape, kind = CONFIGS[name]
    settings = read_config(ROOT / f"config/zoo/{name}.py")
    settings.check_data_options()
    assert settings.without_meaning() == []
    model = make(settings.model_config(27, shape))
    assert type(model) is kind and model.num_parameters() > 100_000
    assert make(config_from(vars(model.config))).config == model.config


def test_the_encoder_of_names_is_the_one_that_was_pretrained():
    first, second = (read_config(ROOT / f"config/zoo/{name}.py") for name in ("masked_names", "sex_of_name"))
    before, after = make(first.model_config(27)), make(second.model_config(27, {"n_classes": 2}))
    shapes = {name: p.shape for name, p in before.named_parameters()}
    new = {name for name, p in after.named_parameters() if shapes.get(name) != p.shape}
    assert new == {"head.weight", "head.bias"}


def test_words_are_said(speaking, tmp_path, capsys):
    train(speaking, "--max_steps=60", "--learning_rate=0.01")
    out = capsys.readouterr().out
    summary = json.loads((tmp_path / "out/say/summary.json").read_text())
    rates = summary["measured"]["test"]["beam 5"]
    assert all(f"{rates[rate]:.1%}" in out for rate in ("word_error_rate", "phoneme_error_rate"))  # of so few steps: anything
    evaluate.main([])
    out = capsys.readouterr().out
    assert f"{rates['word_error_rate']:.1%}" in out
    assert float(out.split("loss ")[1].split()[0]) == pytest.approx(summary["loss"]["test"], abs=1e-3)

    sample.main(["--prompt=bada", "--prompt=keno"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and all("log-probability -" in line for line in lines)
    assert [line.split()[0] for line in lines] == ["bada"] * 5 + ["keno"] * 5
    sample.main(["--prompt=bada", "--beams=2", "--format=jsonl"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == 2 and records[0]["logprob"] <= 0 and set(records[0]) == {"prompt", "text", "logprob"}
    sample.main(["--prompt=bada", "--top_k=3", "--num_samples=4", "--format=jsonl"])
    drawn = capsys.readouterr().out
    assert len(drawn.splitlines()) == 4
    sample.main(["--prompt=bada", "--top_k=3", "--num_samples=4", "--format=jsonl"])
    assert capsys.readouterr().out == drawn
    sample.main(["--num_samples=3"])
    assert len(capsys.readouterr().out.splitlines()) == 3 + 2
    sample.main(["--prompt=bada", "--dtype=bfloat16", "--attention=manual"])
    assert len(capsys.readouterr().out.splitlines()) == 5

    for arguments, message in (
        (["--prompt=b4da"], "--prompt='b4da': unknown character '4'"),
        (["--prompt=" + "a" * 16], "has 16 letters; this model reads up to 15"),
        (["--prompt="], "'' is no word"),
        (["--prompt=bada", "--stop=x"], "--stop means nothing for out/say"),
        (["--interactive"], "--interactive means nothing for out/say"),
        (["--format=jsonl"], "--format is for a --prompt, and there is none; --prompt=telemachus would do"),
        (["--beams=2"], "--beams is for a --prompt"),
    ):
        with pytest.raises(UserError, match=message):
            sample.main(arguments)
    with pytest.raises(UserError, match="--stride is for models that write texts"):
        evaluate.main(["--stride=2"])
    with pytest.raises(UserError, match="out/say is another model, seq2seq"):
        compare.main(["--run=say"])


def test_names_are_said_by_another_run(speaking, tiny_config, capsys):
    train(speaking)
    train(tiny_config, "--max_steps=10")
    capsys.readouterr()
    sample.main(["--run=tiny", "--num_samples=3"])
    silent = capsys.readouterr().out.splitlines()[:3]
    sample.main(["--run=tiny", "--num_samples=3", "--pronounce=say"])
    said = capsys.readouterr().out.splitlines()[:3]
    known = set(SOUNDS.values()) | {sound.rstrip("012") for sound in SOUNDS.values()}
    for before, after in zip(silent, said, strict=True):
        assert after.startswith(before + "  ") and set(after[len(before) :].split()) <= known | {"-"}
    sample.main(["--run=tiny", "--num_samples=1", "--pronounce=say", "--format=jsonl"])
    assert "pronunciation" in json.loads(capsys.readouterr().out)
    for arguments, message in (
        (["--run=tiny", "--pronounce=tiny"], "out/tiny does not pronounce; a run of config/zoo/pronounce.py would"),
        (["--run=tiny", "--pronounce=sya"], "--pronounce=sya: no run of that name under out; did you mean say?"),
        (["--run=tiny", "--pronounce=say", "--trace"], "--pronounce is for whole texts, not for --trace"),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            sample.main(arguments)


def test_sexes_are_told_by_what_was_pretrained(telling, tmp_path, capsys):
    train(telling, "--max_steps=250", "--eval_interval=50", "--learning_rate=0.01")
    out = capsys.readouterr().out
    assert f"first {tmp_path}/guess.py, to start from:" in out and "new: head.weight, head.bias" in out
    assert (tmp_path / "out/guess/model.safetensors").exists()
    measured = json.loads((tmp_path / "out/tell/summary.json").read_text())["measured"]["test"]
    assert measured["accuracy"] == 1 and measured["ngrams"]["accuracy"] > 0.9
    assert measured["counted_accuracy"] == pytest.approx(measured["ceiling"])
    sample.main(["--run=tell", "--prompt=bada", "--prompt=keno", "--format=jsonl"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["class"] for record in records] == ["female", "male"]
    assert all(sum(record["probabilities"].values()) == pytest.approx(1) for record in records)
    sample.main(["--run=tell", "--num_samples=2"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2
    evaluate.main(["--run=tell", "--split=val"])
    assert "n-grams of 1 to 5" in capsys.readouterr().out
    visualize.main(["confusion", "--run=tell"])
    assert "24 of 24 are right" in capsys.readouterr().out
    assert (tmp_path / "out/tell/confusion.png").read_bytes().startswith(b"\x89PNG")

    sample.main(["--run=guess", "--prompt=b_da"])
    assert capsys.readouterr().out.startswith("b_da -> b")
    with pytest.raises(UserError, match="has nothing to guess"):
        sample.main(["--run=guess", "--prompt=bada"])
    evaluate.main(["--run=guess"])
    assert "guessed right" in capsys.readouterr().out

    before = weights_of(tmp_path / "out/guess")
    train(telling, "--run=again", "--max_steps=4")
    assert "first " not in capsys.readouterr().out  # it is there already
    after = weights_of(tmp_path / "out/guess")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_begins_with_the_weights_of_another_and_resumes_from_its_own(telling, tmp_path, capsys):
    train(telling, "--max_steps=12", "--dropout=0.1", "--run=whole")
    train(telling, "--max_steps=12", "--dropout=0.1", "--run=halves", "--patience=1", "--eval_interval=4", "--learning_rate=1e-9")
    out = tmp_path / "out"
    before, begun = weights_of(out / "guess"), weights_of(out / "halves")
    same = [name for name in before if torch.allclose(before[name], begun[name], atol=1e-5)]
    assert set(same) == set(before)  # so slow a step changes nothing
    train(telling, "--max_steps=4", "--dropout=0.1", "--run=parts", "--schedule=constant")
    train(telling, "--max_steps=12", "--dropout=0.1", "--run=parts", "--schedule=constant", "--resume")
    train(telling, "--max_steps=12", "--dropout=0.1", "--run=one", "--schedule=constant")
    parts, one = weights_of(out / "parts"), weights_of(out / "one")
    assert all(torch.equal(parts[name], one[name]) for name in one)


def test_what_cannot_be_started_from(telling, tiny_config, tmp_path, program):
    with pytest.raises(UserError, match="--start_from=gues: no run of that name under out"):
        train(telling, "--start_from=gues")
    train(tiny_config, "--max_steps=1", "--n_embd=8")
    with pytest.raises(UserError, match="--start_from: no weights of out/tiny fit this model"):
        train(telling, "--start_from=tiny")
    (tmp_path / "other.txt").write_text("abel\nbela\nlea\nbe\nlab\n")
    with pytest.raises(UserError, match="--start_from: out/tiny reads other tokens than these data have"):
        train(tiny_config, "--start_from=tiny", "--run=more", f"--source={tmp_path}/other.txt")
    with pytest.raises(UserError, match=r"tell.py starts from .*guess.py itself: train it first, and name its run, --start_from=tell"):
        train(telling, f"--start_from={telling}", "--run=circle")
    with pytest.raises(UserError, match="cannot read the config nowhere.py"):
        train(telling, "--start_from=nowhere.py")


def test_pictures_are_told(seeing, tmp_path, capsys):
    train(seeing, "--max_steps=80", "--learning_rate=0.01", "--warp=0.1")
    measured = json.loads((tmp_path / "out/see/summary.json").read_text())["measured"]["test"]
    assert measured["accuracy"] == 1 and measured["examples"] == 8
    assert measured["confusion"] == [[4, 0], [0, 4]]
    capsys.readouterr()
    sample.main([f"--prompt={tmp_path}/pictures/dark/3.png", f"--prompt={tmp_path}/pictures/bright/3.png"])
    lines = capsys.readouterr().out.splitlines()
    assert "dark" in lines[0].split()[-2] and "bright" in lines[1].split()[-2]
    sample.main([f"--prompt={tmp_path}/pictures/dark/3.png", "--dtype=bfloat16", "--attention=manual", "--format=jsonl"])
    assert json.loads(capsys.readouterr().out)["class"] == "dark"
    sample.main(["--num_samples=2"])
    assert "FILE.png asks for others" in capsys.readouterr().out
    evaluate.main([])
    assert "100.0%" in capsys.readouterr().out
    for kind in ("confusion", "patches"):
        visualize.main([kind])
        assert (tmp_path / f"out/see/{kind}.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "no.png").write_text("no picture")
    for name, message in (("no.png", "no.png.*this file is no picture"), ("none.png", "none.png.*there is no such file")):
        with pytest.raises(UserError, match=message):
            sample.main([f"--prompt={name}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model=vit"], "model=vit does not fit dataset=names; dataset=images would"),
        (["--dataset=cmudict"], "model=gpt does not fit dataset=cmudict; model=seq2seq would"),
        (["--model=encoder", "--mask_share=0"], "mask_share=0.0 must be above 0"),
        (["--stress"], "stress=True means nothing for dataset=names"),
        (["--position=sinusoidal"], "position='sinusoidal' is not one of learned, rotary"),
        (["--model=encoder", "--shard"], "--shard is for model=gpt"),
        (["--model=encoder", "--n_embd=15"], "n_embd=15 does not divide by n_head=2"),
        (["--model=encoder", "--block_size=4"], "block_size=4 is too small for the longest name; block_size=6 would fit"),
    ],
)
def test_mistakes(tiny_config, options, message):
    with pytest.raises(UserError, match=message.replace("'", ".")):
        train(tiny_config, *options)


def test_options_that_a_model_has_not_are_told(tiny_config, seeing, capsys):
    train(seeing, "--token_noise=0.1", "--compile=True", "--tied_head=False")
    out = capsys.readouterr().out
    assert (
        "note: model=vit has no token_noise, tied_head: left out" in out and "note: compile=True is for model=gpt; going on without" in out
    )
    train(tiny_config, "--max_steps=1", "--warp=0.1", "--mask_share=0.3", "--label_smoothing=0.1", "--norm_place=post")
    assert "note: model=gpt has no norm_place, label_smoothing, mask_share, warp: left out" in capsys.readouterr().out


def test_settings_that_do_not_belong_together(seeing, tmp_path):
    train(seeing)
    path = tmp_path / "out/see/settings.json"
    whole = json.loads(path.read_text())
    for change in ({"kind": "rows"}, {"kind": "pairs"}, {"classes": ["dark"]}, {"classes": None}):
        path.write_text(json.dumps({**whole, "data": {**whole["data"], **change}}))
        for program in (sample, evaluate):
            with pytest.raises(UserError, match="out/see/settings.json is damaged|describes no model"):
                program.main([])


def test_a_mistake_is_one_line(program, telling, seeing):
    assert_one_line(
        program("train.py", seeing, "--patch_size=3"), "train.py: ", "patch_size=3 does not divide image_size=4; patch_size=2 would fit"
    )
    assert_one_line(program("train.py", telling, "--dataset=cmudict"), "model=encoder does not fit dataset=cmudict; model=seq2seq would")


@pytest.fixture
def drawn(monkeypatch):
    """What visualize.py attention hands on to be drawn: the weights, and the names of rows, columns and the whole."""
    calls, draw = [], visualize.attention_map.draw

    def draw_and_keep(weights, tokens, layers, heads, title, keys=None):
        calls.append((weights, tokens, keys, title))
        return draw(weights, tokens, layers, heads, title, keys)

    monkeypatch.setattr(visualize.attention_map, "draw", draw_and_keep)
    return calls


def test_where_a_run_that_says_words_looks(speaking, tmp_path, drawn, monkeypatch):
    def says(sounds):  # whatever a model of so few steps would say
        monkeypatch.setattr(visualize, "pronounce", lambda model, tokenizer, words: [[Pronunciation(tuple(sounds), 0.0)]])

    train(speaking)
    model, tokenizer = checkpoint.load_run(tmp_path / "out/say", CPU)
    sounds = ["B", "AA", "D"]
    says(sounds)
    letters = ["b", "a", "d", "a", "$"]
    ids = [tokenizer.boundary_id, *tokenizer.target.encode(" ".join(sounds))]
    expected = seq2seq_weights(model, [*tokenizer.source.encode("bada"), tokenizer.boundary_id], ids)
    names = {"cross": ([*sounds, "$"], letters), "encoder": (letters, letters), "decoder": (["$", *sounds], None)}
    for part, options in (("cross", []), *((part, [f"--part={part}"]) for part in names)):
        visualize.main(["attention", "--text=bada", *options])
        weights, *labels, title = drawn.pop()
        assert torch.equal(weights, expected[part]) and tuple(labels) == names[part]
        assert title == "say: bada, B AA D" + (f" ({part})" if options else "")
    visualize.main(["attention", "--text=bada", "--head=1"])
    assert torch.equal(drawn.pop()[0], expected["cross"][:, 1:])
    for text, message in (("b9", "unknown character '9'"), ("", "'' is no word"), ("b" * 16, "has 16 letters; this model reads up to 15")):
        with pytest.raises(UserError, match=f"--text={text}: .*{message}.*; the run is out/say"):
            visualize.main(["attention", f"--text={text}"])

    says(["AA"] * 16)  # as many as fit, without an end
    for part, rows in (("cross", ["AA"] * 16), ("decoder", ["$", *["AA"] * 15])):
        visualize.main(["attention", "--text=bada", f"--part={part}"])
        weights, tokens, _, _ = drawn.pop()
        assert tokens == rows and weights.size(2) == 16 == model.config.block_size


def test_where_an_encoder_looks(telling, tmp_path, drawn):
    train(telling)
    model, tokenizer = checkpoint.load_run(tmp_path / "out/tell", CPU)
    visualize.main(["attention", "--run=tell", "--text=Ada"])
    weights, tokens, keys, title = drawn.pop()
    assert tokens == keys == ["[CLS]", "a", "d", "a", "$"] and title == "tell: Ada"
    assert torch.equal(weights, encoder_weights(model, [*tokenizer.encode("ada"), tokenizer.boundary_id]))
    html = (tmp_path / "out/tell/attention.html").read_text(encoding="utf-8")
    assert html == visualize.attention_map.page(weights, tokens, [0], [0, 1], title, keys)
    with pytest.raises(UserError, match="--part=encoder: out/tell has no parts"):
        visualize.main(["attention", "--run=tell", "--text=ada", "--part=encoder"])
    with pytest.raises(UserError, match="--text=b9: unknown character '9'.*; the run is out/tell"):
        visualize.main(["attention", "--run=tell", "--text=b9"])


def test_a_run_that_sees_is_shown_by_patches(seeing):
    train(seeing)
    with pytest.raises(UserError, match="out/see reads pictures, not texts; visualize.py patches shows where it looks"):
        visualize.main(["attention", "--text=ada"])
