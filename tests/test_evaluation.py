import math

import numpy as np
import pytest
import torch
from conftest import CPU, NAMES, TOKENIZER, small_model

from data.batches import RowLoader, StreamLoader
from data.tokenizers import encode_documents, train_tokenizer
from engine.evaluation import amount, evaluate


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_evaluation_counts_every_target_once(batch_size):
    model = small_model(dropout=0.5).train()
    tokens = encode_documents(NAMES, TOKENIZER)
    loss = evaluate(model, RowLoader(tokens, 0, 12, batch_size).once(), CPU)
    assert model.training
    model.eval()
    total = count = 0
    for name in NAMES:
        ids = torch.tensor([TOKENIZER.encode(f"${name}$")])
        with torch.no_grad():
            total += model(ids[:, :-1], ids[:, 1:])[1].item() * (len(name) + 1)
        count += len(name) + 1
    assert loss == pytest.approx(total / count, abs=1e-6)
    assert loss == evaluate(model, RowLoader(tokens, 0, 12, batch_size).once(), CPU)


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_bits_per_byte_count_the_bytes_of_the_text(kind, prose):
    tokenizer = train_tokenizer(kind, [prose], 400, 1)
    ids = np.concatenate([[tokenizer.boundary_id], tokenizer.encode_all(prose)])
    found = amount(StreamLoader(ids, 50, 3).once(), tokenizer)
    assert found == (len(ids) - 1, len(prose.encode()), 0)
    assert found.bits_per_byte(math.log(2)) == (len(ids) - 1) / len(prose.encode())  # one bit a token
    if kind == "char":
        assert found.bits_per_byte(math.log(2)) < 1  # some characters take two bytes
    half = amount(StreamLoader(ids, 50, 3).once(limit=len(ids) // 2), tokenizer)
    assert half.tokens == pytest.approx(len(ids) / 2, abs=51) and half.bytes == pytest.approx(found.bytes / 2, rel=0.2)


def test_unknown_words_leave_bits_per_byte_undefined(prose):
    tokenizer = train_tokenizer("word", [prose], 20, 1)
    ids = tokenizer.encode_all(prose)
    found = amount(StreamLoader(ids, 50, 3).once(), tokenizer)
    assert found.unknown == (ids[1:] == tokenizer.unknown_id).sum() > 0
    assert found.bits_per_byte(1.0) is None
