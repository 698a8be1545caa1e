"""From chance to the Transformer, generation by generation, and what each buys: python ladder.py [--option=value ...]

    python ladder.py                                     all of them, on the same names: five minutes on two CPU cores
    python ladder.py --models bigram mlp                 some of them
    python ladder.py --textbook --source=yob2022.txt     a textbook's own protocol, beside its figures

Each is trained by train.py with its config (config/ladder/, and config/names.py for the GPT), on the same batches of the same training
names; its run folder is out/ladder/NAME, for sample.py and visualize.py. docs/lesson.md walks through the table.
"""

import contextlib
import io
import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from tqdm import tqdm

import train
from config.command_line import parse
from config.settings import SEED, Range, SamplingSettings
from data.names.prepare import read_source
from engine import checkpoint
from engine.errors import UserError, nearest, run_program
from engine.files import output_file, read_text, replacing, write_text
from engine.logs import read_log
from engine.tables import table
from engine.writing import continuations
from zoo.ladder import LadderConfig
from zoo.models import make

ROOT = Path(__file__).resolve().parent
DRAWN = 1000  # names, to see how many are new


class Rung(NamedTuple):
    """A step of the ladder."""

    config: str
    buys: str  # in a line


RUNGS = {
    "uniform": Rung("config/ladder/uniform.py", "nothing: what a guess costs, ln 27"),
    "bigram": Rung("config/ladder/bigram.py", "which letter likes to follow which"),
    "mlp": Rung("config/ladder/mlp.py", "all letters before, each in its place; letters that act alike share what is learned"),
    "attention": Rung("config/ladder/attention.py", "all letters before, those that matter weighed more; but where they stand is lost"),
    "transformer": Rung("config/ladder/transformer.py", "places and weighing at once, six times over"),
    "ngram": Rung("config/ladder/ngram.py", "for comparison, the best of counting: the last four letters as they are"),
    "gpt": Rung("config/names.py", "the same idea with today's parts and training: it learns the rules, and not the list by heart"),
}


@dataclass
class LadderSettings:
    """All options of ladder.py."""

    models: list[str] = field(default_factory=list)
    """uniform, bigram, mlp, attention, transformer, ngram, gpt: which to train, with blanks between them. Without any: all."""
    year: int | None = None
    """Year to take out of the Social Security Administration's names.zip."""
    source: str | None = None
    """List of names; None: the bundled one. The textbook's protocol needs one with duplicates, such as the SSA's yob2022.txt."""
    textbook: bool = False
    """Train three models as the textbook does, instead: names shorter than 10 letters, duplicates kept, plain SGD, no held-out names."""
    max_steps: Annotated[int | None, Range(1)] = None
    """Training steps of each model; None: those of its config, 4,500 (textbook: 10,000)."""
    seed: Annotated[int | None, SEED] = None
    """Seed of everything drawn by chance, but for the split; None: 1337, as in train.py (textbook: 0)."""
    out_dir: str = "out"
    """Folder of the folder `ladder`, where the runs, ladder.md and ladder.png go."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads on a CPU; None: as many as have enough to do."""


def main(arguments: list[str]) -> None:
    settings = parse(LadderSettings, arguments, description=__doc__)
    if settings.textbook:
        for option in ("models", "device", "out_dir"):
            if getattr(settings, option) != getattr(LadderSettings(), option):
                raise UserError(f"--{option} means nothing for --textbook; leave it out")
        return textbook(settings)
    if unknown := [name for name in settings.models if name not in RUNGS]:
        raise UserError(
            f"--models={unknown[0]}: there is none of that name{nearest(unknown[0], list(RUNGS))}; there are: {', '.join(RUNGS)}"
        )
    chosen = [name for name in RUNGS if name in settings.models] if settings.models else list(RUNGS)
    stem = "ladder" if len(chosen) == len(RUNGS) else f"ladder_{'_'.join(chosen)}"
    page = output_file("out_dir", None, Path(settings.out_dir) / "ladder" / f"{stem}.md")
    threads = torch.get_num_threads()
    results = {}
    for name in tqdm(chosen, unit="model", disable=None):
        torch.set_num_threads(threads)  # the last model may have needed fewer
        results[name] = climb(name, settings)
    shown = ladder_table(results)
    if "ngram" in results:
        shown += f"\n\n{contexts_seen(results['ngram'].folder)}"
    print(f"\n{shown}")
    write_text(page, shown + "\n")
    draw(results, page.with_suffix(".png"))
    print(f"\nthe table is in {page}, the losses by step in {page.with_suffix('.png')}, the runs beside them")


