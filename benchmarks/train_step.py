"""Milliseconds a training step and real tokens a second, ours against GPT-2 in `transformers` and against a textbook loop.

    python benchmarks/train_step.py                           # three sizes, on one core
    python benchmarks/train_step.py --sizes=S --rounds=20
    python benchmarks/train_step.py --rounds=1 --steps=3      # only to see that it works

Real tokens are targets that are predicted: padding is no work. The sizes: S learns names, 128 a step on average; M and L learn a made-up
text in windows (a window of T tokens has T targets, but T - 1 in `transformers`, which shifts the labels by itself). The contenders:

    transformers   GPT2LMHeadModel as it comes (SDPA attention, no key-value cache), dropout 0; names padded to the longest of the batch
                   with an attention mask and labels of -100; torch.optim.AdamW, gradients clipped
    textbook       model.py with attention="manual", names padded to the longest of the list; a plain AdamW, gradients clipped
    ours           train.training_step with the defaults of config/settings.py: GPT-2's architecture, names packed into rows
    ours, recipe   the same size with the modern parts of config/names.py

The first two run eagerly in float32; ours as its settings choose by themselves here, which the table tells (what they change in
the allocator of memory helps all). Each step includes making its batch. All on the CPU, with as many threads. The contenders take
turns of `--steps` steps; of each turn counts the median, and of those the median over the rounds. The matmul peak is the fastest
1024 x 1024 x 1024 product in float32, between the same turns.
"""

import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402

import train  # noqa: E402
from config.command_line import parse  # noqa: E402
from config.settings import Range, Settings, check  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402

Step = Callable[[], int]  # one update of the weights; returns how many targets it had


class Size(NamedTuple):
    """The shape of model and batch. `rows` of block_size tokens; names come in `names` instead, packed into as many rows in ours."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    rows: int
    names: int | None = None


SIZES = {
    "S": Size(4, 4, 64, 32, 27, rows=30, names=128),
    "M": Size(4, 4, 128, 64, 65, rows=12),
    "L": Size(6, 6, 384, 256, 4096, rows=8),
}
RECIPE = {"norm": "rmsnorm", "position": "rotary", "activation": "relu2", "qk_norm": True, "bias": False, "init": "fan_in"}


@dataclass
class StepSettings:
    sizes: str = "S,M,L"
    """Which sizes, with commas between them."""
    rounds: Annotated[int, Range(1)] = 5
    """Turns of each contender."""
    steps: Annotated[int, Range(1)] = 20
    """Steps a turn."""
    warmup: Annotated[int, Range(0)] = 3
    """Steps of each contender before the first round."""
    threads: Annotated[int, Range(1, 256)] = 1
    """Threads of torch, the same for all."""


def main(arguments: list[str]) -> None:
    settings = parse(StepSettings, arguments, description=__doc__)
    names = settings.sizes.split(",")
    for name in names:
        if name not in SIZES:
            raise UserError(f"--sizes={settings.sizes}: there is no size {name!r}; {','.join(SIZES)} would do")
    torch.set_num_threads(settings.threads)
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            lines += measure(name, SIZES[name], settings, Path(folder))
    columns = ("size", "contender", "ms/step", "real tokens/s", "x transformers", "x textbook", "share of the fp32 matmul peak")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    print("\n".join(lines))


def measure(name: str, size: Size, settings: StepSettings, folder: Path) -> list[str]:
    """The rows of the table for one size."""
    steps, flops = make_steps(size, folder, settings.threads)
    for step in steps.values():
        for _ in range(settings.warmup):
            step()
    turns: dict[str, list[float]] = {contender: [] for contender in steps}  # seconds a step, the median of each turn
    targets: dict[str, list[int]] = {contender: [] for contender in steps}
    peak = 0.0
    for i in range(settings.rounds):
        peak = max(peak, matmul_speed())
        for contender, step in steps.items():
            seconds = []
            for _ in range(settings.steps):
                began = time.perf_counter()
                targets[contender].append(step())
                seconds.append(time.perf_counter() - began)
            turns[contender].append(median(seconds))
        shown = ", ".join(f"{contender} {1e3 * turn[-1]:.1f} ms" for contender, turn in turns.items())
        print(f"{name}, round {i + 1}: {shown}; matmul peak so far {peak / 1e9:.1f} GFLOP/s")
    speeds = {contender: np.mean(targets[contender]) / median(turns[contender]) for contender in steps}
    return [
        f"| {name} | {contender} | {1e3 * median(turns[contender]):.2f} | {speed:,.0f} | {speed / speeds['transformers']:.2f} "
        f"| {speed / speeds['textbook']:.2f} | {speed * flops / peak:.1%} |"
        for contender, speed in speeds.items()
    ]


def matmul_speed() -> float:
    """Floating point operations a second of a large matrix product, the fastest of a few."""
    a, b = torch.randn(2, 1024, 1024)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(seconds)


# ------------------------------------------------------------------------------------------------------------------------
# The contenders


def make_steps(size: Size, folder: Path, threads: int) -> tuple[dict[str, Step], int]:
    """A step function for each contender, and the useful operations a target, the same for all."""
    data_options = {"dataset": "names"} if size.names else text_options(size, folder)
    data_options["threads"] = threads
    ours, run = our_step(size, folder, data_options)
    recipe, _ = our_step(size, folder, data_options | RECIPE | {"run": "recipe"})
    data = run.data
    if data.tokenizer.vocab_size != size.vocab_size:
        raise UserError(f"the made-up text has {data.tokenizer.vocab_size} tokens, not {size.vocab_size}")
    tokens = np.array(data.tokens["train"])
    shape = GPTConfig(size.block_size, size.vocab_size, size.n_layer, size.n_head, size.n_embd)
    if size.names:
        ids = torch.from_numpy(tokens.astype(np.int64))
        borders = (ids == data.tokenizer.boundary_id).nonzero().flatten().tolist()
        names = [ids[start : end + 1] for start, end in itertools.pairwise(borders)]  # $ada$
        rows = padded_to(names, data.meta["longest"] + 1)
        transformers = transformers_step(shape, lambda: padded_to_longest(names, size.names))
        textbook = textbook_step(shape, lambda: drawn(rows, size.names))
        length = (len(tokens) - 1) // len(names)
    else:
        transformers = transformers_step(shape, lambda: windows(tokens, size.rows, size.block_size) * 2)
        textbook = textbook_step(shape, lambda: inputs_and_targets(*windows(tokens, size.rows, size.block_size + 1)))
        length = size.block_size
    flops = GPT(shape).flops_per_token(length)
    how = f", {str(run.machine.dtype).removeprefix('torch.')}" + ", compiled" * run.machine.compile
    return {"transformers": transformers, "textbook": textbook, f"ours{how}": ours, f"ours, recipe{how}": recipe}, flops


def text_options(size: Size, folder: Path) -> dict:
    """A made-up text that has exactly this vocabulary, and the options to read it: characters, or byte pairs for a larger one."""
    rng = np.random.default_rng(0)
    source = folder / "text.txt"
    if size.vocab_size < 257:
        letters = [chr(ord("0") + i) for i in range(size.vocab_size - 2)]  # two ids are the boundary and the unknown character
        source.write_text("".join(rng.choice(letters, 200_000)), encoding="utf-8")
        return {"dataset": "text", "tokenizer": "char", "source": str(source)}
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(3, 10))) for _ in range(2 * size.vocab_size)]
    source.write_text(" ".join(rng.choice(words, 200_000)), encoding="utf-8")
    return {"dataset": "text", "tokenizer": "bpe", "vocab_size": size.vocab_size, "source": str(source)}


def our_step(size: Size, folder: Path, options: dict) -> tuple[Step, train.Run]:
    """A step of train.py, and the run it belongs to."""
    shape = {"n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.n_embd, "block_size": size.block_size}
    places = {"out_dir": str(folder / "out"), "prepared_dir": str(folder / "prepared")}
    settings = Settings(**options, **shape, **places, batch_size=size.rows, max_steps=1_000_000, device="cpu")
    run = train.start(check(settings))

    def step() -> int:
        before = run.progress.n_targets
        train.training_step(run)
        return run.progress.n_targets - before

    return step, run


def transformers_step(shape: GPTConfig, batch: Callable) -> Step:
    """The usual loop around GPT2LMHeadModel. `batch` returns input_ids, labels and perhaps an attention_mask."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        raise UserError("transformers is missing: pip install -e '.[test]'") from None

    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.block_size,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False},
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> int:
        input_ids, labels, *mask = batch()
        n_targets = int((labels[:, 1:] != -100).sum())
        loss = model(input_ids, labels=labels, attention_mask=mask[0] if mask else None).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return n_targets

    return step


