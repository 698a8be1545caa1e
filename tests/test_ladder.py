"""ladder.py: the table tells what came of each model; the textbook's figures come again."""

import json
import math
import zipfile
from pathlib import Path

import pytest
import torch

import ladder
from engine.errors import UserError
from ladder import RUNGS, TEXTBOOK, short_names, textbook_losses


def climb(names_file, *options):
    ladder.main([f"--source={names_file}", "--max_steps=6", "--device=cpu", *options])


def rows_of(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def test_all_models_are_trained_on_the_same_names_and_told(names_file, capsys):
    climb(names_file)
    said = capsys.readouterr().out
    written = Path("out/ladder/ladder.md").read_text(encoding="utf-8")
    assert written.strip() in said and "names: read" not in said  # train.py's own words are left out
    header, *rows = rows_of(written)
    assert [row[0] for row in rows] == list(RUNGS)
    for row in rows:
        told = dict(zip(header, row, strict=True))
        folder = Path("out/ladder") / told["model"]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        assert (folder / "model.safetensors").exists()
        assert told["parameters"] == f"{summary['parameters']:,}"
        assert [told[split] for split in ("train", "val", "test")] == [f"{summary['loss'][s]:.4f}" for s in ("train", "val", "test")]
        assert float(told["perplexity"]) == pytest.approx(math.exp(summary["loss"]["test"]), abs=0.01)
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["settings"]
        assert settings["source"] == str(names_file) and (settings["block_size"], settings["batch_size"]) == (32, 32)
        assert summary["steps"] == (0 if told["model"] in ("uniform", "bigram", "ngram") else 6)
        seen = set((folder / "seen.txt").read_text(encoding="utf-8").split())
        assert not seen & set(told["names it made up"].split())
        assert told["what it buys"] == RUNGS[told["model"]].buys
    assert float(rows[0][3]) == pytest.approx(math.log(14), abs=1e-4)  # 13 letters and the boundary
    assert Path("out/ladder/ladder.png").read_bytes().startswith(b"\x89PNG")


def test_some_models_in_the_order_of_the_ladder(names_file, capsys):
    climb(names_file, "--models", "mlp", "uniform", "--seed=3")
    assert [row[0] for row in rows_of(capsys.readouterr().out)[1:]] == ["uniform", "mlp"]
    assert json.loads(Path("out/ladder/mlp/settings.json").read_text(encoding="utf-8"))["settings"]["seed"] == 3
    assert not Path("out/ladder/bigram").exists()
    assert Path("out/ladder/ladder_uniform_mlp.md").exists() and not Path("out/ladder/ladder.md").exists()  # which would be that of all


def test_the_share_of_new_names(names_file, monkeypatch):
    """Of what is written, without what is empty; a name twice is counted twice."""
    monkeypatch.setattr(ladder, "written_names", lambda folder, seed: (["ada", "new", "new", "eve"], {"ada", "eve", "bo"}))
    monkeypatch.setattr(ladder.train, "main", lambda arguments: None)
    folder = Path("out/ladder/uniform")
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    result = ladder.climb("uniform", ladder.LadderSettings())
    assert result.new == 0.5 and result.samples == ["new", "new"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--models=mpl"], "--models=mpl: there is none of that name; did you mean mlp"),
        (["--textbook"], "--textbook needs the list .*--source=yob2022.txt"),
        (["--textbook", "--source=none.txt"], "none.txt"),
        (["--textbook", "--source=none.txt", "--models", "mlp"], "--models means nothing for --textbook"),
        (["--textbook", "--source=none.txt", "--device=cpu"], "--device means nothing for --textbook"),
        (["--source=none.txt"], "none.txt"),
        (["--max_steps=0"], "max_steps=0"),
        (["--out_dir=file"], "cannot write to file/ladder"),
        (["--step=3"], "no option --step"),
    ],
)
def test_mistakes(options, complaint):
    Path("file").write_text("")
    with pytest.raises(UserError, match=complaint):
        ladder.main(options)


def test_short_names():
    Path("ssa.txt").write_text("Olivia,F,16573\nLiam,M,20456\nLiam,F,20\nChristopher,M,99\n" + "Ada,F,5\n" * 61)
    names = short_names(Path("ssa.txt"))
    assert names[:3] == ["olivia", "liam", "liam"] and "christopher" not in names and len(names) == 64
    Path("list.csv").write_bytes(
        b"\xef\xbb\xbfname,sex,births\r\nBartholo,M,3\r\nBartholom,M,3\r\nBartholome,M,3\r\n" + b"Eve,F,5\r\n" * 70
    )
    names = short_names(Path("list.csv"))
    assert names[:2] == ["bartholo", "bartholom"] and names[2:] == ["eve"] * 70
    with zipfile.ZipFile("names.zip", "w") as archive:
        archive.writestr("yob1990.txt", "Eve,F,5\n" * 64)
        archive.writestr("yob1991.txt", "Ada,F,5\n" * 64)
    assert set(short_names(Path("names.zip"), 1991)) == {"ada"}
    Path("few.txt").write_text("ada\neve\n")
    with pytest.raises(UserError, match=r"few.txt has 2 names of up to 9 letters; at least 64"):
        short_names(Path("few.txt"))


def test_a_name_is_read_with_its_end_and_without_its_padding():
    """From nothing but one name, its letters are learned by heart, and nothing is asked for behind its end."""
    losses = textbook_losses("transformer", TEXTBOOK["transformer"], ["abcabcabc"] * 64, 150, seed=0)
    assert losses[0] == pytest.approx(math.log(27), abs=0.6) and losses[-1] < 0.05


def test_textbook_in_short(yob2022, capsys):
    ladder.main(["--textbook", f"--source={yob2022}", "--max_steps=300"])
    said = capsys.readouterr().out
    assert "31,393 names of up to 9 letters" in said
    losses = {row[0]: float(row[2]) for row in rows_of(said)[1:]}
    assert losses["transformer"] < losses["mlp"] < losses["attention"] < math.log(27)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), [("mlp", 2.329), ("attention", 2.420), ("transformer", 1.921)])
def test_textbook(yob2022, kind, expected):
    torch.set_num_threads(1)  # as the program
    losses = textbook_losses(kind, TEXTBOOK[kind], short_names(yob2022), 10_000, seed=0)
    assert sum(losses[-1000:]) / 1000 == pytest.approx(expected, abs=0.03)


def test_contexts_seen(names_file, capsys):
    climb(names_file, "--models", "ngram")
    seen = Path("out/ladder/ngram/seen.txt").read_text(encoding="utf-8").split()
    contexts = [{("$" * n + name)[i : i + n] for name in seen for i in range(len(name) + 1)} for n in range(1, 5)]  # $$$, $$a, $ad, ...
    told = "; ".join(f"{len(found):,} of {14**n:,}" for n, found in enumerate(contexts, start=1))
    assert f"occur in the training names: {told}\n" in capsys.readouterr().out
