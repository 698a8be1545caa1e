import json
import zipfile

import numpy as np
import pytest
from conftest import ROOT, assert_one_line

from config.settings import NamesSettings
from data import prepared
from data.names import prepare as names
from data.tokenizers import decode_documents
from engine.errors import UserError
from engine.files import sha256


def prepare(path=None, **options):
    return names.prepare(NamesSettings(source=None if path is None else str(path), **options))


def all_names(data):
    return {part: decode_documents(ids, data.tokenizer) for part, ids in data.tokens.items()}


def test_the_bundled_list():
    data = prepare()
    parts = all_names(data)
    assert [len(parts[p]) for p in ("train", "val", "test")] == [23443, 2930, 2930]
    together = parts["train"] + parts["val"] + parts["test"]
    assert len(set(together)) == len(together) == 29303
    assert data.tokenizer.vocab_size == 27
    assert data.tokenizer.characters == ["$", *"abcdefghijklmnopqrstuvwxyz"]
    content = (ROOT / "data/names/us_names_2022.csv").read_bytes()
    assert sha256(content) == "d67b1c392c9854f91b9e709a787b9069ee175131fd859022c2239024e3089e6d"
    assert set(together) == {line.split(",")[0] for line in content.decode().split("\n")[1:-1]}
    assert data.meta["documents"] == {"train": 23443, "val": 2930, "test": 2930}
    assert data.meta["source_sha256"] == sha256(content)
    # by chance, not by popularity or alphabet
    first = [name[0] for name in parts["val"]]
    assert len(set(first)) > 20
    assert "olivia" in together


def test_the_split_follows_its_seed_and_not_the_order_of_the_file(tmp_path):
    lines = [f"{a}{b}" for a in "abcdefgh" for b in "mnopq"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("\n".join(reversed(lines)))
    a, b, c = prepare(tmp_path / "a.txt"), prepare(tmp_path / "b.txt"), prepare(tmp_path / "a.txt", split_seed=2)
    assert all_names(a) == all_names(b)
    assert set(all_names(a)["val"]) != set(all_names(c)["val"])


@pytest.mark.parametrize(
    "content",
    [
        "name,sex,births\nada,F,10\neve,F,9\nkim,F,8\nkim,M,7\n",
        "Ada,F,10\nEve,F,9\nKim,F,8\nKim,M,7\nZoe,F,-\n",
        "ada\neve\nkim\n",
        "\ufeffAda\r\n\r\n  eve \t\r\nKIM\r\nkim",
        "ADA\reve\rkim",
    ],
    ids=["csv", "ssa", "plain", "bom-crlf-blanks", "old-mac"],
)
def test_formats(tmp_path, content):
    (tmp_path / "list").write_bytes(content.encode("utf-8"))
    data = prepare(tmp_path / "list")
    assert sorted(sum(all_names(data).values(), [])) == sorted({"ada", "eve", "kim"} | ({"zoe"} if "Zoe" in content else set()))


def test_names_zip(tmp_path):
    path = tmp_path / "names.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("NationalReadMe.pdf", "x")
        archive.writestr("yob1990.txt", "Ann,F,5\nBob,M,5\nCy,M,5\n")
        archive.writestr("yob1991.txt", "Dan,M,5\nEva,F,5\nFay,F,5\n")
    assert sorted(sum(all_names(prepare(path, year=1991)).values(), [])) == ["dan", "eva", "fay"]
    with pytest.raises(UserError, match="1990 to 1991.*--year=1991"):
        prepare(path)
    with pytest.raises(UserError, match="1990 to 1991"):
        prepare(path, year=1800)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match="names.zip is a damaged zip"):
        prepare(path, year=1990)


def test_other_letters_are_kept_and_composed(tmp_path):
    (tmp_path / "list").write_text("Zoe\u0308\nzoë\nÉva\nO'Neil\nMary Ann\nÅsa\n", encoding="utf-8")
    data = prepare(tmp_path / "list")
    assert sorted(sum(all_names(data).values(), [])) == ["mary ann", "o'neil", "zoë", "åsa", "éva"]
    assert set("ë'åé ") <= set(data.tokenizer.characters)
    assert data.meta["dropped"] == {"seen before": 1}


