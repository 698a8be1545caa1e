import random
from dataclasses import replace
from itertools import islice

import pytest
import torch
from conftest import TOKENIZER, small_model

from config.settings import SamplingSettings
from data.tokenizers import train_tokenizer
from engine.errors import UserError
from engine.generation import Token, generate
from engine.sampling import Choice
from engine.writing import Piece, Writer, continuations, encode_prompt, in_order, only_new, page, pieces, texts


@pytest.fixture(params=["char", "word", "bpe"])
def tokenizer(request, prose):
    return train_tokenizer(request.param, [prose], 300, 2)


def test_continuations_depend_on_their_row_only():
    model = small_model()
    settings = SamplingSettings(max_new_tokens=20, num_samples=3)
    written = list(islice(continuations(model, TOKENIZER, settings, [0]), 9))
    assert all("$" not in text and len(text) <= 20 for text in written)
    assert len(set(written)) > 6
    assert list(islice(continuations(model, TOKENIZER, replace(settings, num_samples=9), [0]), 9)) == written
    assert list(islice(continuations(model, TOKENIZER, replace(settings, seed=1), [0]), 9)) != written


def test_a_text_that_ends_at_once_is_empty():
    model = small_model(tied_head=False, position="rotary")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight[0] = 100
    assert list(islice(continuations(model, TOKENIZER, SamplingSettings(num_samples=2), [0]), 2)) == ["", ""]


def test_only_new():
    written = iter(["a", "b", "b", "c", "a", "d", "e"])
    assert only_new(written, {"a"}, 3) == (["b", "c", "d"], 6)
    endless = iter(lambda: "a", None)
    assert only_new(endless, {"a"}, 3) == ([], 1000)
    numbers = iter([1, 2, 12, 3])
    assert only_new(numbers, {"1"}, 2, lambda number: str(number)[0]) == ([2, 3], 4)


def test_page():
    assert page("\n\nshort\n\n  indented line\n") == "short\n\n  indented line"
    long = page("word " * 50)
    assert max(map(len, long.split("\n"))) <= 80 and long.split() == ["word"] * 50


def test_a_prompt_without_tokens_or_with_the_boundary():
    assert TOKENIZER.decode(encode_prompt(TOKENIZER, "ada")) == "ada"
    with pytest.raises(UserError, match="unknown character '#'"):
        encode_prompt(TOKENIZER, "a#")
    with pytest.raises(UserError, match=r"prompt 'a\$': \$ marks where a text ends"):
        encode_prompt(TOKENIZER, "a$")


# tokens as they come


def test_pieces_join_to_the_decoded_text(tokenizer, prose):
    ids = tokenizer.encode_all(prose).tolist()
    chance = random.Random(0)
    for tokens in (ids, [i for i in chance.choices(range(tokenizer.vocab_size), k=500) if i != tokenizer.boundary_id]):
        writer = Writer(tokenizer)
        parts = [writer.add(token) for token in tokens]
        assert "".join(parts) + writer.rest() == tokenizer.decode(tokens)
        assert not writer.ended


def test_no_piece_has_half_a_character(prose):
    tokenizer = train_tokenizer("bpe", [prose], 257, 2)  # a token a byte
    text = "naïve “yes” 日本 🙂"
    writer = Writer(tokenizer)
    parts = [writer.add(token) for token in tokenizer.encode(text)]
    assert "".join(parts) == text and writer.rest() == ""
    assert all("\N{REPLACEMENT CHARACTER}" not in part for part in parts)
    assert parts[-1] == "🙂" and parts[-4:-1] == ["", "", ""]
    writer = Writer(tokenizer)
    assert "".join(map(writer.add, tokenizer.encode("日")[:2])) == ""
    assert writer.rest() == "\N{REPLACEMENT CHARACTER}"


def test_an_unknown_word_after_a_prompt_keeps_its_blank(prose):
    tokenizer = train_tokenizer("word", [prose], 300, 2)
    prompt = tokenizer.encode(" the old")
    writer = Writer(tokenizer, before=prompt)
    assert " the old" + writer.add(tokenizer.unknown_id) == tokenizer.decode([*prompt, tokenizer.unknown_id])


