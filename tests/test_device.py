import pytest
import torch
from conftest import CPU

from config.settings import Settings
from engine import device
from engine.device import Machine, autocast, peak_memory, pick_compile, pick_device, pick_dtype, pick_machine, pick_threads, set_up
from engine.errors import UserError
from engine.parallel import World
from model import GPTConfig

TINY = GPTConfig(block_size=16, vocab_size=10, n_layer=1, n_head=2, n_embd=16)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize(("factor", "chosen"), [(2.0, torch.bfloat16), (1.2, torch.float32), (0.3, torch.float32)])
def test_bfloat16_on_a_cpu_where_it_is_faster(monkeypatch, factor, chosen):
    monkeypatch.setattr(device, "matmul_rate", lambda dtype, *shape: 1e11 * (factor if dtype == torch.bfloat16 else 1))
    dtype, (note,) = pick_dtype("auto", CPU, 64, 16)
    assert dtype == chosen and "in float32 at 100:" in note and ("faster" in note) == (chosen == torch.bfloat16)


def test_matrix_products_are_measured():
    assert 1e6 < device.matmul_rate(torch.float32, CPU, 64, 16) < 1e15


def test_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert pick_threads(1e6) == 1
    assert 1 <= pick_threads(1e15) <= torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert pick_threads(1e6) == 3


def test_decisions(monkeypatch):
    monkeypatch.setattr(device, "matmul_rate", lambda dtype, *shape: 2e11 if dtype == torch.bfloat16 else 1e11)
    machine = pick_machine(Settings(device="cpu"), TINY, {})
    assert (machine.dtype, machine.attention, machine.threads, machine.compile) == (torch.bfloat16, "manual", 1, False)
    assert str(machine) == "cpu in bfloat16, 1 thread"
    machine = pick_machine(Settings(device="cpu", dtype="float32", threads=2), TINY, {})
    assert (machine.dtype, machine.attention, machine.threads, machine.notes) == (torch.float32, "fused", 2, [])
    assert pick_machine(Settings(device="cpu", attention="fused"), TINY, {}).attention == "fused"


def test_a_resumed_run_decides_as_before():
    decided = Machine(CPU, torch.bfloat16, "manual", 3, True, 1e9, []).decided()
    assert decided == {"device": "cpu", "dtype": "bfloat16", "attention": "manual", "threads": 3, "compile": True}
    machine = pick_machine(Settings(device="cpu"), TINY, decided)
    assert machine.decided() == decided and machine.notes == []
    machine = pick_machine(Settings(device="cpu"), TINY, {**decided, "device": "cuda"})  # elsewhere: all over again
    assert machine.decided() != decided


def test_compiling_when_it_can_and_pays(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/bin/" + name)
    assert pick_compile(Settings(), CPU, floor=1000) == (True, [])
    assert pick_compile(Settings(), CPU, floor=1) == (False, [])
    assert pick_compile(Settings(compile=True), CPU, floor=1) == (True, [])
    assert pick_compile(Settings(compile=False), CPU, floor=1000) == (False, [])
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    assert pick_compile(Settings(), CPU, floor=1000) == (False, [])
    compiling, (note,) = pick_compile(Settings(compile=True), CPU, floor=1000)
    assert not compiling and "no C++ compiler; going on without" in note


def test_set_up_and_memory():
    machine = set_up(Machine(CPU, torch.float32, "fused", 1, False, 1e9, []), World())
    assert torch.get_num_threads() == 1 and machine.device == CPU
    before = peak_memory(CPU)
    held = torch.ones(before // 4 + 15_000_000)  # more than all there has been in this process
    assert peak_memory(CPU) >= before + 50_000_000
    assert held.sum() > 0
