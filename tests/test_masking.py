from pathlib import Path

import numpy as np
import pytest
import torch

from config.settings import Settings
from data.prepared import Prepared
from data.tokenizers import CharTokenizer, encode_documents
from engine import masking
from engine.errors import UserError
from engine.tasks import task_of
from zoo.encoder import Encoder, EncoderConfig

NAMES = ["ada", "bob", "eve", "jo", "robert", "anna"]


@pytest.fixture
def data():
    tokenizer = CharTokenizer("".join(NAMES), fold=True)
    tokens = {part: encode_documents(NAMES, tokenizer) for part in ("train", "val", "test")}
    return Prepared(Path("."), {"kind": "rows", "longest": 6}, tokenizer, tokens, {})


def encoder(data):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(vocab_size=data.tokenizer.vocab_size, n_embd=32, n_head=2, n_layer=1, block_size=8))


def test_an_encoder_learns_to_fill_in_its_names(data):
    model = encoder(data)
    lengths, make = masking.examples("train", data, Settings(block_size=8, mask_share=0.3))
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-2), np.random.default_rng(0)
    before = masking.measure(model, data, "test")
    for _ in range(200):
        _, loss = model(*make(np.arange(len(lengths)), rng).inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = masking.measure(model, data, "test")
    assert before["hidden"] == after["hidden"] >= len(NAMES) == after["names"]
    assert after["loss"] < 0.5 < before["loss"] and after["accuracy"] > 0.8
    assert masking.fill(model, data.tokenizer, ["a_a", "ro_er_", "Ev_", "_nna"]) == ["ada", "robert", "eve", "anna"]
    said = masking.samples(model, data, Settings(), 3)
    assert [text.split(" -> ")[1] for text in said] == NAMES[:3]
    assert all("_" in text.split(" -> ")[0] for text in said)
    assert model.training
    assert f"{after['accuracy']:.1%}" in masking.report({"test": after})


def test_measure_is_the_mean_over_hidden_characters(data):
    model = encoder(data).eval()
    lengths, make = masking.hidden(data, "val", masking.SHARE, masking.SEED)
    idx, targets = make(np.arange(len(lengths)), None).inputs
    logits, loss = model(idx, targets)
    found = masking.measure(model, data, "val")
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(2) == targets)[targets >= 0].float().mean()))


def test_nothing_but_what_is_hidden_is_changed(data):
    texts = ["a_a_", "______", "jo_", "b_"]
    for text, filled in zip(texts, masking.fill(encoder(data), data.tokenizer, texts), strict=True):
        assert len(filled) == len(text) and "$" not in filled and "_" not in filled
        assert all(old in ("_", new) for old, new in zip(text, filled, strict=True))
    assert masking.fill(encoder(data), data.tokenizer, texts[:1]) == masking.fill(encoder(data), data.tokenizer, texts)[:1]


def test_the_surest_is_filled_in_first(data):
    class Follows(torch.nn.Module):
        """Is sure of a last letter b, and of any other that it is the one behind it."""

        def __init__(self):
            super().__init__()
            self.config, self.weight = EncoderConfig(n_embd=8, n_head=1), torch.nn.Parameter(torch.zeros(1))

        def forward(self, idx):
            V = data.tokenizer.vocab_size
            logits = torch.zeros(*idx.shape, V)
            b = data.tokenizer.ids["b"]
            for i, row in enumerate(idx.tolist()):
                for j in range(len(row) - 1):
                    behind = row[j + 1]
                    if behind == 0:
                        logits[i, j, b] = 9
                    elif 0 < behind < V:
                        logits[i, j, behind] = 5
            return logits, None

    assert masking.fill(Follows(), data.tokenizer, ["____", "__a_"]) == ["bbbb", "aaab"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("ada", "nothing to guess"), ("", "nothing to guess"), ("a_$", "is no name"), ("x_", "unknown character"), ("anna_anna", "up to 7")],
)
def test_texts_it_cannot_fill(data, text, words):
    with pytest.raises(UserError, match=words):
        masking.fill(encoder(data), data.tokenizer, ["a_a", text])


def test_a_block_size_too_small(data):
    with pytest.raises(UserError, match="block_size=7 would fit"):
        masking.examples("train", data, Settings(block_size=6))
    assert len(masking.examples("train", data, Settings(block_size=7))[0]) == len(NAMES)


def test_its_kind():
    assert task_of("rows", "encoder") is masking and task_of("rows", "gpt") is None
