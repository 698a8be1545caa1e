"""Seconds from the start of the process until a held-out loss on names is reached: ours against a textbook Transformer.

    python benchmarks/time_to_loss.py                   # about eight minutes on one core
    python benchmarks/time_to_loss.py --target=2.06     # both stop at this loss, instead of at the textbook's best
    python benchmarks/time_to_loss.py --repeats=3       # with three seeds; the table shows medians

The textbook is `PostNormTransformer` below with plain SGD for 10,000 steps of 64 names. The loss to reach is the best it has in any
of its evaluations on the validation part, and its time is that of the step that had it. The evaluations are taken off the time of
both, and what a run folder costs at each of them (checkpoint, samples) is not done. Everything else counts, from the start of
Python on: imports, opening the prepared data (they are there for both), building the model.

Ours is config/names.py with the options in OURS and a learning rate that falls to 0 at `--ours_steps`, stopped at the target. It is
a recipe made for this loss, chosen on this validation part; config/names.py as it is trains longer and gets to a better one. Both
learn from the same training part and are measured on every token of the same validation part, end marks included.

Each contender runs in a process of its own, one after the other, in turns.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

BEGAN = time.time()  # before the slow imports
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from config.command_line import parse, settings_for_training  # noqa: E402
from config.settings import NamesSettings, Range  # noqa: E402
from data.names.prepare import prepare  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402

OURS = ["--dropout=0", "--token_noise=0", "--weight_decay=0.4", "--learning_rate=7e-3", "--warmup_steps=30"]


@dataclass
class LossSettings:
    target: float | None = None
    """Validation loss to reach, in nats per character; None: the best of the textbook's."""
    repeats: Annotated[int, Range(1, 100)] = 1
    """Runs of each contender, each with another seed."""
    threads: Annotated[int, Range(1, 256)] = 1
    """Threads of each process."""
    textbook_steps: Annotated[int, Range(1)] = 10_000
    """Steps of the textbook's recipe at most."""
    textbook_interval: Annotated[int, Range(1)] = 500
    """Steps between its evaluations."""
    ours_steps: Annotated[int, Range(1)] = 500
    """Steps at which the learning rate of ours has fallen to 0."""
    ours_interval: Annotated[int, Range(1)] = 25
    """Steps between the evaluations of ours."""
    ours_options: str = " ".join(OURS)
    """Options of train.py for ours, on top of config/names.py."""
    seed: int = 1337
    """Seed of the first run."""
    contender: Literal["both", "textbook", "ours"] = "both"
    """Which to run in this process, as the benchmark itself calls it; both: each in its own."""
    began: float | None = None
    """When this process was started (time.time()); None: when it began to import."""


def main(arguments: list[str]) -> None:
    settings = parse(LossSettings, arguments, description=__doc__)
    torch.set_num_threads(settings.threads)
    if settings.contender == "textbook":
        print(json.dumps(train_textbook(settings)))
    elif settings.contender == "ours":
        print(json.dumps(train_ours(settings)))
    else:
        compare(settings)


# ------------------------------------------------------------------------------------------------------------------------
# The parent: both contenders in turns, and the table


def compare(settings: LossSettings) -> None:
    """Run both, and print what each needed."""
    with contextlib.redirect_stdout(sys.stderr):
        prepare(NamesSettings())  # once, so that both find it there
    results: dict[str, list[dict]] = {"textbook": [], "ours": []}
    for seed in range(settings.seed, settings.seed + settings.repeats):
        textbook = run_alone("textbook", settings.target, seed, settings)
        ours = run_alone("ours", textbook["loss"] if settings.target is None else settings.target, seed, settings)
        results["textbook"].append(textbook)
        results["ours"].append(ours)
    print("| contender | validation loss | steps | names seen | seconds | CPU seconds | x |\n| --- | --- | --- | --- | --- | --- | --- |")
    for contender, runs in results.items():
        reached = "" if all(run["reached"] for run in runs) else " (target not reached)"
        loss, steps, names, seconds, cpu = (
            median(run[key] for run in runs) for key in ("loss", "steps", "names", "seconds", "cpu_seconds")
        )
        ratio = median(a["seconds"] / b["seconds"] for a, b in zip(results["textbook"], runs, strict=True))
        shown_ratio = "" if reached else f"{ratio:.1f}"
        print(f"| {contender} | {loss:.4f}{reached} | {steps:,.0f} | {names:,.0f} | {seconds:.1f} | {cpu:.1f} | {shown_ratio} |")


