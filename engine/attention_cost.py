"""What one path of attention costs: time, memory, operations."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from engine.attention_paths import Inputs, Shape, Unavailable, attend, outcome
from engine.device import wait


class Cost(NamedTuple):
    """What one call of a path took."""

    seconds: float
    bytes: int  # of tensors, at most, beyond the inputs


def forward_only(path: str, inputs: Inputs, dropout: float = 0.0) -> Callable[[], object]:
    """A function that computes the output, as for evaluation."""

    def run() -> object:
        with torch.no_grad():
            return attend(path, inputs, dropout)

    return run


def with_backward(path: str, inputs: Inputs, dropout: float = 0.0) -> Callable[[], object]:
    """A function that computes the output and the gradients by q, k and v, as for training."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    differentiable = Inputs(*leaves, *inputs[3:])
    return lambda: torch.autograd.grad(attend(path, differentiable, dropout), leaves, inputs.upstream)


WAYS = {"forward": forward_only, "training": with_backward}


def cost_of(
    inputs: Inputs, paths: list[str], rounds: int, dropout: float = 0.0
) -> tuple[dict[tuple[str, str], Cost], dict[tuple[str, str], str]]:
    """The cost of every path, forward and in training, by (path, way); and of those that are not to be had, why."""
    device, runs, missing = inputs.q.device, {}, {}
    for path, way in ((path, way) for path in paths for way in WAYS):
        try:
            outcome(path, inputs, dropout, backward=way == "training")  # compiles, and fetches memory for the first time
            runs[path, way] = WAYS[way](path, inputs, dropout)
        except Unavailable as lack:
            missing[path, way] = str(lack)
    seconds = interleaved(runs, device, rounds, seconds=0.03)
    return {key: Cost(seconds[key], extra_memory(run, device)) for key, run in runs.items()}, missing


def interleaved(runs: dict[Any, Callable[[], object]], device: torch.device, rounds: int, seconds: float) -> dict[Any, float]:
    """Median seconds of one call of each function. They take turns, `rounds` of them, each of about `seconds` and one call at least."""
    calls = {key: max(1, round(seconds / timed(run, 1, device))) for key, run in runs.items()}
    turns: dict[Any, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            turns[key].append(timed(run, calls[key], device))
    return {key: median(turn) for key, turn in turns.items()}


def timed(run: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds a call."""
    wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        run()
    wait(device)
    return (time.perf_counter() - began) / calls


def extra_memory(run: Callable[[], object], device: torch.device) -> int:
    """Bytes of tensors that one call holds at the same time at most, results included, beyond what was there before.

    On a CPU the profiler is told of every allocation of PyTorch's; on a GPU its allocator keeps the highest mark.
    """
    if device.type == "cuda":
        wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        wait(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    with silent(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    del result
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = highest = 0
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]  # negative when it is given back
        highest = max(highest, held)
    return highest


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing reaches standard error: the profiler's library reports each start and stop there, at any log level."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def attended_pairs(shape: Shape) -> int:
    """Pairs of a query and a key that it may attend to, under the causal mask, of all rows and heads."""
    B, H, T, S, _ = shape
    return B * H * (T * (S - T) + T * (T + 1) // 2)


def useful_flops(shape: Shape, backward: bool) -> int:
    """Operations that attention cannot do without: two products of D terms for each pair that may attend, Q K^T and P V, and for the
    gradients four more (Dao 2023, section 3; the scores that flash attention works out again are not counted)."""
    return attended_pairs(shape) * shape.D * 2 * (6 if backward else 2)
