import math
from dataclasses import replace

import pytest
import torch
from conftest import small_model

from config.settings import Settings
from engine.optimizer import learning_rate_at, make_optimizers, set_learning_rate


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 50, 100])
def test_learning_rates(schedule, warmup):
    settings = Settings(learning_rate=1.0, min_learning_rate=0.1, max_steps=50, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate_at(step, settings) for step in range(50)]
    assert all(0 < rate <= 1 for rate in rates)
    rising = rates[:warmup]
    assert rising == pytest.approx([(i + 1) / warmup for i in range(len(rising))])
    falling = rates[warmup:]
    assert falling == sorted(falling, reverse=True)
    if falling:
        assert falling[0] == 1.0
        assert falling[-1] >= (1.0 if schedule == "constant" else 0.1)


def test_schedules_by_hand():
    settings = Settings(learning_rate=2.0, min_learning_rate=1.0, max_steps=110, warmup_steps=10)
    assert learning_rate_at(60, replace(settings, schedule="linear")) == pytest.approx(1.5)
    assert learning_rate_at(35, replace(settings, schedule="cosine")) == pytest.approx(1 + (1 + math.cos(math.pi / 4)) / 2)


def test_only_matrices_decay():
    model = small_model()
    (optimizer,) = make_optimizers(model, Settings(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert decayed["weight_decay"] == 0.3 and plain["weight_decay"] == 0
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == model.num_parameters()
    set_learning_rate([optimizer], 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_muon_takes_the_matrices_inside_the_blocks():
    model = small_model(n_layer=2, tied_head=False)
    adamw, muon = optimizers = make_optimizers(model, Settings(optimizer="muon", weight_decay=0.3))
    ids = {id(p): name for name, p in model.named_parameters()}
    in_muon = {ids[id(p)] for group in muon.param_groups for p in group["params"]}
    in_adamw = [ids[id(p)] for group in adamw.param_groups for p in group["params"]]
    layers = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert in_muon == {f"transformer.h.{i}.{layer}.weight" for i in (0, 1) for layer in layers}
    assert in_muon | set(in_adamw) == set(ids.values()) and len(in_adamw) == len(ids) - len(in_muon)
    assert muon.param_groups[0]["weight_decay"] == 0.3
    set_learning_rate(optimizers, 0.01)
    weight = model.transformer.h[0].mlp.c_fc.weight
    before = weight.detach().clone()
    idx = torch.randint(8, (4, 12))
    model(idx, idx)[1].backward()
    muon.step()
    step = (weight - before * (1 - 0.01 * 0.3)) / 0.01
    singular = torch.linalg.svdvals(step) / (0.2 * 64**0.5)  # (64, 16): match_rms_adamw scales by 0.2 sqrt(64)
    assert 0.7 < singular.median() < 1.1 and singular.max() < 1.3  # five Newton-Schulz steps bring them near 1, not to it
