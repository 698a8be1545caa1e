"""engine/attention_paths.py: every path as asked for, and why one cannot be had."""

import pytest
import torch
from conftest import CPU

import engine.attention_paths
from engine.attention_cost import extra_memory, forward_only, with_backward
from engine.attention_error import errors, reference, within
from engine.attention_paths import (
    PATHS,
    Inputs,
    Shape,
    Unavailable,
    attend,
    attend_in_eval,
    free_memory,
    hard_cases,
    held_to,
    lack_of_memory,
    matrices,
    outcome,
    random_inputs,
    score_bytes,
    shape_of,
)
from engine.device import missing_compiler
from model import causal_mask

ON_A_CPU = ("manual", "fused", "math", "flash")


def standard(*shape, dtype=torch.float32, mask=None):
    return random_inputs(Shape(*shape), CPU, dtype, mask)


def why_not(path, inputs, **how):
    with pytest.raises(Unavailable) as refused:
        outcome(path, inputs, **how)
    return str(refused.value)


@pytest.mark.parametrize("path", ["efficient", "cudnn"])
@pytest.mark.parametrize("backward", [False, True])
def test_kernels_for_gpus_are_unavailable_on_a_cpu(path, backward):
    assert "GPU" in why_not(path, standard(1, 2, 8, 8, 16), backward=backward)
    assert "GPU" in why_not(path, standard(2, 2, 8, 8, 16), dropout=0.5, in_eval=True)


@pytest.mark.parametrize(
    ("inputs", "dropout"),
    [
        (standard(1, 2, 8, 8, 16, mask=causal_mask(8, 8)), 0.0),
        (standard(1, 2, 4, 8, 16), 0.0),
        (standard(1, 2, 8, 8, 16), 0.5),
    ],
    ids=["mask", "more keys than queries", "dropout"],
)
def test_flex_takes_the_causal_mask_of_a_square_only(inputs, dropout):
    assert "for the causal mask of as many keys as queries, without dropout" in why_not("flex", inputs, dropout=dropout)


@pytest.mark.skipif(missing_compiler(CPU) is not None, reason=f"flex is compiled: {missing_compiler(CPU)}")
def test_flex_equals_the_reference_and_has_no_gradient_on_a_cpu():
    inputs = standard(1, 2, 40, 40, 16)
    found = errors(outcome("flex", inputs, backward=False), reference(inputs)[:1])
    assert within(found), found
    assert "CPU" in why_not("flex", inputs)
    long = standard(1, 2, 256, 256, 16)  # compiled, which that refusal must not end, it stores no matrix
    outcome("flex", long, backward=False)
    assert extra_memory(forward_only("flex", long), CPU) < score_bytes(shape_of(long), torch.float32)


def test_why_a_kernel_is_unavailable_is_told_apart_from_other_warnings(monkeypatch):
    def refuse(path, inputs, dropout):
        raise RuntimeError("no such\n kernel")

    monkeypatch.setattr(engine.attention_paths, "attend", refuse)
    assert why_not("flash", standard(1, 1, 2, 2, 4)) == "no such kernel"


def test_a_deprecation_is_no_reason(monkeypatch):
    def refuse(path, inputs, dropout):
        engine.attention_paths.warnings.warn("that is deprecated", DeprecationWarning, stacklevel=1)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(engine.attention_paths, "attend", refuse)
    assert why_not("flex", standard(1, 1, 2, 2, 4)) == "no such kernel"


def test_mistakes_are_not_taken_for_a_missing_kernel():
    with pytest.raises(ValueError, match="not enough values"):
        outcome("manual", Inputs(*(torch.zeros(2, 2, 4) for _ in range(4))))


@pytest.mark.parametrize("path", ["manual", "fused"])
def test_eval_drops_nothing(path):
    inputs = standard(2, 4, 24, 24, 16)
    plain = attend(path, inputs)
    assert torch.equal(attend_in_eval(path, inputs, 0.5), plain)
    assert all(map(torch.equal, outcome(path, inputs, 0.5, in_eval=True), outcome(path, inputs)))
    assert not torch.equal(attend(path, inputs, 0.5), plain)  # as for training


