"""The ways to compute attention that this machine may have, each as a function of the same queries, keys and values.

manual      model.py, written out
fused       model.py, one kernel, of those below the one that PyTorch picks
math, flash, efficient, cudnn    scaled_dot_product_attention held to one of its kernels
flex        flex_attention, compiled for the shape; the causal mask only
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from model import CausalSelfAttention, GPTConfig, document_mask, fused_attention, manual_attention, merge_heads, split_heads

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
PATHS = ("manual", "fused", *KERNELS, "flex")


class Shape(NamedTuple):
    """B rows, H heads, T queries, S keys, D channels of a head."""

    B: int
    H: int
    T: int
    S: int
    D: int

    def __str__(self) -> str:
        keys = "" if self.S == self.T else f" of {self.S} keys"
        return f"({self.B}, {self.H}, {self.T}{keys}, {self.D})"


class Inputs(NamedTuple):
    """What goes into attention and its gradient, in the type that is to be tested."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, H, S, D)
    v: Tensor  # (B, H, S, D)
    upstream: Tensor  # (B, H, T, D) gradient of some loss by the output
    mask: Tensor | None = None  # broadcastable to (B, H, T, S), True = may attend; None: causal


class Case(NamedTuple):
    """Something to try all paths on."""

    name: str
    inputs: Inputs
    in_eval: bool = False  # by way of a module with dropout, in eval mode
    empty_row: int | None = None  # a query that may see nothing


class Unavailable(Exception):
    """A path that this machine does not have; the text says why."""


def random_inputs(shape: Shape, device: torch.device, dtype: torch.dtype, mask: Tensor | None = None, scale: float = 1.0) -> Inputs:
    """Standard normal numbers, the same for every device; queries and keys times `scale`."""
    B, H, T, S, D = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(B, H, n, D, generator=generator) for n in (T, S, S, T))
    tensors = (x.to(device, dtype) for x in (q * scale, k * scale, v, upstream))
    return Inputs(*tensors, mask if mask is None else mask.to(device))


def hard_cases(device: torch.device, dtype: torch.dtype, dropout: float) -> list[Case]:
    """What people get wrong."""

    def case(name: str, shape: tuple[int, ...], mask: Tensor | None = None, scale: float = 1.0, **how: bool | int) -> Case:
        return Case(name, random_inputs(Shape(*shape), device, dtype, mask, scale), **how)

    documents = document_mask(torch.tensor([[*range(7), *range(12), *range(5)], [*range(24)]]))  # (2, 1, 24, 24)
    empty = torch.ones(24, 24, dtype=torch.bool).tril()
    empty[5] = False
    return [
        case("a cache: more keys than queries", (2, 4, 5, 37, 16)),
        case("a cache: one query", (2, 4, 1, 64, 16)),
        case("a single token", (2, 4, 1, 1, 16)),
        case("boolean mask, True = may attend", (2, 4, 24, 24, 16), documents),
        case(f"dropout {dropout:g}, in eval mode", (2, 4, 24, 24, 16), in_eval=True),
        case("head width 20", (2, 3, 50, 50, 20)),
        case("scores of 10,000", (2, 4, 24, 24, 16), scale=50.0),
        case("a query that may see nothing", (2, 4, 24, 24, 16), empty, empty_row=5),
    ]


def attend(path: str, inputs: Inputs, dropout: float = 0.0) -> Tensor:
    """The output (B, H, T, D) of one path. Raises RuntimeError or Unavailable where there is no such kernel for it."""
    q, k, v, _, mask = inputs
    if path == "manual":
        return manual_attention(q, k, v, mask, dropout)[0]
    if path == "flex":
        return flex(q, k, v, mask, dropout)
    with held_to(path):
        return fused_attention(q, k, v, mask, dropout)


def attend_in_eval(path: str, inputs: Inputs, dropout: float) -> Tensor:
    """The same by way of a CausalSelfAttention with dropout, in eval mode: it is to drop nothing."""
    if path == "flex":
        raise Unavailable("the module has no such path")
    q, k, v, *_ = inputs
    attention = "manual" if path == "manual" else "fused"
    module = CausalSelfAttention(GPTConfig(n_head=q.size(1), n_embd=q.size(1) * q.size(3), dropout=dropout, attention=attention)).eval()
    module.c_attn = module.c_proj = torch.nn.Identity()  # queries, keys and values come as they are
    with held_to(path):
        return split_heads(module(torch.cat([merge_heads(x) for x in (q, k, v)], dim=-1)), q.size(1))


