import json
import re
import unicodedata

import pytest
import tiktoken
import tokenizers
from conftest import small_prose
from hypothesis import given
from hypothesis import strategies as st
from tiktoken_ext.openai_public import r50k_pat_str

from data.tokenizers import (
    END_OF_TEXT,
    GPT2_PIECE,
    WORD_OR_MARK,
    CharTokenizer,
    decode_documents,
    encode_documents,
    load,
    train_tokenizer,
)
from engine.errors import UserError


def test_boundary_is_id_0_and_characters_follow_in_order():
    tokenizer = CharTokenizer("cab")
    assert tokenizer.boundary_id == 0
    assert tokenizer.vocab_size == 4
    assert tokenizer.encode("$cab") == [0, 3, 1, 2]
    assert tokenizer.decode([0, 1, 2, 3]) == "$abc"


@given(st.text())
def test_round_trip(text):
    text = unicodedata.normalize("NFC", text)
    assert CharTokenizer(text).decode(CharTokenizer(text).encode(text)) == text


@given(st.lists(st.text("abcé", min_size=1), min_size=1))
def test_documents_round_trip(documents):
    tokenizer = CharTokenizer("abcé")
    tokens = encode_documents(documents, tokenizer)
    assert tokens[0] == tokens[-1] == 0
    assert decode_documents(tokens, tokenizer) == documents


def test_prompts_are_normalised_as_the_data_were():
    tokenizer = CharTokenizer("adé", fold=True)
    assert tokenizer.encode("Ada") == tokenizer.encode("ada")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")
    with pytest.raises(UserError):
        CharTokenizer("ad").encode("Ada")


def test_unknown_character_is_named_beside_the_known_ones():
    with pytest.raises(UserError, match="'日' in '日本'.*known ones are abc"):
        CharTokenizer("cab").encode("日本")


def test_save_and_load(tmp_path):
    path = tmp_path / "tokenizer.json"
    CharTokenizer("aé日", fold=True).save(path)
    again = load(path)
    assert again.encode("$É日") == [0, 2, 3]
    assert again.fold


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "word"}', '{"kind": "char"}', "\ufeff{"])
def test_a_file_that_is_no_tokenizer(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="tokenizer.json holds no tokenizer"):
        load(path)


def test_the_file_is_readable_json(tmp_path):
    CharTokenizer("é").save(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_bytes().decode("utf-8"))["characters"] == ["é"]
    assert "é" in (tmp_path / "t.json").read_text(encoding="utf-8")


# characters, words and byte pairs of a text


CHAR, WORD, BPE = (train_tokenizer(kind, [small_prose(seed=1, paragraphs=60)], 400, 2) for kind in ("char", "word", "bpe"))
ANY_TEXT = st.text() | st.text(st.characters(categories=["So", "Mn", "Cc", "Zs", "Lo"])) | st.text("ab \n", max_size=200)


