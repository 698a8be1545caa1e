"""What computes, and how: device, precision, attention path, threads, compiler. Each can be named; "auto" decides here."""

import contextlib
import ctypes
import importlib.util
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from config.settings import Settings
from data.batches import Ahead, RowLoader, StreamLoader
from engine.errors import UserError
from engine.parallel import World
from model import GPT
from zoo.models import Config, make

# dense bfloat16 (float16 where there is none) matrix products of the tensor cores, in FLOP/s, from the makers' data sheets
# the longer of two names that begin alike comes first
GPU_PEAKS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "V100": 125e12,
    "T4": 65e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


@dataclass
class Machine:
    """How a run computes, decided once."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    threads: int
    compile: bool
    peak: float  # FLOP/s of matrix products in `dtype`, of one process
    notes: list[str]  # why, for the user

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device.type == "cpu" else ""
        return f"{self.device} in {str(self.dtype).removeprefix('torch.')}{threads}{', compiled' * self.compile}"

    def decided(self) -> dict[str, Any]:
        """For settings.json, by which a resumed run decides the same."""
        shown = {"device": self.device.type, "dtype": str(self.dtype).removeprefix("torch.")}
        return {**shown, "attention": self.attention, "threads": self.threads, "compile": self.compile}


def pick_machine(settings: Settings, config: Config, before: dict[str, Any]) -> Machine:
    """Decide what is "auto": as `before` (what the run to resume decided), on the same kind of device, else what is fastest."""
    device = pick_device(settings.device)
    before = before if before.get("device") == device.type else {}
    tokens = settings.batch_size * config.block_size
    with torch.device("meta"):
        flops = make(config).flops_per_token() * tokens  # of a batch
    threads = settings.threads or before.get("threads") or pick_threads(flops)
    torch.set_num_threads(threads)  # for the measurements
    name = before.get("dtype", "auto") if settings.dtype == "auto" else settings.dtype
    dtype, notes = pick_dtype(name, device, tokens, config.n_embd)
    attention = before.get("attention", "auto") if settings.attention == "auto" else settings.attention
    if attention == "auto":
        # on a CPU, SDPA's backward in bfloat16 is slow, and the T x T weights of a short context fit into the cache
        short = device.type == "cpu" and dtype == torch.bfloat16 and config.block_size <= 512
        attention = "manual" if short else "fused"
    peak = gpu_peak(device) or matmul_rate(dtype, device, 1024, 256)
    if settings.model != "gpt":
        compiling = False  # the models of the zoo are small
        notes = notes + ["compile=True is for model=gpt; going on without"] * (settings.compile is True)
    elif settings.compile == "auto" and "compile" in before:
        compiling = before["compile"]
    else:
        compiling, note = pick_compile(settings, device, flops * settings.grad_accum * settings.max_steps / peak)
        notes = notes + note
    return Machine(device, dtype, attention, threads, compiling, peak, notes)


def set_up(machine: Machine, world: World) -> Machine:
    """Make this process compute so: each on a GPU of its own."""
    keep_memory()
    torch.set_num_threads(machine.threads)
    if machine.device.type == "cuda":
        if machine.device.index is None or world.size > 1:
            if world.local_rank >= torch.cuda.device_count():
                raise UserError(f"{world.size} processes need a GPU each, and this machine has {torch.cuda.device_count()}; fewer would do")
            machine = replace(machine, device=torch.device("cuda", world.local_rank))
        torch.cuda.set_device(machine.device)
        torch.set_float32_matmul_precision("high")  # what stays in float32 is multiplied in TF32
    return machine


def pick_device(name: str) -> torch.device:
    """The device called `name` ("auto": a GPU when there is one). Raises UserError for one this machine does not have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name!r} is no device; cpu, cuda or cuda:1 would do") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device={name!r} is not supported; cpu or cuda would do")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name!r}: this machine has {torch.cuda.device_count()} CUDA devices that PyTorch can use; cpu would do")
    return device


def pick_dtype(name: str, device: torch.device, tokens: int, n_embd: int) -> tuple[torch.dtype, list[str]]:
    """The precision of the matrix products, and a note when it was measured.

    "auto": on a GPU bfloat16, float16 where that is missing; on a CPU bfloat16 when it multiplies matrices of this size at
    least 1.5 times as fast, as processors with units for it do. Raises UserError for what the device cannot do.
    """
    bfloat16_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "bfloat16" and device.type == "cuda" and not bfloat16_gpu:
        raise UserError(f"dtype=bfloat16: {torch.cuda.get_device_name(device)} has no bfloat16 units; dtype=float16 would do")
    if name == "float16" and device.type == "cpu":
        raise UserError("dtype=float16 is for GPUs; dtype=bfloat16 would do on a CPU")
    if name != "auto":
        return getattr(torch, name), []
    if device.type == "cuda":
        return (torch.bfloat16 if bfloat16_gpu else torch.float16), []
    rates = [matmul_rate(dtype, device, tokens, n_embd) for dtype in (torch.float32, torch.bfloat16)]
    chosen, word = (torch.bfloat16, "faster") if rates[1] >= 1.5 * rates[0] else (torch.float32, "not worth it")
    note = f"matrix products in bfloat16 run at {rates[1] / 1e9:,.0f} GFLOP/s, in float32 at {rates[0] / 1e9:,.0f}: {word}"
    return chosen, [note]


