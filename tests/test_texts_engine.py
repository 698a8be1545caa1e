from dataclasses import replace
from itertools import islice

import pytest
import torch
from conftest import TOKENIZER, small_model

from config.settings import SamplingSettings
from data.tokenizers import train_tokenizer
from engine.errors import UserError
from engine.generation import continuations, only_new, page


def test_continuations_begin_with_the_prompt_and_depend_on_their_row_only():
    model = small_model()
    settings = SamplingSettings(max_new_tokens=20, num_samples=3)
    texts = list(islice(continuations(model, TOKENIZER, settings, [0], "mar"), 9))
    assert all(text.startswith("mar") and "$" not in text and len(text) <= 23 for text in texts)
    assert len(set(texts)) > 6
    assert list(islice(continuations(model, TOKENIZER, replace(settings, num_samples=9), [0], "mar"), 9)) == texts
    assert list(islice(continuations(model, TOKENIZER, settings, [0], "mar", first_row=4), 5)) == texts[4:]
    long = next(continuations(model, TOKENIZER, settings, [0], "alexander" * 3))
    assert long.startswith("alexander" * 3)


def test_a_text_that_ends_at_once_is_empty():
    model = small_model(tied_head=False, position="rotary")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight[0] = 100
    assert list(islice(continuations(model, TOKENIZER, SamplingSettings(num_samples=2), [0]), 2)) == ["", ""]


def test_only_new():
    texts = iter(["a", "b", "b", "c", "a", "d", "e"])
    assert only_new(texts, {"a"}, 3) == (["b", "c", "d"], 6)
    endless = iter(lambda: "a", None)
    assert only_new(endless, {"a"}, 3) == ([], 1000)


def test_continuations_of_a_text(prose):
    tokenizer = train_tokenizer("char", [prose], 3, 1)
    model = small_model(vocab_size=tokenizer.vocab_size)
    settings = SamplingSettings(max_new_tokens=30, num_samples=2)
    opening = tokenizer.encode("\n\n")
    texts = list(islice(continuations(model, tokenizer, settings, opening, "The "), 4))
    assert all(text.startswith("The ") and len(text) <= 34 for text in texts)
    with pytest.raises(UserError, match="unknown character '#'"):
        next(continuations(model, tokenizer, settings, opening, "#"))


def test_page():
    assert page("\n\nshort\n\n  indented line\n") == "short\n\n  indented line"
    long = page("word " * 50)
    assert max(map(len, long.split("\n"))) <= 80 and long.split() == ["word"] * 50
