from dataclasses import replace
from itertools import islice

import torch
from conftest import TOKENIZER, small_model

from config.settings import SamplingSettings
from engine.generation import continuations, only_new


def test_continuations_begin_with_the_prompt_and_depend_on_their_row_only():
    model = small_model()
    settings = SamplingSettings(max_new_tokens=20, num_samples=3)
    texts = list(islice(continuations(model, TOKENIZER, settings, "mar"), 9))
    assert all(text.startswith("mar") and "$" not in text and len(text) <= 23 for text in texts)
    assert len(set(texts)) > 6
    assert list(islice(continuations(model, TOKENIZER, replace(settings, num_samples=9), "mar"), 9)) == texts
    assert list(islice(continuations(model, TOKENIZER, settings, "mar", first_row=4), 5)) == texts[4:]
    long = next(continuations(model, TOKENIZER, settings, "alexander" * 3))
    assert long.startswith("alexander" * 3)


def test_a_text_that_ends_at_once_is_empty():
    model = small_model(tied_head=False, position="rotary")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1)
        model.lm_head.weight[0] = 100
    assert list(islice(continuations(model, TOKENIZER, SamplingSettings(num_samples=2), ""), 2)) == ["", ""]


def test_only_new():
    texts = iter(["a", "b", "b", "c", "a", "d", "e"])
    assert only_new(texts, {"a"}, 3) == (["b", "c", "d"], 6)
    endless = iter(lambda: "a", None)
    assert only_new(endless, {"a"}, 3) == ([], 1000)