def held_to(path: str) -> contextlib.AbstractContextManager:
    """Within it, PyTorch takes this kernel or none."""
    return sdpa_kernel(KERNELS[path]) if path in KERNELS else contextlib.nullcontext()


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """FlexAttention (Dong et al. 2024). Compiled anew for every shape, which takes seconds. Raises Unavailable for all else."""
    if mask is not None or q.size(2) != k.size(2) or dropout:
        raise Unavailable("here for the causal mask of as many keys as queries, without dropout")
    if q.device.type == "cpu" and q.requires_grad:  # told by PyTorch, the compiler would give up on it for good
        raise Unavailable("it has no gradients on a CPU")
    return compiled_flex()(q, k, v, block_mask=causal_blocks(q.size(2), q.device))


@functools.cache
def causal_blocks(T: int, device: torch.device) -> "BlockMask":
    """Which blocks of queries and keys have anything to do: worked out once for a T, as a model does."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(causal, None, None, T, T, device=device)


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """FlexAttention's form of the causal mask."""
    return query >= key


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 1000  # beyond it, a new shape would not be compiled
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)  # compiled, or an error


def outcome(path: str, inputs: Inputs, dropout: float = 0.0, in_eval: bool = False, backward: bool = True) -> list[Tensor]:
    """The output and, with `backward`, the gradients by q, k and v. Raises Unavailable, which says why it cannot be had."""
    if short := lack_of_memory(path, inputs, dropout):
        raise Unavailable(short)
    leaves = [x.detach().requires_grad_(backward) for x in inputs[:3]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            way = attend_in_eval if in_eval else attend
            output = way(path, Inputs(*leaves, *inputs[3:]), dropout)
            gradients = torch.autograd.grad(output, leaves, inputs.upstream) if backward else ()
        except (RuntimeError, ImportError) as error:
            warned = [str(warning.message) for warning in said if issubclass(warning.category, UserWarning)]
            raise Unavailable(reason(path, inputs, error, warned)) from None
    return [output.detach(), *gradients]


def reason(path: str, inputs: Inputs, error: Exception, said: list[str]) -> str:
    """Why, in a few words, from what PyTorch raised and warned of."""
    if inputs.q.device.type == "cpu" and path in ("efficient", "cudnn"):
        return "PyTorch has it for GPUs only"
    because = [re.sub(r"\s*\(Triggered internally.*", "", text, flags=re.DOTALL) for text in said]
    because = [text for text in because if text and not text.endswith("because:")]
    told_apart = path in KERNELS and because  # PyTorch raises the same for every lack, and warns of what it is
    text = " ".join((because[0] if told_apart else str(error) or type(error).__name__).split())
    return text.split(". ")[0][:100].removesuffix(".")


def lack_of_memory(path: str, inputs: Inputs, dropout: float = 0.0) -> str | None:
    """Why a path that stores T x S matrices does not fit. None: it does, or nobody knows."""
    device, needed, free = inputs.q.device, matrices(path, inputs, dropout), free_memory(inputs.q.device)
    needed *= score_bytes(shape_of(inputs), inputs.q.dtype)
    if free is None or needed < free:
        return None
    where = "GPU has" if device.type == "cuda" else "machine has"
    return f"its T x T matrices take some {needed / 2**30:.1f} GiB, and this {where} {free / 2**30:.1f} free"


def matrices(path: str, inputs: Inputs, dropout: float) -> int:
    """How many T x S matrices of the inputs' type a path holds at the same time, forward and backward: measured, and rounded up."""
    if path == "fused" and dropout and inputs.q.device.type == "cpu":
        path = "math"  # which PyTorch then takes
    if path not in ("manual", "math"):
        return 0
    if inputs.q.dtype.itemsize < 4 and (path == "math" or dropout):  # some of them are in float32
        return 10 if dropout else 7
    return 6 if dropout else 4


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on the device. None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        return int(re.findall(r"MemAvailable:\s+(\d+) kB", file.read())[0]) * 1024
    return None


def shape_of(inputs: Inputs) -> Shape:
    B, H, T, D = inputs.q.shape
    return Shape(B, H, T, inputs.k.size(2), D)


def score_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of one matrix of scores, (B, H, T, S)."""
    return shape.B * shape.H * shape.T * shape.S * dtype.itemsize
