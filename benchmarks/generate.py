"""New tokens a second: our decode loop against GPT-2 in `transformers` and against the loop without a cache.

    python benchmarks/generate.py                              # two sizes, batches of 1 and 64, on one core: about 8 minutes
    python benchmarks/generate.py --sizes=S --rounds=20
    python benchmarks/generate.py --sizes=L --batches=1 --dtype=bfloat16     # our weights and cache in 16 bits

Each contender continues prompts of a single token until the context is full, at temperature 1 without filters. The contenders:

    transformers   GPT2LMHeadModel.generate as it comes, with its key-value cache
    uncached       the textbook's loop around `model.py`: the whole context again for every token, `multinomial`
    ours           engine/generation.py, eager
    ours, compiled the same with a compiled step (its compilation is not counted)

The weights are random and of the same shape, on the CPU, with as many threads for all. The contenders take turns; of the rounds counts
the median. The floor of a batch of 1 is the time in which memory delivers the weights once, at the rate of the fastest of a few sums
over 256 MiB: no token can come faster, unless the weights fit into a cache.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from config.command_line import parse  # noqa: E402
from config.settings import Range  # noqa: E402
from engine.errors import UserError, run_program  # noqa: E402
from engine.generation import generate, lay_out  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402


class Size(NamedTuple):
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    new_tokens: int


SIZES = {"S": Size(4, 4, 64, 16, 27, 15), "L": Size(6, 6, 384, 256, 4096, 250)}


@dataclass
class GenerateSettings:
    sizes: str = "S,L"
    """Which sizes, with commas between them: S are names, L subwords."""
    batches: str = "1,64"
    """How many texts side by side, with commas between them."""
    rounds: Annotated[int, Range(1)] = 5
    """Turns of each contender."""
    seconds: Annotated[float, Range(0)] = 1.0
    """How long a turn lasts at least; a batch of texts is always finished."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of our weights and cache; the others are always in float32."""
    uncached: bool = True
    """Run the loop without a cache too; for L it does so with a batch of 1 only, as one of 64 takes a quarter of an hour."""
    threads: Annotated[int, Range(1, 256)] = 1
    """Threads of torch, the same for all."""


def main(arguments: list[str]) -> None:
    settings = parse(GenerateSettings, arguments, description=__doc__)
    names, batches = settings.sizes.split(","), settings.batches.split(",")
    if unknown := set(names) - set(SIZES):
        raise UserError(f"--sizes={settings.sizes}: there is no size {min(unknown)!r}; {','.join(SIZES)} would do")
    if not all(batch.isdecimal() and int(batch) for batch in batches):
        raise UserError(f"--batches={settings.batches}: numbers of 1 and above with commas between them would do")
    torch.set_num_threads(settings.threads)
    columns = ("size", "texts at once", "contender", "tokens/s", "x transformers", "x uncached", "share of the floor")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name in names:
        for batch in map(int, batches):
            for line in measure(name, SIZES[name], batch, settings):
                print(line, flush=True)


def measure(name: str, size: Size, batch: int, settings: GenerateSettings) -> list[str]:
    """The rows of the table for one size and batch."""
    contenders = make_contenders(size, batch, settings)
    turns: dict[str, list[float]] = {contender: [] for contender in contenders}  # tokens a second
    for run in contenders.values():
        run()  # compiles
        run()
    bandwidth = 0.0
    for i in range(settings.rounds):
        bandwidth = max(bandwidth, read_rate())
        for contender, run in contenders.items():
            texts, began = 0, time.perf_counter()
            while texts == 0 or time.perf_counter() - began < settings.seconds:
                run()
                texts += batch
            turns[contender].append(texts * size.new_tokens / (time.perf_counter() - began))
        shown = ", ".join(f"{contender} {turn[-1]:,.0f}" for contender, turn in turns.items())
        print(f"{name}, {batch} at once, round {i + 1}: {shown} tokens/s; memory {bandwidth / 1e9:.1f} GB/s", file=sys.stderr)
    speeds = {contender: median(turn) for contender, turn in turns.items()}
    shape = GPTConfig(size.block_size, size.vocab_size, size.n_layer, size.n_head, size.n_embd)
    weights = sum(layer.weight.numel() for layer in GPT(shape).modules() if isinstance(layer, torch.nn.Linear))
    lines = []
    for contender, speed in speeds.items():
        ratios = [f"{speed / speeds[other]:.2f}" if other in speeds else "-" for other in ("transformers", "uncached")]
        width = 2 if settings.dtype == "bfloat16" and "ours" in contender else 4  # bytes of a weight
        floor = f"{speed * weights * width / bandwidth:.0%}" if batch == 1 and contender != "uncached" else "-"
        label = f"{contender}, bfloat16" if width == 2 else contender
        lines.append(f"| {name} | {batch} | {label} | {speed:,.0f} | {' | '.join(ratios)} | {floor} |")
    return lines


def make_contenders(size: Size, batch: int, settings: GenerateSettings) -> dict[str, Callable[[], object]]:
    """Functions that write one batch of texts each."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    shape = {"n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.n_embd, "vocab_size": size.vocab_size}
    theirs = GPT2LMHeadModel(GPT2Config(**shape, n_positions=size.block_size, bos_token_id=0, eos_token_id=None)).eval()
    torch.manual_seed(0)
    plain = GPT(GPTConfig(**shape, block_size=size.block_size)).eval()
    ours, compiled = GPT(plain.config), GPT(plain.config)
    for model in (ours, compiled):
        model.load_state_dict(plain.state_dict())
        lay_out(model, getattr(torch, settings.dtype))
    compiled.config.attention = "manual"  # what sample.py takes for a compiled step on a CPU
    prompt = torch.ones(batch, 1, dtype=torch.int64)
    options = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}

    def write(model: GPT, compiled: bool) -> None:
        for _ in generate(model, prompt.tolist(), size.new_tokens, compiled=compiled, rows_at_once=batch):
            pass

    contenders: dict[str, Callable[[], object]] = {
        "transformers": lambda: theirs.generate(prompt, max_new_tokens=size.new_tokens, **options),
        "uncached": lambda: uncached(plain, prompt, size.new_tokens),
        "ours": lambda: write(ours, False),
        "ours, compiled": lambda: write(compiled, True),
    }
    if not settings.uncached or size.block_size * batch > 4096:
        del contenders["uncached"]
    return contenders


@torch.no_grad()
def uncached(model: GPT, idx: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """What a textbook does."""
    for _ in range(new_tokens):
        logits, _ = model(idx[:, -model.config.block_size :])
        idx = torch.cat((idx, torch.multinomial(logits[:, -1].softmax(-1), 1)), dim=1)
    return idx


def read_rate() -> float:
    """Bytes a second that one pass over 256 MiB of memory reads: the best of a few."""
    numbers = torch.ones(2**26)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - began)
    return numbers.numel() * 4 / best


if __name__ == "__main__":
    run_program(main)
