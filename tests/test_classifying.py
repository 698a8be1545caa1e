import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CPU

from config.settings import Settings
from data.prepared import Prepared
from data.tokenizers import CharTokenizer, encode_documents
from engine import classifying
from engine.errors import UserError
from engine.evaluation import evaluate
from engine.tasks import task_of
from zoo.encoder import Encoder, EncoderConfig

NAMES = ["ada", "bob", "eve", "jo", "robert", "anna"]
COUNTS = np.array([[9, 0], [0, 7], [5, 1], [4, 4], [0, 3], [8, 0]])
CLASSES = ["female", "male"]


@pytest.fixture
def data():
    tokenizer = CharTokenizer("".join(NAMES), fold=True)
    meta = {"kind": "classes", "classes": CLASSES, "longest": 6}
    tokens = {part: encode_documents(NAMES, tokenizer) for part in ("train", "val", "test")}
    return Prepared(Path("."), meta, tokenizer, tokens, {part: {"counts": COUNTS} for part in tokens})


@pytest.fixture
def pictures():
    images = np.random.default_rng(0).integers(256, size=(5, 1, 2, 2), dtype=np.uint8)
    arrays = {"images": images, "classes": np.array([0, 1, 2, 1, 0])}
    return Prepared(Path("."), {"kind": "classes", "classes": ["a", "b", "c"]}, None, {"val": np.empty(0)}, {"val": arrays})


class Pixel(torch.nn.Module):
    """Says the class by the first pixel: below, at, above the middle."""

    def __init__(self):
        super().__init__()
        self.config = EncoderConfig(n_classes=3, n_embd=8, n_head=1)
        self.weight = torch.nn.Parameter(torch.tensor([-9.0, 0.0, 9.0]))

    def forward(self, pixels):
        return pixels[:, 0, 0, :1] * self.weight, None


def encoder(data, **options):
    torch.manual_seed(0)
    config = EncoderConfig(vocab_size=data.tokenizer.vocab_size, n_embd=16, n_head=2, n_layer=1, block_size=8, n_classes=2, **options)
    return Encoder(config)


def test_figures_by_hand():
    chances = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
    found = classifying.figures(chances, np.array([[10, 0], [0, 1], [6, 2], [3, 3]]))
    assert found["accuracy"] == 3 / 4  # of two equally common classes either is right
    assert found["counted_accuracy"] == (10 + 1 + 2 + 3) / 25
    expected = [-np.log(0.9), -np.log(0.6), -0.75 * np.log(0.2) - 0.25 * np.log(0.8), -0.5 * np.log(0.7) - 0.5 * np.log(0.3)]
    assert found["cross_entropy"] == pytest.approx(np.mean(expected))
    assert found["confusion"] == [[2, 1], [0, 1]]
    assert "counted_accuracy" not in classifying.figures(chances, np.eye(2, dtype=int)[[0, 1, 0, 0]])


def test_calibration_error_by_hand():
    sure, right = np.array([0.62, 0.64, 0.97, 1.0]), np.array([True, False, True, True])
    expected = (abs(0.62 + 0.64 - 1) + abs(0.97 + 1.0 - 2)) / 4
    assert classifying.calibration_error(sure, right, bins=10) == pytest.approx(expected)
    assert classifying.calibration_error(np.array([0.75] * 4), np.array([True, True, True, False])) == pytest.approx(0)
    assert classifying.calibration_error(np.array([0.1, 0.2]), np.array([False, False]), bins=10) == pytest.approx(0.15)


def test_an_encoder_learns_its_names(data):
    model = encoder(data)
    lengths, make = classifying.examples("train", data, Settings(block_size=8))
    batch = make(np.arange(len(lengths)), None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        _, loss = model(*batch.inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = classifying.measure(model, data, "test")
    assert found["accuracy"] == 1
    assert found["counted_accuracy"] == pytest.approx(found["ceiling"]) == pytest.approx((9 + 7 + 5 + 4 + 3 + 8) / 41)
    assert found["cross_entropy"] == pytest.approx(evaluate(model, [batch], CPU), abs=1e-5)
    assert model.training
    chances = classifying.classify(model, data.tokenizer, CLASSES, ["Ada", "robert", "ada"])
    assert chances.shape == (3, 2) and np.allclose(chances.sum(1), 1)
    assert np.allclose(chances[0], chances[2]) and chances[0, 0] > 0.9 and chances[1, 1] > 0.9
    assert classifying.samples(model, data, Settings(), 2)[0] == classifying.line("ada", chances[0], CLASSES)
    shown = classifying.report({"val": found, "test": found})
    assert "100.0%" in shown and "told male" in shown
    assert len({len(row) for row in shown.split("\n\n")[0].splitlines()}) == 1


def test_a_line():
    assert classifying.line("ada", np.array([0.991, 0.009]), CLASSES) == "ada  female 99.1%"


def test_the_logistic_regression_needs_two_classes(data):
    pytest.importorskip("sklearn")
    data.arrays["train"] = {"counts": COUNTS[:, :1].clip(min=1) * [1, 0]}
    assert classifying.by_ngrams(data, "test") is None


@pytest.mark.parametrize("missing", [False, True])
def test_the_logistic_regression_beside_it(data, monkeypatch, missing):
    if missing:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        pytest.importorskip("sklearn")
    found = classifying.measure(encoder(data), data, "test")
    shown = classifying.report({"test": found})
    assert ("n-grams of 1 to 5" in shown) == (not missing)
    assert ("pip install" in shown) == missing
    if not missing:
        assert found["ngrams"]["accuracy"] == 1  # of the names it was fitted to


def test_pictures(pictures):
    lengths, _ = classifying.examples("val", pictures, Settings(warp=0.1))
    assert len(lengths) == 5
    found = classifying.measure(Pixel(), pictures, "val")
    first = pictures.arrays["val"]["images"][:, 0, 0, 0]
    said = np.where(first < 127.5, 0, 2)
    assert found["accuracy"] == (said == pictures.arrays["val"]["classes"]).mean()
    assert "ngrams" not in found and "counted_accuracy" not in found
    assert "right, by count" not in classifying.report({"val": found})
    assert classifying.samples(Pixel(), pictures, Settings(), 1)[0].startswith("a picture of a:  ")


@pytest.mark.parametrize(
    ("text", "words"), [("", "is no name"), ("a$a", "is no name"), ("xavier", "unknown character"), ("annaanna", "up to 7")]
)
def test_texts_it_cannot_read(data, text, words):
    with pytest.raises(UserError, match=words):
        classifying.classify(encoder(data), data.tokenizer, CLASSES, ["ada", text])


def test_a_block_size_too_small(data):
    with pytest.raises(UserError, match="block_size=7 would fit"):
        classifying.examples("train", data, Settings(block_size=6))
    assert len(classifying.examples("train", data, Settings(block_size=7))[0]) == len(NAMES)


def test_other_classes_than_the_models(data):
    with pytest.raises(UserError, match="2 classes"):
        classifying.classify(encoder(data), data.tokenizer, ["a", "b", "c"], ["ada"])


def test_its_kind():
    assert task_of("classes", "encoder") is classifying and task_of("classes", "vit") is classifying