def test_what_cannot_be_a_name_is_dropped_and_counted(tmp_path, capsys):
    (tmp_path / "list").write_text("ada\nca$h\nta\ab\neve\n\nada\nkim\nbob,m\n")
    data = prepare(tmp_path / "list")
    counts = {reason.split(":")[0]: count for reason, count in data.meta["dropped"].items()}
    assert counts == {
        "blank lines": 1,
        "with the boundary mark $": 1,
        "with control characters": 1,
        "seen before": 1,
        "with a comma, semicolon, tab or quote": 1,
    }
    out = capsys.readouterr().out
    assert "read 8 lines" in out
    assert "1 with the boundary mark $" in out
    assert "3 distinct names" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 distinct names; at least 3"),
        (b"\n \n", "0 distinct names"),
        (b"ada\nada\neve\n", "2 distinct names"),
        (b"ada\0eve", "binary"),
        ("ada\neve\nkim\n".encode("utf-16"), "UTF-16"),
        (b"ada\nzo\xeb\nkim", "not UTF-8: byte 0xeb in line 2"),
    ],
)
def test_sources_that_cannot_be_used(tmp_path, content, message):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "list")


def test_missing_source_folder_and_stray_year(tmp_path):
    with pytest.raises(UserError, match=r"--source=nowhere.txt: No such file"):
        prepare("nowhere.txt")
    with pytest.raises(UserError, match="Is a directory"):
        prepare(tmp_path)
    with pytest.raises(UserError, match=r"--year=1990 .* names.zip"):
        prepare(year=1990)


def test_prepared_data_are_reused_and_rebuilt_when_the_source_changes(tmp_path, capsys, names_file):
    first = prepare(names_file)
    assert "written to" in capsys.readouterr().out
    assert prepare(names_file).folder == first.folder
    assert "already in" in capsys.readouterr().out
    names_file.write_text(names_file.read_text() + "zed\n")
    changed = prepare(names_file)
    assert changed.folder != first.folder
    assert "z" in changed.tokenizer.characters


@pytest.mark.parametrize("damage", ["truncate", "edit", "remove", "meta", "tokenizer"])
def test_damaged_prepared_data_are_made_again(capsys, names_file, damage):
    data = prepare(names_file)
    expected = all_names(data)
    path = data.folder / {"meta": "meta.json", "tokenizer": "tokenizer.json"}.get(damage, "train.bin")
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-2])
    elif damage == "edit":
        path.write_bytes(content[:-4] + b"\1\0" + content[-2:])
    elif damage == "remove":
        path.unlink()
    elif damage == "tokenizer":
        path.write_bytes(content.replace(b'"a"', b'"z"'))
    else:
        path.write_bytes(content[:20])
    with pytest.raises(UserError):
        prepared.load(data.folder)
    assert all_names(prepare(names_file)) == expected
    assert "preparing again" in capsys.readouterr().out


def test_the_bins_are_what_the_meta_says(names_file):
    data = prepare(names_file)
    meta = json.loads((data.folder / "meta.json").read_text())
    ids = np.fromfile(data.folder / "val.bin", dtype=meta["splits"]["val"]["dtype"])
    assert len(ids) == meta["splits"]["val"]["tokens"]
    assert meta["vocabulary"][ids[1]] == decode_documents(ids, data.tokenizer)[0][0]


def test_as_a_program(program, names_file):
    done = program("data/names/prepare.py", "--help")
    assert done.returncode == 0
    assert all(option in done.stdout for option in ("--source", "--year", "--split_seed", "names.zip"))
    done = program("data/names/prepare.py", f"--source={names_file}", "--prepared_dir=elsewhere")
    assert done.returncode == 0 and "written to elsewhere" in done.stdout
    assert_one_line(program("data/names/prepare.py", "--source=nowhere.csv"), "nowhere.csv", "No such file")
    assert_one_line(program("data/names/prepare.py", "--sauce=x"), "--sauce", "--source")
