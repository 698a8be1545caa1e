import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tokenizers import CharTokenizer, decode_documents, encode_documents, load
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
    tokenizer = CharTokenizer("adé", lowercase=True)
    assert tokenizer.encode("Ada") == tokenizer.encode("ada")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")
    with pytest.raises(UserError):
        CharTokenizer("ad").encode("Ada")


def test_unknown_character_is_named_beside_the_known_ones():
    with pytest.raises(UserError, match="'日' in '日本'.*known ones are abc"):
        CharTokenizer("cab").encode("日本")


def test_save_and_load(tmp_path):
    path = tmp_path / "tokenizer.json"
    CharTokenizer("aé日", lowercase=True).save(path)
    again = load(path)
    assert again.encode("$É日") == [0, 2, 3]
    assert again.lowercase


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