@pytest.mark.parametrize("path", ["manual", "fused"])
def test_the_module_in_training_mode_would_drop(path, monkeypatch):
    monkeypatch.setattr(engine.attention_paths.CausalSelfAttention, "eval", lambda module: module.train())
    inputs = standard(2, 4, 24, 24, 16)
    assert not torch.equal(attend_in_eval(path, inputs, 0.5), attend(path, inputs))


@pytest.mark.parametrize("path", ON_A_CPU)
def test_a_query_that_sees_nothing(path):
    case = next(case for case in hard_cases(CPU, torch.float32, 0.2) if case.empty_row is not None)
    y = outcome(path, case.inputs, backward=False)[0]
    others = [i for i in range(24) if i != case.empty_row]
    if path == "manual":
        assert y[:, :, case.empty_row].isnan().all() and not y[:, :, others].isnan().any()
    else:
        assert not y[:, :, case.empty_row].any()
    truth = reference(case.inputs)[0]
    assert ((y.double() - truth.value).abs() <= truth.bound)[:, :, others].all()


def test_held_to_one_kernel_only():
    def enabled():
        named = torch.backends.cuda
        return named.math_sdp_enabled(), named.flash_sdp_enabled(), named.mem_efficient_sdp_enabled(), named.cudnn_sdp_enabled()

    before = enabled()
    for i, path in enumerate(("math", "flash", "efficient", "cudnn")):
        with held_to(path):
            assert enabled() == tuple(j == i for j in range(4))
    for path in ("manual", "fused", "flex"):
        with held_to(path):
            assert enabled() == before


def test_random_inputs_are_the_same_every_time():
    a, b = standard(1, 2, 3, 5, 4), standard(1, 2, 3, 5, 4)
    assert all(torch.equal(x, y) for x, y in zip(a[:4], b[:4], strict=True)) and a.mask is None
    larger = random_inputs(Shape(1, 2, 3, 5, 4), CPU, torch.float32, scale=50.0)
    assert torch.equal(larger.q, a.q * 50) and torch.equal(larger.k, a.k * 50) and torch.equal(larger.v, a.v)
    assert [x.shape[2] for x in a[:4]] == [3, 5, 5, 3]
    assert shape_of(a) == Shape(1, 2, 3, 5, 4)


def test_a_shape_in_words():
    assert str(Shape(1, 2, 8, 8, 4)) == "(1, 2, 8, 4)"
    assert str(Shape(1, 2, 3, 8, 4)) == "(1, 2, 3 of 8 keys, 4)"


# memory


def test_paths_that_store_the_matrix_need_memory(monkeypatch):
    inputs = standard(1, 2, 64, 64, 16)
    monkeypatch.setattr(engine.attention_paths, "free_memory", lambda device: 1000)
    for path in ("manual", "math"):
        assert why_not(path, inputs).startswith("its T x T matrices take some 0.0 GiB")
    for path in ("fused", "flash"):
        assert len(outcome(path, inputs)) == 4
    assert {path for path in PATHS if lack_of_memory(path, inputs)} == {"manual", "math"}


def test_how_much_memory_is_enough(monkeypatch):
    inputs = Inputs(*(torch.empty(2, 4, 2**16, 8, device="meta") for _ in range(4)))
    needed = 4 * score_bytes(shape_of(inputs), torch.float32)
    assert needed == 4 * 2 * 4 * 2**32 * 4
    for free, fits in ((needed - 1, False), (needed + 1, True), (None, True)):
        monkeypatch.setattr(engine.attention_paths, "free_memory", lambda device, free=free: free)
        assert (lack_of_memory("manual", inputs) is None) == fits
    monkeypatch.setattr(engine.attention_paths, "free_memory", lambda device: 3 * 2**30)
    assert lack_of_memory("manual", inputs) == "its T x T matrices take some 512.0 GiB, and this machine has 3.0 free"


def test_free_memory_is_a_number_of_this_machine():
    free = free_memory(CPU)
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("path", ["manual", "math", "fused"])
def test_matrices_are_what_the_path_holds(path, dropout, dtype):
    inputs = standard(1, 2, 512, 512, 16, dtype=dtype)
    held = extra_memory(with_backward(path, inputs, dropout), CPU) / score_bytes(shape_of(inputs), dtype)
    expected = matrices(path, inputs, dropout)
    if expected:
        assert expected / 2 < held < expected
    else:
        assert held < 1.5
