"""engine/attention_error.py: the float64 reference, its bounds, and what they let pass and what not."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from conftest import CPU
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.attention_error
from engine.attention_error import TENSORS, Truth, errors, reference, within
from engine.attention_paths import Inputs, Shape, hard_cases, outcome, random_inputs
from model import causal_mask, fused_attention, manual_attention, merge_heads, split_heads

BOOLEAN = torch.tensor([[1, 0, 0, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
ON_A_CPU = ("manual", "fused", "math", "flash")
SQUARE, CACHE = (2, 4, 24, 24, 16), (2, 4, 5, 37, 16)


def standard(shape, dtype=torch.float32, mask=None, scale=1.0):
    return random_inputs(Shape(*shape), CPU, dtype, mask, scale)


def values_of(truths):
    return [truth.value for truth in truths]


# the reference


def test_reference_of_scaling_and_mask():
    q = torch.tensor([[0.0, 0, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]])[None, None]
    k = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])[None, None]
    v = torch.tensor([[1.0], [3.0], [9.0]]).expand(3, 4)[None, None]
    y = reference(Inputs(q, k, v, torch.ones_like(q)))[0].value
    assert y[0, 0, 1, 0].item() == pytest.approx(1.537883, abs=1e-6)


def test_reference_of_john_seen_from_o():
    q = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 2, -1]])[None, None]
    k = torch.tensor([[0.3, 0.7, -0.4], [0.2, 0.2, -0.2], [0.6, 1.2, -0.6]])[None, None]
    v = torch.tensor([[-0.5, 0.8, 0.1], [0.2, 0.3, -0.7], [0.9, -0.2, 0.4]])[None, None]
    y = reference(Inputs(q, k, v, torch.ones_like(q)))[0].value
    assert y[0, 0, 2].tolist() == pytest.approx([0.4505, 0.1211, 0.1872], abs=5e-5)


def by_loops(inputs, allowed):
    """Output and gradients of one head in plain Python numbers. allowed(i, j): whether query i sees key j."""
    q, k, v, g = (x.tolist() for x in inputs[:4])
    T, S, D = len(q), len(k), len(q[0])
    y, gq = [[0.0] * D for _ in range(T)], [[0.0] * D for _ in range(T)]
    gk, gv = [[0.0] * D for _ in range(S)], [[0.0] * D for _ in range(S)]
    for i in range(T):
        seen = [j for j in range(S) if allowed(i, j)]
        e = {j: math.exp(sum(q[i][d] * k[j][d] for d in range(D)) / math.sqrt(D)) for j in seen}
        p = {j: e[j] / sum(e.values()) for j in seen}
        by_p = {j: sum(g[i][d] * v[j][d] for d in range(D)) for j in seen}
        mean = sum(p[j] * by_p[j] for j in seen)
        for j in seen:
            by_s = p[j] * (by_p[j] - mean) / math.sqrt(D)
            for d in range(D):
                y[i][d] += p[j] * v[j][d]
                gv[j][d] += p[j] * g[i][d]
                gq[i][d] += by_s * k[j][d]
                gk[j][d] += by_s * q[i][d]
    return [torch.tensor(x, dtype=torch.float64) for x in (y, gq, gk, gv)]


@pytest.mark.parametrize("mask", [None, BOOLEAN], ids=["causal", "boolean"])
def test_reference_against_loops_over_plain_numbers(mask):
    inputs = standard((1, 2, 3, 5, 4), mask=mask)
    truths = reference(inputs)
    for h in range(2):
        head = [x[0, h] for x in inputs[:4]]
        expected = by_loops(head, lambda i, j: j <= i + 2 if mask is None else bool(mask[i, j]))
        for truth, numbers in zip(truths, expected, strict=True):
            torch.testing.assert_close(truth.value[0, h], numbers, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mask", [None, BOOLEAN], ids=["causal", "boolean"])
def test_reference_against_autograd_of_another_formula(mask):
    inputs = standard((2, 3, 3, 5, 8), mask=mask)
    q, k, v = leaves = [x.double().requires_grad_() for x in inputs[:3]]
    seen = torch.tensor([[j <= i + 2 for j in range(5)] for i in range(3)]) if mask is None else mask
    odds = torch.einsum("bhtd,bhsd->bhts", q, k).div(8**0.5).exp() * seen
    y = torch.einsum("bhts,bhsd->bhtd", odds, v) / odds.sum(-1)[..., None]
    expected = [y, *torch.autograd.grad(y, leaves, inputs.upstream.double())]
    for value, numbers in zip(values_of(reference(inputs)), expected, strict=True):
        torch.testing.assert_close(value, numbers.detach(), rtol=1e-12, atol=1e-14)


def test_reference_by_few_queries_at_a_time(monkeypatch):
    inputs = standard((2, 2, 7, 9, 4))
    whole = reference(inputs)
    monkeypatch.setattr(engine.attention_error, "SCORES", 10)
    for part, all_at_once in zip(reference(inputs), whole, strict=True):
        torch.testing.assert_close(part.value, all_at_once.value, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(part.bound, all_at_once.bound, rtol=1e-12, atol=0)


def test_reference_of_a_query_that_sees_nothing():
    mask = BOOLEAN.clone()
    mask[1] = False
    whole, rest = standard((1, 2, 3, 5, 4), mask=mask), [0, 2]
    y, gq, gk, gv = values_of(reference(whole))
    assert not y[:, :, 1].any() and not gq[:, :, 1].any()
    q, k, v, g, _ = whole
    expected = values_of(reference(Inputs(q[:, :, rest], k, v, g[:, :, rest], mask[rest])))
    for value, numbers in zip((y[:, :, rest], gq[:, :, rest], gk, gv), expected, strict=True):
        torch.testing.assert_close(value, numbers, rtol=1e-12, atol=1e-14)


# what is right is within


@DTYPE
@pytest.mark.parametrize("path", ON_A_CPU)
def test_every_path_is_within_on_the_hard_cases(path, dtype):
    dropout = 0.2
    cases = [case for case in hard_cases(CPU, dtype, dropout) if case.empty_row is None]
    assert len(cases) == 7
    for case in cases:
        found = errors(outcome(path, case.inputs, dropout if case.in_eval else 0.0, case.in_eval), reference(case.inputs))
        assert within(found), (case.name, found)


@DTYPE
@settings(max_examples=15, deadline=None)
@given(
    queries=st.integers(1, 70),
    more=st.sampled_from([0, 0, 1, 13]),
    heads=st.integers(1, 3),
    width=st.integers(1, 24),
    scale=st.floats(0.1, 8),
)
def test_every_path_is_within_on_any_causal_shape(dtype, queries, more, heads, width, scale):
    inputs = standard((1, heads, queries, queries + more, width), dtype, scale=scale)
    truths = reference(inputs)
    for path in ON_A_CPU:
        found = errors(outcome(path, inputs), truths)
        assert within(found), (path, found)


@pytest.mark.parametrize(("dtype", "shape", "scale"), [(torch.float32, (1, 2, 16, 16, 16), 8.0), (torch.float16, (1, 2, 16, 16, 16), 3.0)])
def test_results_that_underflow_are_within(dtype, shape, scale):
    inputs = standard(shape, dtype, scale=scale)
    assert within(errors(outcome("manual", inputs), reference(inputs)))


# what is wrong is not


def written_out(q, k, v, mask=None, divisor=None):
    mask = causal_mask(q.size(2), k.size(2)) if mask is None else mask
    scores = q @ k.mT / (math.sqrt(q.size(-1)) if divisor is None else divisor)
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


def shifted(q, k, v, mask, by):
    return written_out(q, k, v, torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(by))


def masked_after_the_softmax(q, k, v, mask):
    return ((q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) * causal_mask(q.size(2), k.size(2))) @ v


def heads_by_a_reshape(q, k, v, mask):
    q, k, v = (merge_heads(x).reshape(x.shape) for x in (q, k, v))
    return split_heads(merge_heads(written_out(q, k, v)), q.size(1))


def without_the_maximum(q, k, v, mask):
    odds = (q @ k.mT / math.sqrt(q.size(-1))).exp() * causal_mask(q.size(2), k.size(2))
    return odds / odds.sum(-1, keepdim=True) @ v


WRONG = {
    "mask after the softmax": (masked_after_the_softmax, SQUARE),
    "not scaled": (partial(written_out, divisor=1), SQUARE),
    "scaled by 1 / D": (partial(written_out, divisor=16), SQUARE),
    "heads by a reshape": (heads_by_a_reshape, SQUARE),
    "causal mask at the top left": (partial(shifted, by=0), CACHE),
    "a query does not see itself": (partial(shifted, by=31), CACHE),
    "a query sees the next token": (partial(shifted, by=33), CACHE),
    "a query sees the next token, square": (partial(shifted, by=1), SQUARE),
    "no mask": (lambda q, k, v, mask: written_out(q, k, v, torch.tensor(True)), SQUARE),
    "dropout in a kernel": (partial(fused_attention, dropout=0.1), SQUARE),
    "dropout written out": (lambda q, k, v, mask: manual_attention(q, k, v, mask, 0.1)[0], SQUARE),
}


def judged(attention, inputs):
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    y = attention(*leaves, inputs.mask)
    return errors([y.detach(), *torch.autograd.grad(y, leaves, inputs.upstream)], reference(inputs))


@DTYPE
@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_is_flagged(name, dtype):
    attention, shape = WRONG[name]
    torch.manual_seed(0)
    inputs = standard(shape, dtype)
    assert within(judged(written_out, inputs))  # the same comparison lets the right one pass
    found = judged(attention, inputs)
    assert not within(found)
    assert found[0].used > 1, found  # the output alone shows it


@DTYPE
def test_an_inverted_mask_is_flagged(dtype):
    mask = torch.rand(2, 1, 24, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    inputs = standard(SQUARE, dtype, mask)
    assert within(judged(written_out, inputs))
    assert not within(judged(lambda q, k, v, mask: written_out(q, k, v, ~mask), inputs))


@DTYPE
def test_scores_too_large_for_an_exponential_are_flagged(dtype):
    inputs = standard(SQUARE, dtype, scale=50.0)
    assert within(judged(written_out, inputs))
    found = judged(without_the_maximum, inputs)
    assert not within(found) and math.isnan(found[0].used)
    assert within(judged(without_the_maximum, standard(SQUARE, dtype)))  # small scores need no maximum


@DTYPE
@pytest.mark.parametrize("i", range(4), ids=TENSORS)
def test_a_wrong_gradient_alone_is_flagged(i, dtype):
    inputs = standard(SQUARE, dtype)
    computed = outcome("manual", inputs)
    computed[i] = computed[i] * 1.5
    found = errors(computed, reference(inputs))
    assert [error.used <= 1 for error in found] == [j != i for j in range(4)]


# the bound


def test_bounds_follow_the_roundoff_of_the_type():
    inputs = standard(SQUARE)
    half, brain, single = (reference(inputs, dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32))
    for name, a, b, c in zip(TENSORS, half, brain, single, strict=True):
        seen = c.bound > 1e-6  # not where only underflow counts
        assert torch.equal(a.value, b.value) and torch.equal(a.value, c.value)
        coarse, fine = (b.bound / a.bound)[seen], (b.bound / c.bound)[seen]
        assert coarse.min() > 7 and coarse.max() < 12, name  # 8 times the roundoff, and somewhat more where errors meet errors
        assert fine.min() > 500 and fine.max() < 2**16, name  # 2^16 times the roundoff, but sums in float32 for both


@DTYPE
@pytest.mark.parametrize("shape", [SQUARE, (1, 2, 70, 70, 24), (1, 2, 9, 40, 8)])
def test_bounds_are_not_absurdly_loose(shape, dtype):
    inputs = standard(shape, dtype)
    assert all(error.used > 1e-3 for error in errors(outcome("manual", inputs), reference(inputs)))


@pytest.mark.parametrize("i", range(4), ids=TENSORS)
def test_a_hundred_bounds_in_one_element_are_flagged_as_a_hundred(i):
    truths = reference(standard(SQUARE))
    computed = [truth.value.clone() for truth in truths]
    computed[i][1, 2, 3, 4] -= 100 * truths[i].bound[1, 2, 3, 4]
    found = errors(computed, truths)
    assert not within(found)
    assert [error.used for error in found] == pytest.approx([100 * (j == i) for j in range(4)], rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_number_is_not_within(bad):
    truths = reference(standard(SQUARE))
    for i in range(4):
        computed = [truth.value.clone() for truth in truths]
        assert within(errors(computed, truths))
        computed[i][0, 0, 0, 0] = bad
        assert not within(errors(computed, truths))


def test_error_where_no_error_is_allowed():
    truth = Truth(torch.zeros(3).double(), torch.zeros(3).double())
    (exact,), (off,) = errors([torch.zeros(3)], [truth]), errors([torch.tensor([0.0, 1e-30, 0.0])], [truth])
    assert exact.absolute == exact.used == 0 and math.isnan(exact.relative)
    assert off.used == math.inf and not within([off])


def test_errors_worked_out_with_numpy():
    inputs = standard((2, 2, 6, 9, 8), torch.bfloat16)
    computed, truths = outcome("fused", inputs), reference(inputs)
    for error, tensor, truth in zip(errors(computed, truths), computed, truths, strict=True):
        number, value, bound = tensor.float().numpy().astype(np.float64), truth.value.numpy(), truth.bound.numpy()
        off = np.abs(number - value)
        assert error.absolute == pytest.approx(off.max(), rel=1e-12) and error.absolute > 0
        assert error.relative == pytest.approx(off.max() / np.abs(value).max(), rel=1e-12)
        assert error.used == pytest.approx((off / bound).max(), rel=1e-12)