@pytest.mark.parametrize("stops", [("the",), ("e s", "said"), ("ing of Ith", "xyz"), ("\n\n",), ("aa", "aab"), ("abab",)])
def test_a_stop_string_cuts_exactly_wherever_tokens_end(tokenizer, prose, stops):
    chance = random.Random(1)
    for _ in range(20):
        start = chance.randrange(len(prose) - 200)
        tokens = tokenizer.encode_all(prose[start : start + 200]).tolist()  # words cut in two are unknown
        writer, certain, text = Writer(tokenizer, stops), "", tokenizer.decode(tokens)
        for token in tokens:
            certain += writer.add(token)
            assert text.startswith(certain)
            if writer.ended:
                break
        places = [text.find(stop) for stop in stops if stop in text]
        expected = text[: min(places)] if places else text
        assert certain + writer.rest() == expected
        assert writer.ended == bool(places)


def test_text_that_may_begin_a_stop_string_is_held_back():
    writer = Writer(TOKENIZER, ("lee", "lex"))
    seen = [writer.add(token) for token in TOKENIZER.encode("alalled")]
    assert seen == ["a", "", "la", "", "l", "", "led"]
    assert [writer.add(token) for token in TOKENIZER.encode("le")] == ["", ""]
    assert writer.rest() == "le"


def test_a_stop_string_within_min_new_tokens_stays():
    writer = Writer(TOKENIZER, ("ad",), min_new_tokens=2)
    assert "".join(map(writer.add, TOKENIZER.encode("adak"))) + writer.rest() == "adak" and not writer.ended
    writer = Writer(TOKENIZER, ("ad",), min_new_tokens=2)
    assert "".join(map(writer.add, TOKENIZER.encode("xad"))) == "x" and writer.ended  # it ends after them
    writer = Writer(TOKENIZER, ("ad",), min_new_tokens=2)
    assert "".join(map(writer.add, TOKENIZER.encode("adad"))) == "ad" and writer.ended


# rows


def test_stop_strings_end_rows_of_a_batch():
    model = small_model()
    prompts = [[0], [0, 3, 4], [0, 1]] * 4
    free = list(texts(pieces(model, TOKENIZER, prompts, 40, Choice(), seed=3)))
    cut = list(texts(pieces(model, TOKENIZER, prompts, 40, Choice(), ["da", "x"], seed=3)))
    assert len(free) == len(cut) == 12
    ended = 0
    for whole, part in zip(free, cut, strict=True):
        places = [whole.text.find(stop) for stop in ("da", "x") if stop in whole.text]
        assert part.text == (whole.text[: min(places)] if places else whole.text)
        assert part.tokens[-1].finish == ("stop_string" if places else "length")
        assert [token.id for token in whole.tokens[: len(part.tokens)]] == [token.id for token in part.tokens]
        ended += bool(places)
    assert ended > 3


def test_texts_are_what_generate_draws():
    model = small_model()
    prompts = [[0], [0, 5], [0, 2, 2]]
    choice = Choice(stop_tokens=(0,))
    drawn = {}
    for token in generate(model, prompts, 30, choice, seed=5, first_row=4):
        drawn.setdefault(token.row, []).append(token)
    for row, text in enumerate(texts(pieces(model, TOKENIZER, prompts, 30, choice, first_row=4, seed=5)), start=4):
        assert text.tokens == drawn[row]
        assert text.text == TOKENIZER.decode(token.id for token in drawn[row] if token.id)


def test_pieces_in_the_order_of_their_rows():
    def piece(row, text, finish=None):
        return Piece(Token(row, 0, None, finish), text)

    mixed = [
        piece(7, "a"),
        piece(8, "x"),
        piece(7, "b"),
        piece(8, "y", "length"),
        piece(9, "!"),
        piece(7, "c", "length"),
        piece(9, "?", "length"),
    ]
    came = []

    def noted():
        for p in mixed:
            came.append(p)
            yield p

    seen = []
    for p in in_order(noted()):
        seen.append((p.text, len(came)))
    assert [text for text, _ in seen] == list("abcxy!?")
    assert seen[:2] == [("a", 1), ("b", 3)]  # those of the first row at once
    assert [text.text for text in texts(mixed)] == ["abc", "xy", "!?"]