def run_alone(contender: str, target: float | None, seed: int, settings: LossSettings) -> dict:
    """What the contender reports, from a process of its own."""
    passed = ("threads", "textbook_steps", "textbook_interval", "ours_steps", "ours_interval", "ours_options")
    command = [sys.executable, Path(__file__).resolve(), *(f"--{name}={getattr(settings, name)}" for name in passed)]
    command += [f"--contender={contender}", f"--seed={seed}", f"--target={target}", f"--began={time.time()}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)  # its stderr is shown
    if done.returncode:
        raise UserError(f"{contender} ended with {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{contender}, seed {seed}: {found}", file=sys.stderr)
    return found


class Clock:
    """Time of this process from its start, wall and CPU of all threads, without what is spent in `paused` blocks."""

    def __init__(self, began: float | None) -> None:
        self.began, self.cpu_began = BEGAN if began is None else began, 0.0

    @contextlib.contextmanager
    def paused(self):
        wall, cpu = time.time(), time.process_time()
        yield
        self.began += time.time() - wall
        self.cpu_began += time.process_time() - cpu

    def read(self) -> dict[str, float]:
        return {"seconds": round(time.time() - self.began, 2), "cpu_seconds": round(time.process_time() - self.cpu_began, 2)}


# ------------------------------------------------------------------------------------------------------------------------
# Ours


def train_ours(settings: LossSettings) -> dict:
    """Train as train.py does, up to the target."""
    clock = Clock(settings.began)
    import train
    from engine.evaluation import evaluate

    with tempfile.TemporaryDirectory() as out_dir, contextlib.redirect_stdout(sys.stderr):
        options = [*settings.ours_options.split(), f"--max_steps={settings.ours_steps}", f"--seed={settings.seed}"]
        options += [f"--out_dir={out_dir}", f"--threads={settings.threads}"]
        run = train.start(settings_for_training([str(ROOT / "config/names.py"), *options], ""))
        names_per_target = run.data.meta["documents"]["train"] / (len(run.data.tokens["train"]) - 1)  # a target a character or end mark
        best = {"loss": math.inf}
        while run.progress.step < settings.ours_steps:
            train.training_step(run)
            if run.progress.step % settings.ours_interval == 0 or run.progress.step == settings.ours_steps:
                report = {"steps": run.progress.step, "names": round(run.progress.n_targets * names_per_target), **clock.read()}
                with clock.paused():
                    loss = evaluate(run.best, run.loaders["val"].once(), run.machine.device, run.machine.dtype)
                    print(f"ours: loss {loss:.4f} {report}")
                best = min(best, {"loss": loss, **report}, key=lambda found: found["loss"])
                if settings.target is not None and loss <= settings.target:
                    break
    return {**best, "reached": settings.target is None or best["loss"] <= settings.target}


# ------------------------------------------------------------------------------------------------------------------------
# The textbook: "Attention Is All You Need" (Vaswani et al. 2017) as a decoder, with learned positions and PyTorch's initial weights


class PostNormBlock(nn.Module):
    """Post-Norm: each branch adds to x, and the sum is normalised."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(n_embd, n_embd) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.ln_1(x + self.attend(x, mask))
        return self.ln_2(x + self.mlp(x))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (layer(x).view(B, T, self.n_head, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))  # (B, H, T, D)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))


class PostNormTransformer(nn.Module):
    """Characters and positions to the logits of the next character. No dropout, nothing tied."""

    def __init__(self, vocab_size: int, length: int, n_layer: int = 6, n_head: int = 4, n_embd: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, n_embd), nn.Embedding(length, n_embd)
        self.blocks = nn.ModuleList(PostNormBlock(n_embd, n_head) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())  # causal: what pads a row comes last, unseen

    def forward(self, idx: Tensor) -> Tensor:
        """idx (B, T) -> logits (B, T, V), T the fixed length."""
        x = self.tokens(idx) + self.positions.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


def padded(tokens, boundary_id: int, length: int) -> tuple[Tensor, Tensor]:
    """`$ada$eve$` as one name a row: idx (N, length), padded with the boundary, and targets (N, length), padded with -1."""
    ids = torch.from_numpy(tokens.astype("int64"))
    borders = (ids == boundary_id).nonzero().flatten().tolist()
    idx = torch.full((len(borders) - 1, length), boundary_id)
    targets = torch.full_like(idx, -1)
    for row, (start, end) in enumerate(itertools.pairwise(borders)):
        idx[row, : end - start] = ids[start:end]
        targets[row, : end - start] = ids[start + 1 : end + 1]
    return idx, targets


def train_textbook(settings: LossSettings) -> dict:
    """Train to the target, or to the end, and report the best."""
    clock = Clock(settings.began)
    with contextlib.redirect_stdout(sys.stderr):
        data = prepare(NamesSettings())
    length, batch_size = data.meta["longest"] + 1, 64
    idx, targets = padded(data.tokens["train"], data.tokenizer.boundary_id, length)
    val_idx, val_targets = padded(data.tokens["val"], data.tokenizer.boundary_id, length)
    torch.manual_seed(settings.seed)
    model = PostNormTransformer(data.tokenizer.vocab_size, length)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = {"loss": math.inf}
    order = torch.empty(0, dtype=torch.long)
    for step in range(1, settings.textbook_steps + 1):
        if len(order) < batch_size:
            order = torch.randperm(len(idx))  # a new epoch; the few names left over are dropped
        chosen, order = order[:batch_size], order[batch_size:]
        logits = model(idx[chosen])
        loss = F.cross_entropy(logits.flatten(0, 1), targets[chosen].flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % settings.textbook_interval == 0 or step == settings.textbook_steps:
            report = {"steps": step, "names": step * batch_size, **clock.read()}
            with clock.paused(), torch.no_grad():
                parts = zip(val_idx.split(256), val_targets.split(256), strict=True)
                total = sum(
                    F.cross_entropy(model(i).flatten(0, 1), t.flatten(), ignore_index=-1, reduction="sum").double() for i, t in parts
                )
                val_loss = float(total) / int((val_targets != -1).sum())
                print(f"textbook: loss {val_loss:.4f} {report}", file=sys.stderr)
            best = min(best, {"loss": val_loss, **report}, key=lambda found: found["loss"])
            if settings.target is not None and val_loss <= settings.target:
                break
    return {**best, "reached": settings.target is None or best["loss"] <= settings.target}


if __name__ == "__main__":
    run_program(main)
