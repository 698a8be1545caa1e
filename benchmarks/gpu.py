"""Tokens a second and MFU of config/gpt2.py, against GPT-2 in `transformers` with a plain loop in bfloat16 and torch.compile.

    python benchmarks/gpu.py                                                         # on a GPU
    python benchmarks/gpu.py --device=cpu --n_layer=2 --n_embd=64 --block_size=64 --batch_size=2    # only to see that it works

Both do whole steps: make a batch, forward, backward, clip the gradients, AdamW (fused). The contenders take turns of `--steps`
steps; the table has medians over the turns. The text is made up, in a vocabulary of GPT-2's size that is made up too, so that nothing
is downloaded: speed does not depend on what the tokens say.
"""

import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import tiktoken  # noqa: E402
import torch  # noqa: E402

import train  # noqa: E402
from config.command_line import parse, read_config  # noqa: E402
from config.settings import Range  # noqa: E402
from engine.device import peak_memory, wait  # noqa: E402
from engine.errors import run_program  # noqa: E402


@dataclass
class GpuSettings:
    device: str = "auto"
    """Where to run, as in train.py."""
    batch_size: Annotated[int, Range(1)] = 32
    """Rows of a step."""
    block_size: Annotated[int, Range(1)] = 1024
    """Tokens of a row."""
    n_layer: Annotated[int, Range(1)] = 12
    """Blocks."""
    n_embd: Annotated[int, Range(1)] = 768
    """Channels."""
    rounds: Annotated[int, Range(1)] = 5
    """Turns of each contender."""
    steps: Annotated[int, Range(1)] = 10
    """Steps a turn."""


def main(arguments: list[str]) -> None:
    settings = parse(GpuSettings, arguments, description=__doc__)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        run = start(settings, Path(folder))
        device = run.machine.device
        steps = {"ours": lambda: train.training_step(run), "transformers": transformers_step(run)}
        seconds = measure(steps, device, settings)
        train.close(run)
    tokens = settings.batch_size * settings.block_size
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"| {name} | ms/step | tokens/s | MFU | x transformers |\n| --- | --- | --- | --- | --- |")
    for contender, turns in seconds.items():
        speed = tokens / median(turns)
        ratio = median(seconds["transformers"]) / median(turns)
        print(f"| {contender} | {1e3 * median(turns):.1f} | {speed:,.0f} | {train.utilization(run, speed):.1%} | {ratio:.2f} |")
    print(f"{run.model.num_parameters():,} parameters, {peak_memory(device) / 2**30:.1f} GiB at most, both together")


def start(settings: GpuSettings, folder: Path) -> train.Run:
    """A run of config/gpt2.py on made-up text."""
    pairs = (bytes(pair) for pair in itertools.product(range(256), repeat=2))
    tokens = [bytes([i]) for i in range(256)] + list(itertools.islice(pairs, 50_000))
    ranks = {token: rank for rank, token in enumerate(tokens)}
    made_up = tiktoken.Encoding("gpt2", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)})
    tiktoken.get_encoding = lambda name: made_up
    letters = np.random.default_rng(0).choice(list("etaoin shrdlu\n"), 4_000_000)
    (folder / "text.txt").write_text("".join(letters), encoding="utf-8")
    places = {"source": str(folder / "text.txt"), "prepared_dir": str(folder / "prepared"), "out_dir": str(folder / "out")}
    shape = {name: getattr(settings, name) for name in ("device", "batch_size", "block_size", "n_layer", "n_embd")}
    return train.start(replace(read_config(ROOT / "config/gpt2.py"), **places, **shape, grad_accum=1))


def transformers_step(run: train.Run) -> Callable[[], None]:
    """GPT2LMHeadModel of the same size, on batches from the same loader."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config, device = run.model.config, run.machine.device
    shape = {"n_positions": config.block_size, "n_layer": config.n_layer, "n_head": config.n_head, "n_embd": config.n_embd}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=config.vocab_size, use_cache=False, **shape, **no_dropout)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    forward = torch.compile(model) if run.machine.compile else model
    loader = train.make_loader("train", run.data, run.settings, run.machine, run.world)

    def step() -> None:
        batch = next(loader).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(batch.idx, labels=batch.idx).loss  # shifted by the model itself
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(steps: dict[str, Callable], device: torch.device, settings: GpuSettings) -> dict[str, list[float]]:
    """Seconds a step of each turn, by contender."""
    for step in steps.values():
        for _ in range(3):  # compiles
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(settings.rounds):
        for name, step in steps.items():
            wait(device)
            began = time.perf_counter()
            for _ in range(settings.steps):
                step()
            wait(device)
            seconds[name].append((time.perf_counter() - began) / settings.steps)
    return seconds


if __name__ == "__main__":
    run_program(main)
