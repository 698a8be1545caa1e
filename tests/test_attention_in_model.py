"""engine/attention_in_model.py: what a path makes of a model."""

import pytest
import torch
from conftest import TOKENIZER, small_model

from data.batches import Batch
from engine.attention_in_model import by_path, gaps, greedy_texts, largest


def batch(B=3, T=8):
    idx = torch.randint(TOKENIZER.vocab_size, (B, T))
    return Batch(idx, idx.roll(-1, 1), None, B * T, B * T)


def test_both_paths_make_the_same_of_a_model():
    model, some = small_model(n_layer=2, init="gpt2", dropout=0.3), batch()
    manual, fused = (by_path(model, path, some, [0], [1.0], [0.1]) for path in ("manual", "fused"))
    gap = gaps(manual, fused)
    assert gap.logits < 1e-6 and gap.gradients < 1e-6 and gap.identical_texts == TOKENIZER.vocab_size and gap.losses == [0.0]
    assert manual.loss == pytest.approx(fused.loss, abs=1e-6)
    logits, loss = model.eval()(some.idx, some.targets)
    loss.backward()
    assert torch.equal(logits, fused.logits) and loss.item() == fused.loss
    for parameter, gradient in zip(model.parameters(), fused.gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_other_weights_are_another_model():
    model, some = small_model(init="gpt2"), batch()
    before = by_path(model, "manual", some, [0], [1.0, 3.0], [])
    with torch.no_grad():
        model.transformer.wte.weight.add_(torch.randn(model.transformer.wte.weight.shape))
    after = by_path(model, "fused", some, [0], [1.0, 2.0], [])
    gap = gaps(before, after)
    assert gap.logits == largest([before.logits - after.logits]) > 0.1
    assert gap.gradients > 1e-4 and gap.identical_texts < TOKENIZER.vocab_size and gap.losses == [0.0, 1.0]


def test_greedy_texts_are_those_of_generate():
    model = small_model(init="gpt2")
    texts = greedy_texts(model, [0], count=4)
    starts = [0, 4, 8, 13]  # of 14 tokens
    assert len(texts) == 4 and {len(text) for text in texts} == {10}  # until the context of 12 is full
    for start, text in zip(starts, texts, strict=True):
        expected = model.generate(torch.tensor([[0, start]]), 10, temperature=0)[0, 2:].tolist()
        assert text == expected


def test_the_largest_number_has_no_sign():
    assert largest([torch.tensor([1.0]), torch.tensor([-3.0, 2.0])]) == 3.0