def textbook_step(shape: GPTConfig, batch: Callable) -> Step:
    """The plainest loop there is. `batch` returns idx and targets."""
    model = GPT(shape).train()
    model.config.attention = "manual"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)

    def step() -> int:
        idx, targets = batch()
        n_targets = int((targets != -1).sum())
        _, loss = model(idx, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return n_targets

    return step


# ------------------------------------------------------------------------------------------------------------------------
# Their batches


def padded_to_longest(names: list[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    """Names drawn by chance: input_ids, labels and attention_mask (B, longest of them with both marks)."""
    chosen = [names[i] for i in torch.randint(len(names), (count,)).tolist()]
    labels = pad_sequence(chosen, batch_first=True, padding_value=-100)
    mask = labels != -100
    return labels.masked_fill(~mask, 0), labels, mask.long()


def padded_to(names: list[torch.Tensor], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All names: idx and targets (N, length), -1 where nothing is to be predicted."""
    idx = torch.zeros(len(names), length, dtype=torch.long)
    targets = torch.full_like(idx, -1)
    for row, name in enumerate(names):
        idx[row, : len(name) - 1] = name[:-1]
        targets[row, : len(name) - 1] = name[1:]
    return idx, targets


def drawn(rows: tuple[torch.Tensor, ...], count: int) -> tuple[torch.Tensor, ...]:
    """The same rows, drawn by chance, of each tensor."""
    chosen = torch.randint(len(rows[0]), (count,))
    return tuple(tensor[chosen] for tensor in rows)


def windows(tokens: np.ndarray, count: int, length: int) -> tuple[torch.Tensor]:
    """Pieces of the text from places drawn by chance, (B, length)."""
    starts = torch.randint(len(tokens) - length, (count,)).tolist()
    return (torch.stack([torch.from_numpy(tokens[i : i + length].astype(np.int64)) for i in starts]),)


def inputs_and_targets(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T + 1) -> (B, T) tokens and (B, T) the token after each."""
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


if __name__ == "__main__":
    run_program(main)