class Result(NamedTuple):
    """What came of one model."""

    folder: Path
    summary: dict
    rows: list[dict[str, str]]  # of its log
    new: float  # share of the names it writes that are not in the training list
    samples: list[str]  # new ones


def climb(name: str, settings: LadderSettings) -> Result:
    """Train one model, and let it write."""
    out_dir = Path(settings.out_dir) / "ladder"
    options = {"out_dir": out_dir, "run": name, "device": settings.device}
    options |= {
        option: getattr(settings, option)
        for option in ("source", "year", "max_steps", "seed", "threads")
        if getattr(settings, option) is not None
    }
    with contextlib.redirect_stdout(io.StringIO()):
        train.main([str(ROOT / RUNGS[name].config), *(f"--{option}={value}" for option, value in options.items())])
    folder = out_dir / name
    names, seen = written_names(folder, SamplingSettings.seed if settings.seed is None else settings.seed)
    new = [text for text in names if text not in seen]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return Result(folder, summary, read_log(folder / "log.csv"), len(new) / max(1, len(names)), new[:5])


def written_names(folder: Path, seed: int) -> tuple[list[str], set[str]]:
    """Names that the model of a run writes, empty ones left out; and those it has learned from."""
    model, tokenizer = checkpoint.load_run(folder, torch.device("cpu"))
    sampling = SamplingSettings(num_samples=DRAWN, seed=seed)
    names = [text for text in islice(continuations(model, tokenizer, sampling, [tokenizer.boundary_id]), DRAWN) if text]
    return names, set((folder / "seen.txt").read_text(encoding="utf-8").split("\n")[:-1])


def ladder_table(results: dict[str, Result]) -> str:
    """A row a model."""
    columns = ("model", "parameters", "train", "val", "test", "perplexity", "new names", "seconds", "names it made up", "what it buys")
    rows = []
    for name, (_, summary, _, new, samples) in results.items():
        losses = [f"{summary['loss'][split]:.4f}" for split in ("train", "val", "test")]
        seconds = summary["training_seconds"]
        perplexity, seconds = f"{summary['perplexity']['test']:.2f}", f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.1g}"
        rows.append([name, f"{summary['parameters']:,}", *losses, perplexity, f"{new:.0%}", seconds, " ".join(samples), RUNGS[name].buys])
    return table(columns, rows)


def contexts_seen(folder: Path) -> str:
    """Of all contexts there could be, how many the training names hold, by their length: what a table would have to be filled from."""
    model = checkpoint.load_model(folder, torch.device("cpu"))
    V = model.config.vocab_size
    counts = (f"{len(getattr(model, f'keys_{n + 1}')):,} of {V**n:,}" for n in range(1, model.config.order))
    return f"contexts of 1, 2, ... characters that occur in the training names: {'; '.join(counts)}"


def draw(results: dict[str, Result], path: Path) -> None:
    """The loss on the validation names by step; a dashed line for what was counted. Chance lies far above the rest: it is left out
    where there are others."""
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (name, result) in enumerate(results.items()):
        points = [(int(row["step"]), float(row["val_loss"])) for row in result.rows if row["val_loss"]]
        label = f"{name} ({result.summary['loss']['val']:.3f})"
        if name == "uniform" and len(results) > 1:
            axes.plot([], [], " ", label=f"{label}, above")
        elif result.summary["steps"] == 0:
            axes.axhline(points[-1][1], color=f"C{number}", linestyle="--", label=label)
        else:
            axes.plot(*zip(*points, strict=True), color=f"C{number}", marker="o", markersize=3, label=label)
    axes.set(xlabel="training step", ylabel="validation loss (nats per character)", title="From chance to the Transformer")
    axes.grid(alpha=0.3)
    figure.legend(title="model (its best)", loc="outside right upper")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