def pick_threads(flops: float) -> int:
    """One thread for each 250 MFLOP of a batch: with less, they wait for each other more than they compute. OMP_NUM_THREADS
    is obeyed, and never more than the processors this process may use (its affinity, and its container's share)."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
        share, period = file.read().split()
        usable = min(usable, math.ceil(int(share) / int(period)))  # "max" is no number: no limit
    return max(1, min(usable, torch.get_num_threads(), round(flops / 250e6)))


def pick_compile(settings: Settings, device: torch.device, floor: float) -> tuple[bool, list[str]]:
    """Whether to compile, and a note if that was asked for and cannot be. "auto": when there is a compiler and the matrix
    products of the whole run alone take a good while at the device's peak (`floor`, in seconds)."""
    if settings.compile is False:
        return False, []
    missing = missing_compiler(device)
    if settings.compile is True:
        return missing is None, [f"compile=True: {missing}; going on without"] if missing else []
    return missing is None and floor > 30, []


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` lacks on this machine; None: nothing."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu" and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")):
        return "there is no C++ compiler"
    return None


def try_to_compile(forward: Callable, model: GPT, machine: Machine, loader: RowLoader | StreamLoader | Ahead, world: World) -> Callable:
    """`forward`, compiled if the machine is to compile and can: for a GPU the whole model as one graph; on a CPU, and
    sharded, its blocks, of which one is compiled for all. One batch is tried; if it fails, all goes on without."""
    if not machine.compile:
        return forward
    import torch._inductor.config  # which takes a second: only for those who compile

    began, place = time.perf_counter(), loader.state_dict()
    torch._inductor.config.fallback_random = machine.device.type == "cpu"  # PyTorch's own generator: there the faster, and as without
    whole_graph = machine.device.type == "cuda" and not hasattr(next(model.parameters()), "full_tensor")
    compiled = torch.compile(forward) if whole_graph else model
    if not whole_graph:
        for block in model.transformer.h:
            block.compile()
    try:
        with torch.random.fork_rng(devices=[machine.device] if machine.device.type == "cuda" else []):
            batch = next(loader).to(machine.device)
            with autocast(machine.device, machine.dtype):
                _, loss = compiled(*batch.inputs)
            loss.backward()
        failure = ""
    except Exception as error:  # a compiler may fail in any way
        failure = " ".join(str(error).split())[:100]
    model.zero_grad()
    loader.load_state_dict(place)
    torch._dynamo.config.suppress_errors = True  # what is compiled later, for another shape, may fail too
    if world.highest(int(bool(failure))):  # in one process: none is to run it
        machine.notes.append(f"compiling failed ({failure or 'in another process'}); going on without")
        machine.compile = False
        for block in model.transformer.h:
            block._compiled_call_impl = None
        return forward
    machine.notes.append(f"compiled in {time.perf_counter() - began:.0f} s")
    return compiled if whole_graph else forward


def eager() -> contextlib.AbstractContextManager:
    """Within it nothing is compiled, nor run compiled: for work of many shapes, such as evaluation."""
    return torch.compiler.set_stance("force_eager")


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    """Matrix products in `dtype`, while the weights stay in float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def keep_memory() -> None:
    """Let glibc keep freed memory instead of giving it back at every step: fetching it again costs a page fault for each
    4 KiB, a tenth of a step of a small model. Does nothing on other systems."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
            mallopt(-3, 2**30)  # M_MMAP_THRESHOLD


def matmul_rate(dtype: torch.dtype, device: torch.device, tokens: int, n_embd: int) -> float:
    """FLOP/s of the products of one linear layer n_embd -> 4 n_embd, forward and backward: the best of a few tries."""
    tokens, n_embd = min(tokens, 2048), min(n_embd, 1024)
    x = torch.ones(tokens, n_embd, dtype=dtype, device=device)
    weight = torch.ones(4 * n_embd, n_embd, dtype=dtype, device=device)
    best = math.inf
    for _ in range(10):
        wait(device)
        began = time.perf_counter()
        y = x @ weight.t()
        _ = y @ weight, y.t() @ x
        wait(device)
        best = min(best, time.perf_counter() - began)
    return 24 * tokens * n_embd**2 / best


def gpu_peak(device: torch.device) -> float | None:
    """FLOP/s of bfloat16 products that the maker of the GPU states; None for a CPU and a GPU not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in GPU_PEAKS.items() if known in name), None)


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
