import numpy as np
import pytest

from config.settings import NamesSettings, SexesSettings
from data import prepared
from data.names import prepare as names
from data.sexes import prepare as sexes
from data.tokenizers import decode_documents
from engine.errors import UserError


@pytest.fixture(autouse=True)
def prepared_here(tmp_path, monkeypatch):
    monkeypatch.setattr(sexes, "PREPARED", tmp_path / "prepared sexes")


def prepare(path=None, **options):
    return sexes.prepare(SexesSettings(source=None if path is None else str(path), **options))


def births(data):
    """Of all parts together."""
    return {
        name: tuple(map(int, pair))
        for part, ids in data.tokens.items()
        for name, pair in zip(decode_documents(ids, data.tokenizer), data.arrays[part]["counts"], strict=True)
    }


def test_the_bundled_list_is_split_as_the_names_are():
    data, plain = prepare(), names.prepare(NamesSettings())
    for part in prepared.SPLITS:
        assert np.array_equal(data.tokens[part], plain.tokens[part])
        assert data.arrays[part]["counts"].shape == (data.meta["documents"][part], 2)
        assert data.arrays[part]["counts"].dtype == np.int64
    assert data.tokenizer.characters == plain.tokenizer.characters
    assert data.meta["kind"] == "classes" and data.meta["classes"] == ["female", "male"] and data.meta["shape"] == {"n_classes": 2}
    assert data.meta["longest"] == plain.meta["longest"]
    found = births(data)
    assert found["liam"][1] == 20563 and found["olivia"][0] == 16654  # as us_names_2022.csv has them
    ceiling = sum(max(pair) for pair in found.values()) / sum(map(sum, found.values()))
    assert 0.96 < ceiling < 0.98


@pytest.mark.parametrize(
    "content",
    [
        "name,sex,births\nada,F,10\neve,F,9\nkim,F,8\nkim,M,7\n",
        "name,births,sex\nada,10,f\neve,9,F\nkim,8,F\nkim,7,M\n",
        "Kim,M,3\nAda,F,10\nEve,F,9\nKim,F,8\nKIM,M,4\n",
        "\ufeffname,sex,births\r\nADA , F, 10\r\n\r\neve,F,9\r\nkim,F,8\r\nkim,M,7\r\nzoe,F,\r\nbo,X,5\r\nlee,F,0",
    ],
)
def test_lists_of_several_forms(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content.encode())
    assert births(prepare(tmp_path / "a.csv")) == {"ada": (10, 0), "eve": (9, 0), "kim": (8, 7)}


def test_what_is_dropped_is_told(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("name,sex,births\nada,F,10\neve,F,9\nkim,M,7\nkim,F,8\nzoe,F,-\nbo,X,5\n")
    data = prepare(tmp_path / "a.csv")
    assert data.meta["dropped"] == {"header": 1, "without a sex, F or M, or a number of births": 2, "names without births": 2}
    assert "2 names without births" in capsys.readouterr().out
    assert births(prepare(tmp_path / "a.csv")) == births(data)
    assert "already in" in capsys.readouterr().out


def test_births_beyond_all_counting(tmp_path):
    (tmp_path / "a.csv").write_text("name,sex,births\n" + "ada,F,999999999999999999\n" * 10 + "eve,F,9\nkim,M,7\n")
    with pytest.raises(UserError, match="a.csv has 1.0e[+]19 births in all, more than can be counted; fewer than 9.2e[+]18 would do"):
        prepare(tmp_path / "a.csv")


def test_a_name_called_name_keeps_its_births(tmp_path):
    (tmp_path / "a.csv").write_text("name,sex,births\nname,F,4\nada,F,10\neve,F,9\n")
    assert births(prepare(tmp_path / "a.csv"))["name"] == (4, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ada\neve\nkim\n", "name,sex,births"),
        ("name,births\nada,10\neve,9\nkim,8\n", "name,sex,births"),
        ("name\nAda,F,10\nEve,F,9\nKim,F,8\n", "name,sex,births"),
        ("", "name,sex,births"),
        ("name,sex,births\nada,F,10\neve,F,9\nkim,X,8\n", "2 distinct names"),
    ],
)
def test_lists_without_sexes_or_with_too_few_names(tmp_path, content, words):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=words) as error:
        prepare(tmp_path / "a.csv")
    assert "a.csv" in str(error.value) and "\n" not in str(error.value)
