import pytest
import torch
from conftest import CPU, NAMES, TOKENIZER, small_model

from data.batches import RowLoader
from data.tokenizers import encode_documents
from engine.evaluation import evaluate


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