@given(ANY_TEXT)
def test_char_round_trips_and_shows_what_it_does_not_know(text):
    known = "".join(c for c in text if c in CHAR.ids)
    assert CHAR.decode(CHAR.encode(known)) == known
    ids = CHAR.encode_all(text)
    assert CHAR.decode(ids) == "".join(c if c in CHAR.ids else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert (ids == CHAR.unknown_id).sum() == sum(c not in CHAR.ids for c in text)
    assert CHAR.boundary_id not in ids


@given(st.text())
def test_a_char_vocabulary_of_any_text(text):
    tokenizer = train_tokenizer("char", [text], 3, 1)
    assert tokenizer.decode(tokenizer.encode(text)) == text  # not composed, not lower case, dollar signs and all
    assert tokenizer.token_bytes()[tokenizer.encode_all(text)].sum() == len(text.encode("utf-8"))


@given(ANY_TEXT)
def test_bpe_is_lossless_and_complete(text):
    ids = BPE.encode(text)
    assert BPE.encode_all(text).tolist() == ids
    assert BPE.decode(ids) == text
    assert BPE.token_bytes()[ids].sum() == len(text.encode("utf-8"))
    assert all(i < BPE.boundary_id for i in ids)


@given(st.binary())
def test_bpe_is_lossless_on_every_byte_string(data):
    assert BPE.decode_bytes(BPE.encode_bytes(data)) == data


@given(st.lists(st.sampled_from([*WORD.pieces[2:], "\n", " "])))
def test_words_round_trip(pieces):
    text = "".join(pieces)
    known = all(piece in WORD.pieces for piece in re.findall(WORD_OR_MARK, text))
    assert (WORD.unknown_id in WORD.encode_all(text)) == (not known)
    if known:
        assert WORD.decode(WORD.encode(text)) == text
        assert WORD.token_bytes()[WORD.encode(text)].sum() == len(text.encode("utf-8"))


@given(ANY_TEXT)
def test_words_of_any_text(text):
    tokenizer = train_tokenizer("word", [text], 10_000, 1)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_carry_their_blank_and_marks_stand_alone():
    pieces = ["The", " old", " king", ".", "\n", "naïve", " ship", ",", " ", "“", "yes", "”"]
    tokenizer = train_tokenizer("word", ["".join(pieces)], 100, 1)
    assert [tokenizer.pieces[i] for i in tokenizer.encode("".join(pieces))] == pieces


def test_unknown_words_stay_readable():
    tokenizer = train_tokenizer("word", ["The king.\n“, ”()"], 100, 1)
    ids = tokenizer.encode_all("The zorn, zorn king.\nzorn “zorn” (zorn) zorn zorn")
    assert tokenizer.decode(ids) == "The [UNK], [UNK] king.\n[UNK] “[UNK]” ([UNK]) [UNK] [UNK]"
    with pytest.raises(UserError, match=r"'zorn' is none of the \d+ words and marks this tokenizer knows$"):
        tokenizer.encode("The zorn")
    with pytest.raises(UserError, match="'king' is none of .*; ' king', with a blank before it, is"):
        tokenizer.encode("king")


@pytest.mark.parametrize("tokenizer", [CHAR, WORD, BPE], ids=["char", "word", "bpe"])
def test_saved_and_loaded_is_the_same(tokenizer, tmp_path, prose):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = load(path)
    assert type(again) is type(tokenizer)
    assert (again.vocab_size, again.boundary_id, again.unknown_id) == (tokenizer.vocab_size, tokenizer.boundary_id, tokenizer.unknown_id)
    assert again.encode_all(prose).tolist() == tokenizer.encode_all(prose).tolist()
    assert (again.token_bytes() == tokenizer.token_bytes()).all()
    assert tokenizer.vocab_size <= 400 and tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode("half \ud83d a character")
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode_all("\udcff")


@pytest.mark.parametrize("tokenizer", [CHAR, WORD, BPE], ids=["char", "word", "bpe"])
def test_special_names_in_a_text_are_ordinary_text(tokenizer):
    ids = tokenizer.encode_all("<|endoftext|>[UNK]$")
    assert tokenizer.boundary_id not in ids
    if tokenizer is BPE:
        assert BPE.decode(ids) == "<|endoftext|>[UNK]$"


def hugging_face(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    return tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def test_the_library_tokenizers_gives_the_same_ids(tmp_path_factory):
    theirs = hugging_face(BPE, tmp_path_factory.mktemp("bpe"))
    words = hugging_face(WORD, tmp_path_factory.mktemp("word"))

    @given(ANY_TEXT | st.text("theo kingsa\n", max_size=300))
    def same(text):
        assert theirs.encode(text).ids == BPE.encode(text)
        assert theirs.decode(BPE.encode(text)) == text
        assert words.encode(text).ids == WORD.encode_all(text).tolist()

    same()


def test_tiktoken_reads_the_ranks(tmp_path, prose):
    BPE.save(tmp_path / "tokenizer.json")
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "tokenizer.tiktoken"))
    assert ranks == BPE.ranks
    encoding = tiktoken.Encoding("again", pat_str=GPT2_PIECE, mergeable_ranks=ranks, special_tokens={})
    assert encoding.encode_ordinary(prose) == BPE.encode(prose)


@given(ANY_TEXT)
def test_our_first_cut_is_gpt2s(text):
    theirs = tiktoken.Encoding("theirs", pat_str=r50k_pat_str, mergeable_ranks=BPE.ranks, special_tokens={})
    assert theirs.encode_ordinary(text) == BPE.encode(text)


def test_gpt2(monkeypatch, tmp_path):
    """OpenAI's vocabulary where tiktoken has it; here with a stand-in of the same form."""
    stand_in = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=BPE.ranks, special_tokens={END_OF_TEXT: len(BPE.ranks)})
    monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": stand_in}.__getitem__)
    tokenizer = train_tokenizer("gpt2", [], 3, 1)
    assert tokenizer.ranks == BPE.ranks and tokenizer.boundary_id == stand_in.eot_token
    assert tokenizer.encode("a <|endoftext|>") == stand_in.encode_ordinary("a <|endoftext|>")

    def offline(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(UserError, match="tokenizer=gpt2.*TIKTOKEN_CACHE_DIR"):
        train_tokenizer("gpt2", [], 3, 1)


def test_bpe_needs_room_for_the_bytes():
    with pytest.raises(UserError, match="vocab_size=256 is too small"):
        train_tokenizer("bpe", ["a"], 256, 2)
    assert train_tokenizer("bpe", ["aaaa"], 257, 2).vocab_size == 257


def test_min_count():
    assert train_tokenizer("word", ["one two two"], 100, 2).pieces[2:] == [" two"]
    assert train_tokenizer("word", ["one two two"], 100, 1).encode("one two two")


def test_a_text_may_hold_the_mark_of_the_unknown():
    tokenizer = train_tokenizer("char", ["a\N{REPLACEMENT CHARACTER}"], 3, 1)
    assert tokenizer.encode("a\N{REPLACEMENT CHARACTER}") == [2, 3]
    assert tokenizer.encode_all("ab").tolist() == [2, tokenizer.unknown_id]
    with pytest.raises(UserError, match="unknown character '�'"):
        CHAR.encode("�")
