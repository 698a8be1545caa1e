"""How far a computed attention is from the true one, and how far rounding alone can take it.

The reference is worked out in float64 from the formulas, without autograd. With P = softmax(Q K^T / sqrt(D)), O = P V, and G the
gradient of a loss by O:

    dV = P^T G        dP = G V^T        dS = P * (dP - rowsum(P * dP))        dQ = dS K / sqrt(D)        dK = dS^T Q / sqrt(D)

The bound follows each of these in turn (Higham 2002, "Accuracy and Stability of Numerical Algorithms", chapter 3). Every number
that is stored is off by a factor of at most 1 + u, and a sum of n products, wherever it is added up in any order, by at most n a times
the sum of their absolute values: u is the unit roundoff of the type, a that of its sums, which is float32's at least. All
kernels do these same steps, in blocks or not, so one bound holds for all; none of its constants was fitted:

    BLOCK      a kernel may round its sums to the type after so many terms: PyTorch's smallest blocks on a CPU are 32 queries
    EXP        the error of an exponential in units of a: PyTorch's fastest, exp_u20, may be off by 20 units in the last place
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention_paths import Inputs

BLOCK = 32
EXP = 40
SCORES = 2**24  # at a time, which bounds the memory of the float64 matrices
TENSORS = ("output", "grad_q", "grad_k", "grad_v")


class Truth(NamedTuple):
    """Of one tensor: its true value, and how far a computed one may be from it."""

    value: Tensor  # float64
    bound: Tensor  # float64, of the same shape


class Error(NamedTuple):
    """Of one computed tensor."""

    absolute: float  # the largest difference
    relative: float  # the same as a share of the largest true number; nan: all are 0
    used: float  # the largest share of its bound that a difference takes: up to 1 can be rounding; nan: not a number


def errors(computed: list[Tensor], truths: list[Truth]) -> list[Error]:
    """Each computed tensor against its truth."""
    found = []
    for tensor, truth in zip(computed, truths, strict=True):
        difference = (tensor.double() - truth.value).abs()
        largest, used = float(difference.max()), float(torch.where(difference == 0, 0.0, difference / truth.bound).max())
        size = float(truth.value.abs().max())
        found.append(Error(largest, largest / size if size else math.nan, used))
    return found


def within(found: list[Error]) -> bool:
    """Whether rounding alone explains all differences. What is no number is not within."""
    return all(error.used <= 1 for error in found)


def reference(inputs: Inputs, dtype: torch.dtype | None = None) -> list[Truth]:
    """The output and the gradients by q, k and v, with the bounds of a computation in `dtype` (None: that of the inputs)."""
    dtype = dtype or inputs.q.dtype
    B, H, T, _ = inputs.q.shape
    S = inputs.k.size(2)
    place = torch.arange(S, device=inputs.q.device)
    q, k, v, upstream = (x.detach().double() for x in inputs[:4])
    step = max(1, SCORES // S)
    values = [torch.zeros_like(x) for x in (q, q, k, v)]
    bounds = [torch.zeros_like(x) for x in (q, q, k, v)]
    for b in range(B):
        for h in range(H):
            for first in range(0, T, step):  # k and v collect their gradients from all queries
                rows = slice(first, min(first + step, T))
                causal = place <= place[S - T :][rows, None]  # the last query is the newest token
                mask = causal if inputs.mask is None else inputs.mask.expand(B, H, T, S)[b, h, rows]
                parts = of_rows(q[b, h, rows], k[b, h], v[b, h], upstream[b, h, rows], mask, dtype, T)
                for i, (value, bound) in enumerate(parts):
                    where = rows if i < 2 else slice(None)
                    values[i][b, h, where] += value
                    bounds[i][b, h, where] += bound
    return [Truth(value, bound) for value, bound in zip(values, bounds, strict=True)]


def of_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor, dtype: torch.dtype, T: int) -> list[tuple[Tensor, Tensor]]:
    """Some queries of one head: q and g (T', D), k and v (S, D), mask (T', S), all float64, of T queries in all. Output, gradients
    by q, k and v, each with its bound; those of k and v are what these queries add."""
    S, D = k.shape
    u, a = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # the smallest number above 0: what is smaller becomes 0

    def gamma(n: int) -> float:
        """The relative error of a sum of n products, stored."""
        return n * a + u * math.ceil(n / BLOCK)

    # scores, off by e: the sum, two roundings of each factor (SDPA's math kernel scales q and k beforehand) or of the quotient
    s = (q @ k.T / math.sqrt(D)).masked_fill(~mask, -math.inf)  # (T', S)
    e = (gamma(D) + 4 * u) * (q.abs() @ k.abs().T) / math.sqrt(D)

    # weights, off by a factor of up to exp(x): the row's maximum or log-sum comes off, in float32; the exponential; the sum of the row,
    # where a block that brings a larger maximum has what was before scaled down
    p = s.softmax(-1).nan_to_num(0.0)  # a query that sees nothing gets nothing
    size = s.masked_fill(~mask, 0.0).abs()
    w = e + a * (size + 2 * size.amax(-1, keepdim=True) + math.log(S)) + EXP * a
    x = w + (p * w).sum(-1, keepdim=True) + S * a + math.ceil(S / BLOCK) * (EXP + 2) * a + 2 * u
    dp = (p * x.clamp(max=50.0).expm1()).clamp(max=1.0) + least * mask

    y = p @ v
    dy = dp @ v.abs() + gamma(S) * ((p + dp) @ v.abs()) + u * y.abs() + (1 + S) * least

    gv = g @ v.T  # dP
    dgv = (gamma(D) + u) * (g.abs() @ v.abs().T)
    r = (p * gv).sum(-1, keepdim=True)  # as a sum over the keys, or, as flash attention has it, of g * y over the channels
    dr_keys = (dp * gv.abs() + (p + dp) * dgv + S * a * p * gv.abs()).sum(-1, keepdim=True)
    dr_channels = (g.abs() * (dy + D * a * y.abs())).sum(-1, keepdim=True)
    dr = torch.maximum(dr_keys, dr_channels)
    z = p * (gv - r)  # dS
    dz = dp * (gv - r).abs() + (p + dp) * (dgv + dr + 2 * a * (gv.abs() + r.abs())) + 2 * u * z.abs() + least * mask

    def product(left: Tensor, off: Tensor, right: Tensor, terms: int) -> tuple[Tensor, Tensor]:
        """left @ right with the error of the left and of the product; 4 u as for the scores, and the result is stored."""
        value, size = left @ right, (left.abs() + off) @ right.abs()
        return value, off @ right.abs() + (gamma(terms) + 4 * u) * size + (1 + terms) * least

    scale = 1 / math.sqrt(D)
    by_q = product(z, dz, k * scale, S)
    by_k = product(z.T, dz.T, q * scale, T)
    by_v = product(p.T, dp.T, g, T)
    return [(y, dy), by_q, by_k, by_v]
