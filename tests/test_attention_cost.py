"""engine/attention_cost.py: memory, operations and turns."""

import os

import pytest
import torch
from conftest import CPU

import engine.attention_cost
from engine.attention_cost import attended_pairs, extra_memory, forward_only, interleaved, useful_flops, with_backward
from engine.attention_paths import Shape, outcome, random_inputs
from model import causal_mask

SHAPES = pytest.mark.parametrize("shape", [(2, 3, 7, 7, 4), (1, 2, 3, 10, 8), (2, 1, 1, 9, 4), (1, 1, 1, 1, 1)])
MEGABYTE = 10**6  # a quarter as many float32 numbers


def standard(*shape, dtype=torch.float32):
    return random_inputs(Shape(*shape), CPU, dtype)


def numbers(megabytes):
    return torch.empty(megabytes * MEGABYTE // 4)


def one_after_the_other():
    first = numbers(12)
    del first
    return numbers(8)


def both_at_once():
    first = numbers(12)
    second = numbers(8)
    del first
    return second


@pytest.mark.parametrize(
    ("run", "megabytes"),
    [(lambda: numbers(4) + 1, 8), (lambda: numbers(4), 4), (one_after_the_other, 12), (both_at_once, 20), (lambda: None, 0)],
    ids=["sum", "result", "one after the other", "both at once", "nothing"],
)
def test_extra_memory_of_what_is_known(run, megabytes):
    assert extra_memory(run, CPU) == pytest.approx(megabytes * MEGABYTE, abs=1000)


def test_extra_memory_leaves_out_what_was_there_before():
    there = numbers(40)
    assert extra_memory(lambda: there.add_(1), CPU) < 1000
    kept = [numbers(8)]
    assert extra_memory(lambda: kept.clear(), CPU) == 0  # given back, nothing taken


def test_extra_memory_is_silent(capfd):
    extra_memory(lambda: numbers(4) + 1, CPU)
    assert capfd.readouterr() == ("", "")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_standard_error_works_after_a_failure(capfd):
    def fail():
        raise KeyError("no such thing")

    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(KeyError, match="no such thing"):
        extra_memory(fail, CPU)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
    assert before is None or len(os.listdir("/proc/self/fd")) == len(before)
    assert extra_memory(lambda: numbers(4), CPU) == pytest.approx(4 * MEGABYTE, abs=1000)  # the profiler is free again


def test_fused_holds_less_and_grows_with_t_not_its_square():
    held = {
        (path, T): extra_memory(with_backward(path, standard(1, 2, T, T, 32)), CPU) for path in ("manual", "fused") for T in (1024, 2048)
    }
    assert held["fused", 1024] < held["manual", 1024] / 4
    assert held["manual", 2048] / held["manual", 1024] == pytest.approx(4, rel=0.1)
    assert held["fused", 2048] / held["fused", 1024] < 2.5


def test_gradients_take_more_memory_than_the_output():
    for path in ("manual", "fused"):
        inputs = standard(1, 2, 512, 512, 16)
        assert extra_memory(forward_only(path, inputs), CPU) < extra_memory(with_backward(path, inputs), CPU)


@SHAPES
def test_attended_pairs_by_counting_the_mask(shape):
    B, H, T, S, _ = shape
    assert attended_pairs(Shape(*shape)) == B * H * int(causal_mask(T, S).sum())


@SHAPES
def test_useful_flops_by_counting_products(shape):
    B, H, T, S, D = shape
    product = sum(2 * D for _ in range(B * H) for allowed in causal_mask(T, S).flatten().tolist() if allowed)
    assert useful_flops(Shape(*shape), backward=False) == 2 * product  # scores, output
    assert useful_flops(Shape(*shape), backward=True) == 6 * product  # and dV, dP, dQ, dK


@pytest.mark.parametrize("path", ["manual", "fused", "math"])
def test_what_is_measured_is_what_is_compared(path):
    inputs = standard(2, 2, 7, 7, 4)
    y, *gradients = outcome(path, inputs)
    output = forward_only(path, inputs)()
    assert torch.equal(output, y) and not output.requires_grad
    for _ in range(2):  # again and again, with nothing piled up
        measured = with_backward(path, inputs)()
        assert len(measured) == 3 and all(map(torch.equal, measured, gradients))


def test_measured_with_dropout():
    inputs = standard(2, 2, 64, 64, 4)
    for path in ("manual", "fused"):
        y = outcome(path, inputs)[0]
        for run in (forward_only(path, inputs, 0.5), with_backward(path, inputs, 0.5)):
            assert not torch.equal(run()[0], y[0])


def test_functions_take_turns():
    calls = []
    found = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, CPU, rounds=4, seconds=0.0)
    assert "".join(calls) == "abc" + "abc" * 4  # once to see how long one takes; then in turn, once at least
    assert list(found) == ["a", "b", "c"]


def test_median_of_the_turns(monkeypatch):
    said = {"a": iter([0.5, 3.0, 1.0, 50.0]), "b": iter([0.1, 2.0, 7.0, 4.0])}  # the first: how long one call takes
    asked = []

    def timed(run, calls, device):
        asked.append((run(), calls))
        return next(said[run()])

    monkeypatch.setattr(engine.attention_cost, "timed", timed)
    found = interleaved({"a": lambda: "a", "b": lambda: "b"}, CPU, rounds=3, seconds=1.0)
    assert found == {"a": 3.0, "b": 4.0}
    assert asked == [("a", 1), ("b", 1)] + [("a", 2), ("b", 10)] * 3  # of about a second each


def test_seconds_are_those_of_one_call(monkeypatch):
    now = [0.0]

    def run():
        now[0] += 0.25

    monkeypatch.setattr(engine.attention_cost.time, "perf_counter", lambda: now[0])
    assert engine.attention_cost.timed(run, 8, CPU) == 0.25
    assert now == [2.0]
