"""Which device computes, and in which precision."""

import contextlib

import torch

from engine.errors import UserError


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


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The precision of the matrix products ("auto": bfloat16 on a GPU made for it, else float32).

    Raises UserError for bfloat16 on a GPU without it.
    """
    bfloat16_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "auto":
        return torch.bfloat16 if bfloat16_gpu else torch.float32
    if name == "bfloat16" and device.type == "cuda" and not bfloat16_gpu:
        raise UserError(f"dtype=bfloat16: {torch.cuda.get_device_name(device)} has no bfloat16 units; dtype=float32 would do")
    return getattr(torch, name)


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager:
    """Matrix products in `dtype`, while the weights stay in float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)
