import pytest
import torch
from conftest import CPU

from engine.device import autocast, pick_device, pick_dtype
from engine.errors import UserError


def test_devices_are_honoured_or_refused():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("tpu!", "gpu", "cuda:99", "mps", "cuda:-1"):
        with pytest.raises(UserError, match="device="):
            pick_device(name)


def test_dtypes():
    assert pick_dtype("bfloat16", CPU, 64, 16) == (torch.bfloat16, [])
    with pytest.raises(UserError, match="dtype=float16 is for GPUs; dtype=bfloat16 would do"):
        pick_dtype("float16", CPU, 64, 16)
    with autocast(CPU, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
