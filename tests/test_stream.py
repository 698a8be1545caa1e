import io
import itertools
import json

import numpy as np
import pytest
from conftest import small_prose
from hypothesis import given, settings
from hypothesis import strategies as st

from config.settings import TokenizerSettings
from data import prepared, stream
from data.stream import encode, opening, pieces, split
from data.tokenizers import train_tokenizer
from engine.errors import UserError


def prepare(tmp_path, text, **options):
    return stream.prepare_stream("text", tmp_path / "prepared", "book", "hash", {}, TokenizerSettings(**options), lambda: [text])


def texts(data):
    """What each split says, its first boundary left out."""
    return {part: data.tokenizer.decode(ids[1:].tolist()) for part, ids in data.tokens.items()}


@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
def test_the_parts_are_the_text(tmp_path, prose, tokenizer):
    data = prepare(tmp_path, prose, tokenizer=tokenizer, vocab_size=400, min_count=1)
    parts = texts(data)
    assert "".join(parts.values()) == prose
    for share, part in ((0.9, "val"), (0.95, "test")):
        assert prose.index(parts[part]) >= share * len(prose) - 1
        before = prose[: prose.index(parts[part])]
        assert before.endswith("\n\n")  # at the border of a paragraph
        assert len(before.encode()) - share * len(prose.encode()) < 400
    assert all(ids[0] == data.tokenizer.boundary_id and ids.dtype == np.uint16 for ids in data.tokens.values())
    assert data.meta["bytes"] == {part: len(text.encode()) for part, text in parts.items()}
    assert data.tokenizer.token_bytes()[data.tokens["val"]].sum() == data.meta["bytes"]["val"]


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_the_tokenizer_sees_the_training_part_only(tmp_path, prose, kind, capsys):
    parts = texts(prepare(tmp_path, prose, tokenizer="char"))
    options = {"tokenizer": kind, "vocab_size": 300, "min_count": 1}
    other = parts["train"] + "Zyx ÷ " * 50 + "\n\n" + "Qwv ∂ " * 50 + "\n"
    data = prepare(tmp_path / "2", other, **options)
    trained_on = data.tokenizer.decode(data.tokens["train"][1:].tolist())
    assert "÷" not in trained_on and "∂" not in trained_on
    alone = train_tokenizer(kind, [trained_on], 300, 1)
    assert alone.encode_all(other).tolist() == data.tokenizer.encode_all(other).tolist()
    out = capsys.readouterr().out
    if kind != "bpe":
        assert data.meta["splits"]["val"]["unknown"] == (data.tokens["val"] == data.tokenizer.unknown_id).sum() > 0
        assert "tokens of the val part are unknown" in out
    else:
        assert data.meta["splits"]["val"]["unknown"] == 0 and "unknown" not in out


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pieces_change_nothing(monkeypatch, prose, kind, size):
    """Encoded piece by piece is encoded at once, wherever the pieces end."""
    monkeypatch.setattr(stream, "PIECE", size)
    text = prose[:1500] + "  \n\t \n x" + "é" * 200 + "日本 語"
    tokenizer = train_tokenizer(kind, [text], 400, 1)
    file = io.BytesIO(text.encode())
    cut = list(pieces(file, 0, len(text.encode())))
    assert "".join(cut) == text
    ids = np.concatenate(list(encode(cut, tokenizer)))
    whole = np.concatenate(list(encode([text], tokenizer)))
    if size == 1000 or kind == "char":
        assert ids.tolist() == whole.tolist()
    if kind != "word":  # a word longer than a piece is no word any more
        assert tokenizer.decode(ids.tolist()) == tokenizer.decode(whole.tolist())


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), st.integers(1, 50))
def test_pieces_of_any_text(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE", size)
        data = text.encode()
        assert "".join(pieces(io.BytesIO(data), 0, len(data))) == text


@settings(deadline=None)
@given(st.text(st.characters(categories=["L", "Zs", "Cc", "So"]), min_size=60))
def test_any_text_is_split_between_characters(text):
    data = text.encode()
    parts = split(io.BytesIO(data), "book")
    assert list(parts) == ["train", "val", "test"]
    ranges = list(parts.values())
    assert ranges[0][0] == 0 and ranges[-1][1] == len(data)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert all(start < stop and data[start:stop].decode() for start, stop in ranges)


def test_documents_are_parted_by_the_boundary_and_not_split(tmp_path):
    documents = [small_prose(seed, 2) for seed in range(40)]
    data = prepare(tmp_path, "\0".join(documents), tokenizer="bpe", vocab_size=300)
    assert data.meta["documents"] == 40
    assert "40 documents" in data.meta["summary"]
    found = []
    for ids in data.tokens.values():
        starts = np.flatnonzero(ids == data.tokenizer.boundary_id)
        found += [data.tokenizer.decode(part[1:].tolist()) for part in np.split(ids, starts)[1:]]
    assert [text for text in found if text] == documents
    assert len(found) <= 40 + 2  # a boundary that ends a split begins an empty document


@pytest.mark.parametrize("text", ["a line of text\n" * 1000 + "\n", "x" * 59_999 + "\n", "a line of text\n" * 1000 + "\0hi\n"])
def test_no_part_is_tiny(text):
    size = len(text)
    for start, stop in split(io.BytesIO(text.encode()), "book").values():
        assert stop - start >= size // 40


def test_data_that_cannot_be_read_are_not_thrown_away(tmp_path, prose, monkeypatch):
    data = prepare(tmp_path, prose)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(prepared, "sha256_of_file", denied)
        prepare(tmp_path, prose)
    assert texts(prepared.load(data.folder)) == texts(data)


def test_too_short(tmp_path):
    with pytest.raises(UserError, match="book has 9 bytes of text, too few"):
        prepare(tmp_path, "Sing, O M")


def test_large_vocabularies_take_32_bits(tmp_path):
    text = "".join(map(chr, range(0x10000, 0x10000 + 70_000))) * 2
    data = prepare(tmp_path, text, tokenizer="char")
    assert data.tokens["train"].dtype == np.uint32
    assert data.tokens["train"].max() >= 2**16
    assert "".join(texts(data).values()) == text


def test_other_options_are_other_data_and_the_same_are_found(tmp_path, prose, capsys):
    first = prepare(tmp_path, prose, tokenizer="bpe", vocab_size=300)
    assert prepare(tmp_path, prose, tokenizer="bpe", vocab_size=300).folder == first.folder
    assert "already in" in capsys.readouterr().out
    folders = {prepare(tmp_path, prose, tokenizer="bpe", vocab_size=n, min_count=m).folder for n in (300, 310) for m in (2, 3)}
    assert len(folders) == 4
    assert prepare(tmp_path, prose, tokenizer="char", vocab_size=9).folder == prepare(tmp_path, prose, tokenizer="char").folder


@pytest.mark.parametrize("damage", ["truncated", "edited", "foreign", "tokenizer", "meta"])
def test_damage_is_noticed_and_mended(tmp_path, prose, capsys, damage):
    data = prepare(tmp_path, prose, tokenizer="bpe", vocab_size=300)
    expected, path = texts(data), data.folder / "train.bin"
    content = path.read_bytes()
    del data
    if damage == "truncated":
        path.write_bytes(content[:-2])
    elif damage == "edited":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "foreign":
        path.write_bytes(path.with_name("val.bin").read_bytes())
    elif damage == "meta":
        path = path.with_name("meta.json")
        path.write_text(path.read_text().replace('"opening": [', '"opening": [9999,'))
    else:
        path = path.with_name("tokenizer.json")
        path.write_text(path.read_text().replace("BPE", "WordLevel"))
    with pytest.raises(UserError, match="is not what was written there"):
        prepared.load(path.parent)
    assert texts(prepare(tmp_path, prose, tokenizer="bpe", vocab_size=300)) == expected
    assert "preparing again" in capsys.readouterr().out


def test_nothing_is_left_of_a_preparation_that_fails(tmp_path, prose):
    def read():
        yield prose
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        stream.prepare_stream("text", tmp_path / "prepared", "book", "hash", {}, TokenizerSettings(), read)
    assert list((tmp_path / "prepared").iterdir()) == []


def test_the_meta_tells_what_was_done(tmp_path, prose):
    data = prepare(tmp_path, prose, tokenizer="word", vocab_size=50, min_count=3)
    meta = json.loads((data.folder / "meta.json").read_text())
    assert meta["options"] == {"tokenizer": "word", "vocab_size": 50, "min_count": 3}
    assert meta["kind"] == "stream" and meta["documents"] == 1 and meta["vocab_size"] == data.tokenizer.vocab_size <= 50


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_a_text_opens_after_a_blank_line_and_documents_after_the_boundary(kind, prose):
    tokenizer = train_tokenizer(kind, [prose], 400, 1)
    before = opening(tokenizer, documents=1)
    assert tokenizer.decode(before) == "\n\n" and len(before) == 2
    start = prose.index("\n\n") + 2
    ids = tokenizer.encode_all("." + prose[start - 2 : start + 30])
    assert ids[1:3].tolist() == before  # as the text itself has it
    assert opening(tokenizer, documents=2) == [tokenizer.boundary_id]
    assert opening(train_tokenizer("char", ["no line ends"], 3, 1), documents=1) == [0]
