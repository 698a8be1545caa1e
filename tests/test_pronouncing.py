"""Saying words, and counting what is wrong."""

import functools
import json

import pytest
import torch
from conftest import CPU, train

from data.tokenizers import CharTokenizer, PairTokenizer, SymbolTokenizer, load
from engine import checkpoint
from engine.errors import UserError
from engine.pronouncing import Pronunciation, edit_distance, measure, nearest_of, pronounce, report, source_ids
from zoo.seq2seq import Seq2Seq, Seq2SeqConfig

TOKENIZER = PairTokenizer(CharTokenizer("abcde'", fold=True), SymbolTokenizer(["AH", "B", "K", "D", "EH"]))


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = {"block_size": 9, "n_layer": 1, "n_head": 2, "n_embd": 16}
    model = Seq2Seq(Seq2SeqConfig(vocab_size=TOKENIZER.vocab_size, source_vocab_size=TOKENIZER.source.vocab_size, **shape))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return model.eval()


def test_tokenizers_come_back(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    found = load(tmp_path / "tokenizer.json")
    assert found.vocab_size == 6 and found.source.characters == TOKENIZER.source.characters
    assert found.target.encode("K AH  B") == TOKENIZER.target.encode("K AH B") and found.decode(found.target.encode("EH D")) == "EH D"
    assert found.source.encode("Abba") == TOKENIZER.source.encode("abba")
    with pytest.raises(UserError, match="unknown symbol 'Q' in 'K Q'; the known ones are AH B D EH K"):
        found.target.encode("K Q")
    for broken in ("{}", '{"kind": "pair"}', '{"kind": "pair", "characters": 3, "fold": true, "symbols": []}'):
        (tmp_path / "tokenizer.json").write_text(broken)
        with pytest.raises(UserError, match="holds no tokenizer this version knows"):
            load(tmp_path / "tokenizer.json")


@functools.cache
def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0]))


def test_edit_distance():
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("", "abc") == 3 and edit_distance("abc", "") == 3
    chance = torch.Generator().manual_seed(0)
    for _ in range(200):
        a, b = (tuple(torch.randint(3, (int(torch.randint(7, (), generator=chance)),), generator=chance).tolist()) for _ in range(2))
        assert edit_distance(a, b) == slow_distance(a, b) == edit_distance(b, a)
    assert nearest_of("AB", ["ABCD", "B", "XY"]) == (1, 1) and nearest_of("B", ["ABCD", "B"]) == (0, 1)


def test_what_a_model_cannot_say():
    assert source_ids("Bad", TOKENIZER, 9) == [*TOKENIZER.source.encode("bad"), 0]
    for word, message in (
        ("", "'' is no word"),
        ("a$b", "is no word"),
        ("b4d", "unknown character '4'"),
        ("a" * 9, "has 9 letters; this model reads up to 8"),
    ):
        with pytest.raises(UserError, match=message):
            source_ids(word, TOKENIZER, 9)


@pytest.mark.parametrize("beams", [1, 4])
def test_words_are_said_in_order_and_each_as_if_alone(model, beams, monkeypatch):
    words = ["bad", "a", "decade", "cab", "be", "abba"]
    monkeypatch.setattr("engine.pronouncing.WORDS_AT_ONCE", 4)  # more words than are said at once
    found = pronounce(model, TOKENIZER, words, beams)
    assert len(found) == 6 and all(1 <= len(ways) <= beams for ways in found)
    for word, ways in zip(words, found, strict=True):
        alone = pronounce(model, TOKENIZER, [word], beams)[0]
        assert [way.sounds for way in alone] == [way.sounds for way in ways]
        for a, b in zip(alone, ways, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert [way.logprob for way in ways] == sorted((way.logprob for way in ways), reverse=True)
    assert pronounce(model, TOKENIZER, [], beams) == []


def test_the_likeliest_comes_first_however_short(model):
    """What is said is what the beam search writes, without its end; were length in its favour, other ways would come first."""
    words = ["bad", "a", "decade", "cab", "be", "abba", "ded", "ace"]
    ended = other = 0
    for word, ways in zip(words, pronounce(model, TOKENIZER, words, 4), strict=True):
        source = torch.tensor([[*TOKENIZER.source.encode(word), 0]])
        plain, favoured = (model.beam_search(source, 4, 9, penalty)[0][0].tolist() for penalty in (0.0, 1.0))
        for way, ids in zip(ways, plain, strict=True):
            assert way.sounds == tuple(TOKENIZER.target.symbols[i] for i in ids if i > 0)
            ended += 0 in ids
        other += plain != favoured
    assert ended and other


def test_what_is_wrong_is_counted_against_the_nearest(monkeypatch):
    known = {"a": [("AH",), ("EH", "D")], "b": [("B", "AH", "B")], "c": [("K", "AH")]}
    said = {1: [("EH", "D"), ("B", "B"), ("D", "D", "D")], 5: [("AH",), ("B", "AH", "B"), ("K",)]}
    monkeypatch.setattr("engine.pronouncing.listed", lambda data, split: known)
    monkeypatch.setattr(
        "engine.pronouncing.pronounce", lambda model, tokenizer, words, beams: [[Pronunciation(way, 0.0)] for way in said[beams]]
    )

    class Data:
        tokenizer = TOKENIZER

    found = measure(None, Data, "test")
    assert found["words"] == 3
    assert found["greedy"] == {"word_error_rate": 2 / 3, "phoneme_error_rate": (1 + 3) / (2 + 3 + 2)}
    assert found["beam 5"] == {"word_error_rate": 1 / 3, "phoneme_error_rate": 1 / (1 + 3 + 2)}
    lines = report({"test": found}).splitlines()
    assert len(lines) == 4 and "66.7%" in lines[2] and "33.3%" in lines[3] and "57.1%" in lines[2]


def test_resumed_is_uninterrupted(tmp_path):
    lines = [f"{a}{b}{c} {a.upper()} {b.upper()} {c.upper()}" for a in "bdkl" for b in "aei" for c in "mnrst"]
    (tmp_path / "small.dict").write_text("\n".join(lines) + "\n")
    shape = {"dataset": "cmudict", "model": "seq2seq", "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 16, "dropout": 0.1}
    training = {"batch_size": 8, "eval_interval": 4, "log_interval": 1, "warmup_steps": 2, "token_noise": 0.2, "label_smoothing": 0.1}
    settings = {**shape, **training, "optimizer": "muon", "schedule": "inverse_sqrt", "ema": 0.9, "source": str(tmp_path / "small.dict")}
    config = tmp_path / "say.py"
    config.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    train(config, "--run=whole", "--max_steps=12")
    train(config, "--run=parts", "--max_steps=4")
    train(config, "--run=parts", "--max_steps=12", "--resume")
    whole, parts = (checkpoint.load_model(tmp_path / "out" / run, CPU).state_dict() for run in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    losses = [json.loads((tmp_path / f"out/{run}/summary.json").read_text())["loss"] for run in ("whole", "parts")]
    assert losses[0] == losses[1]
    logs = [[line.split(",")[:4] for line in (tmp_path / f"out/{run}/log.csv").read_text().splitlines()] for run in ("whole", "parts")]
    assert logs[0] == logs[1]