# ------------------------------------------------------------------------------------------------------------------------
# The textbook's own protocol


class Lesson(NamedTuple):
    """How the textbook trains a model, and what it reports."""

    learning_rate: float
    shape: dict[str, int]
    loss: float


TEXTBOOK = {
    "mlp": Lesson(0.1, {"n_embd": 3, "n_hidden": 128}, 2.34),
    "attention": Lesson(0.01, {"n_embd": 32, "n_hidden": 64}, 2.43),
    "transformer": Lesson(0.1, {"n_embd": 64, "n_head": 4, "n_layer": 6}, 1.93),
}
LONGEST = 9  # letters of a name


def textbook(settings: LadderSettings) -> None:
    """Print the textbook's figures beside ours."""
    if settings.source is None:
        raise UserError("--textbook needs the list that the textbook used; --source=yob2022.txt, from the SSA's names.zip, would do")
    names = short_names(Path(settings.source), settings.year)
    steps = settings.max_steps or 10_000
    torch.set_num_threads(settings.threads or 1)  # batches so small are no faster with more
    print(f"{len(names):,} names of up to {LONGEST} letters, duplicates kept; {steps:,} steps of 64 names, plain SGD\n")
    rows = []
    for kind, lesson in TEXTBOOK.items():
        losses = textbook_losses(kind, lesson, names, steps, settings.seed or 0)
        last = losses[-max(1, steps // 10) :]
        rows.append([kind, f"{lesson.learning_rate:g}", f"{sum(last) / len(last):.3f}", f"{lesson.loss:.2f}"])
    print(table(("model", "learning rate", f"mean loss of the last {len(last):,} steps", "the textbook's"), rows))
    twice = len(names) - len(set(names))
    print(f"\nThese are losses on the names being learned, {twice:,} of which come twice: they do not compare with the ladder's.")


def short_names(source: Path, year: int | None = None) -> list[str]:
    """The names in the source, one a line, with or without more columns: lower case, of at most 9 letters a to z, duplicates kept.
    Raises UserError for a source that cannot be read, or with fewer than a batch of them."""
    text = "".join(read_text(io.BytesIO(read_source(source, year)), source))
    names = [line.split(",")[0].strip().lower() for line in text.split("\n")]
    names = names[1:] if names[0] == "name" else names  # the header of a CSV
    names = [name for name in names if name.isascii() and name.isalpha() and len(name) <= LONGEST]
    if len(names) < 64:
        raise UserError(f"--source={source} has {len(names)} names of up to {LONGEST} letters; at least 64 are needed, a batch")
    return names


def textbook_losses(kind: str, lesson: Lesson, names: list[str], steps: int, seed: int) -> list[float]:
    """The training loss of every step: names drawn by chance, with replacement."""
    length = LONGEST + 1
    idx = torch.zeros(len(names), length, dtype=torch.int64)  # 0 begins a name, and pads it
    targets = torch.full_like(idx, -1)
    for row, name in enumerate(names):
        ids = torch.tensor([ord(letter) - ord("a") + 1 for letter in name])
        idx[row, 1 : len(name) + 1] = targets[row, : len(name)] = ids
        targets[row, len(name)] = 0
    torch.manual_seed(seed)
    model = make(LadderConfig(kind, length, 27, **lesson.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=lesson.learning_rate)
    losses = []
    for _ in tqdm(range(steps), desc=kind, unit="step", leave=False, disable=None):
        chosen = torch.randint(len(names), (64,))
        _, loss = model(idx[chosen], targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    run_program(main)
