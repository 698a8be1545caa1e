import math
from dataclasses import replace

import pytest
from conftest import small_model

from config.settings import Settings
from engine.optimizer import learning_rate_at, make_optimizer, set_learning_rate


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
    optimizer = make_optimizer(model, Settings(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert decayed["weight_decay"] == 0.3 and plain["weight_decay"] == 0
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == model.num_parameters()
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
