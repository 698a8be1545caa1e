import math
from dataclasses import replace

import pytest
import torch
from conftest import small_model

from config.settings import Settings
from engine.optimizer import Muon, learning_rate_at, make_optimizers, orthogonal, set_learning_rate, update_average


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


def test_constant_then_linear():
    settings = Settings(learning_rate=2.0, max_steps=100, warmup_steps=10, schedule="constant", cooldown_steps=20)
    rates = [learning_rate_at(step, settings) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10:81] == [2.0] * 71
    assert rates[81:] == pytest.approx([2.0 - 0.1 * i for i in range(1, 20)])
    late = replace(settings, cooldown_steps=1000)  # longer than the run: it begins after the warm-up
    assert learning_rate_at(9, late) == 2.0 and learning_rate_at(55, late) == pytest.approx(1.0)


def test_inverse_square_root_is_the_papers():
    """d^-0.5 min(step^-0.5, step warmup^-1.5), with steps from 1 (Vaswani et al. 2017, equation 3)."""
    C, warmup = 512, 400
    top = C**-0.5 * warmup**-0.5
    settings = Settings(learning_rate=top, max_steps=3000, warmup_steps=warmup, schedule="inverse_sqrt")
    for step in (1, 2, 399, 400, 401, 1600, 3000):
        paper = C**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate_at(step - 1, settings) == pytest.approx(paper)
    assert learning_rate_at(0, replace(settings, warmup_steps=0)) == pytest.approx(top)


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
    step = (weight - before * (1 - 0.01 * 0.3)) / 0.01  # float32: the default
    singular = torch.linalg.svdvals(step) / (0.2 * 64**0.5)  # (64, 16): match_rms_adamw scales by 0.2 sqrt(64)
    assert 0.7 < singular.median() < 1.1 and singular.max() < 1.3  # five Newton-Schulz steps bring them near 1, not to it


@pytest.mark.parametrize("shape", [(16, 16), (16, 48)])
def test_orthogonal(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    out = orthogonal(matrices)
    singular = torch.linalg.svdvals(out)
    assert singular.min() > 0.5 and singular.max() < 1.3
    for matrix, result in zip(matrices, out, strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        assert torch.nn.functional.cosine_similarity((u @ v).flatten(), result.flatten(), dim=0) > 0.97
        torch.testing.assert_close(orthogonal(matrix[None])[0], result)  # alone as in a stack


def test_muon_is_torchs_muon_with_queries_keys_and_values_apart():
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "h.0.attn.c_attn.weight": (24, 8),
        "h.0.mlp.c_fc.weight": (32, 8),
        "h.1.mlp.c_fc.weight": (32, 8),
        "h.1.mlp.c_proj.weight": (8, 32),
    }
    ours = {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}
    theirs = [part.detach().clone().requires_grad_() for name, p in ours.items() for part in (p.chunk(3) if "c_attn" in name else [p])]
    optimizer = Muon(ours, lr=0.02, weight_decay=0.1, dtype=torch.bfloat16)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        parts = []
        for name, p in ours.items():
            p.grad = torch.randn(p.shape, generator=generator)
            parts += p.grad.chunk(3) if "c_attn" in name else [p.grad]
        for p, grad in zip(theirs, parts, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        reference.step()
    flat = torch.cat([p.detach().flatten() for p in ours.values()])
    torch.testing.assert_close(flat, torch.cat([p.detach().flatten() for p in theirs]), atol=2e-3, rtol=0)  # steps of 0.05, in bfloat16


def test_muon_leaves_what_has_no_gradient():
    p = torch.ones(4, 4, requires_grad=True)
    Muon({"p": p}, lr=0.1).step()
    assert p.detach().equal(torch.ones(4, 4))


def test_the_average_of_the_weights():
    model, average = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    expected = None
    for step in range(100):
        model.weight.data.fill_(float(step))
        decay = min(0.9, (1 + step) / (10 + step))
        before = average.weight.item() if expected is None else expected
        expected = decay * before + (1 - decay) * step
        update_average(average, model, 0.9, step)
        assert average.weight.item() == pytest.approx(expected, rel=1e-5)
    assert average.weight.item() == pytest.approx(99 - 9, rel=0.01)  # a tenth of the way at each step: nine steps behind
