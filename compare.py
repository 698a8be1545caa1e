"""Manual against fused attention: the same function, at another cost: python compare.py [--option=value ...]

    python compare.py                                       half a minute on two CPU cores
    python compare.py --dtype=bfloat16 --backends manual flash math
    python compare.py --shapes 1,12,4096,64 8,6,512,64 --threads=1
    python compare.py --run=names --compile                 in a compiled model
    python compare.py --device=cuda --dtype=bfloat16 --shapes 1,12,16384,64

It prints three tables (are they the same function, what does each cost, what is it in a model) and writes every number to
compare.csv, and time and memory by the number of tokens to compare.png.
"""

import contextlib
import csv
import importlib
import io
import math
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

import torch
from tqdm import tqdm

import train
from config.command_line import parse, read_config
from config.settings import Range, Settings
from engine import checkpoint
from engine.attention_cost import WAYS, Cost, cost_of, useful_flops
from engine.attention_error import TENSORS, Truth, errors, reference, within
from engine.attention_in_model import InModel, by_path, gaps, largest
from engine.attention_paths import PATHS, Case, Shape, Unavailable, free_memory, hard_cases, outcome, random_inputs, score_bytes
from engine.device import gpu_peak, matmul_rate, pick_device, pick_dtype, pick_machine
from engine.errors import UserError, nearest, run_program
from engine.files import output_file, replacing, write_text
from engine.tables import table
from model import GPT

ROOT = Path(__file__).resolve().parent
SHAPES = ["64,4,8,16", "8,6,256,64", "1,12,1024,64"]
SCORES = 2**24  # of a shape, as many are checked against float64, and at least one head
MIB = 2**20


@dataclass
class CompareSettings:
    """All options of compare.py."""

    shapes: list[str] = field(default_factory=list)
    """B,H,T,D: rows, heads, tokens, channels of a head; several with blanks between them. Without any: from a few names to 1,024 tokens."""
    head_dim: Annotated[int | None, Range(1, 1024)] = None
    """Channels of a head, in place of those of the shapes."""
    dropout: Annotated[float, Range(0, 1, below_high=True)] = 0.0
    """Share of the weights that is dropped where the cost is measured."""
    backends: list[str] = field(default_factory=list)
    """manual, fused, math, flash, efficient, cudnn, flex: which to compare in the first two tables, with blanks between them. Without
    any: all in the first (flex once, as it takes seconds to compile), manual and fused in the second. The third has these two always."""
    run: str | None = None
    """Name of a run under out_dir, or its folder, for the third table; None: the newest, or an untrained model of config/names.py."""
    out_dir: str = "out"
    """Folder of the run folders."""
    steps: Annotated[int, Range(1, 1_000_000)] = 200
    """Training steps of each path."""
    rounds: Annotated[int, Range(1, 10_000)] = 5
    """How often the paths take turns when their time is measured; the median counts."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on a CPU, 16 bits on a GPU; in a model, what train.py takes."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads on a CPU; None: as many as PyTorch likes; in a model, as train.py takes."""
    compile: Literal["auto", True, False] = "auto"
    """Compile the model of the third table; auto: when train.py would."""
    csv: str | None = None
    """File for all numbers; None: compare/compare.csv in out_dir."""
    plot: str | None = None
    """File for the picture (PNG); None: compare/compare.png in out_dir."""


class Record(NamedTuple):
    """One number for the CSV file."""

    table: str
    case: str
    path: str
    measure: str
    value: Any


class Study(NamedTuple):
    """What is to be compared, decided once."""

    settings: CompareSettings
    device: torch.device
    place: str  # the same in words
    dtype: torch.dtype
    shapes: list[Shape]
    trained: Path | None  # the folder of a run; None: there is none
    model: GPT | None  # of that run
    recipe: Settings  # by which to train
    numbers: Path
    picture: Path


Costs = dict[tuple[Shape, str, str], Cost]  # by shape, path and way


def main(arguments: list[str]) -> None:
    study = prepare(parse(CompareSettings, arguments, description=__doc__))
    print(f"on {study.place}, {name(study.dtype)}, torch {torch.__version__}")
    same = same_function(study)
    costs, missing = measure_costs(study)
    priced = show_costs(study, costs, missing)
    inside, losses = in_a_model(study)
    print(f"\nWhy, and where in the code\n\n{explanation()}\n")
    write_csv(study.numbers, same + priced + inside)
    draw(study, costs, losses)
    print(f"every number is in {study.numbers}, the picture is {study.picture}")


def prepare(settings: CompareSettings) -> Study:
    """Decide what is open, and find mistakes before anything is measured."""
    if unknown := [backend for backend in settings.backends if backend not in PATHS]:
        raise UserError(
            f"--backends={unknown[0]}: there is none of that name{nearest(unknown[0], list(PATHS))}; there are: {', '.join(PATHS)}"
        )
    device = pick_device(settings.device)
    dtype, _ = pick_dtype("float32" if settings.dtype == "auto" and device.type == "cpu" else settings.dtype, device, 1, 1)
    shapes = [read_shape(text, settings.head_dim, device) for text in settings.shapes or SHAPES]
    if settings.threads:
        torch.set_num_threads(settings.threads)
    numbers = output_file("csv", settings.csv, Path(settings.out_dir) / "compare" / "compare.csv")
    picture = output_file("plot", settings.plot, Path(settings.out_dir) / "compare" / "compare.png")
    try:
        trained = checkpoint.find_run(settings.run, settings.out_dir)
        recipe, model = recipe_of(trained), checkpoint.load_run(trained, device)[0]
    except UserError as error:
        if settings.run is not None:
            raise
        print(f"note: {error}; the third table takes config/names.py", file=sys.stderr)
        trained, recipe, model = None, read_config(ROOT / "config" / "names.py"), None
    return Study(settings, device, in_words(device), dtype, shapes, trained, model, recipe, numbers, picture)


def recipe_of(folder: Path) -> Settings:
    """The settings of the run in this folder. Raises UserError when its data cannot be had any more."""
    description = checkpoint.read_settings(folder)
    settings = checkpoint.settings_of(folder, description)
    if settings.model != "gpt":
        raise UserError(f"{folder} is another model, {settings.model}; a run of a GPT would do")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            data = importlib.import_module(f"data.{settings.dataset}.prepare").prepare(settings)
    except UserError as error:
        raise UserError(f"the data that {folder} was trained on are gone ({error}); another --run would do") from None
    if data.meta["splits"] != description["data"].get("splits"):
        raise UserError(f"the data that {folder} was trained on have changed; another --run would do, or one trained anew")
    return settings


def read_shape(text: str, head_dim: int | None, device: torch.device) -> Shape:
    """B,H,T,D. Raises UserError for anything else, and for what does not fit into memory."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 2**16 for part in parts):
        raise UserError(f"--shapes={text} is no shape B,H,T,D of four numbers from 1 to 65,536; 1,12,1024,64 would do")
    B, H, T, D = map(int, parts)
    D = head_dim or D
    needed, free = 40 * B * H * T * D, free_memory(device)  # queries, keys, values, the output and the gradients, in float32
    if free is not None and needed > free:
        raise UserError(
            f"--shapes={text} needs {needed / 2**30:,.0f} GiB without any scores, {free / 2**30:,.0f} are free; a smaller one would fit"
        )
    return Shape(B, H, T, T, D)


def in_words(device: torch.device) -> str:
    """What computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------------------------
# 1. The same function


def same_function(study: Study) -> list[Record]:
    """The first table: how far each path is from float64, case by case."""
    dropout = study.settings.dropout or 0.5
    cases = [shape_case(shape, study) for shape in study.shapes] + hard_cases(study.device, study.dtype, dropout)
    rows, records = [], []
    missing: dict[str, str] = {}
    for case in tqdm(cases, unit="case", leave=False, disable=None):
        truths = reference(case.inputs)
        for path in study.settings.backends or PATHS:
            if path == "flex" and not study.settings.backends and case is not cases[0]:
                missing.setdefault(path, "compiled for the first case only, as it takes seconds; --backends=flex compiles it for each")
                continue
            try:
                computed, remark = compute(path, case, dropout)
            except Unavailable as lack:
                missing.setdefault(path, str(lack))
                records.append(Record("same function", case.name, path, "unavailable", str(lack)))
                continue
            row, numbers = judge(case, path, computed, truths)
            rows.append(row)
            records += numbers
            if remark:
                missing.setdefault(path, remark)
    if not rows:
        raise UserError(f"none of --backends is to be had here: {'; '.join(f'{path}: {why}' for path, why in missing.items())}")
    print("\n1. The same function: largest error against float64 (and as a share of the largest number)\n")
    print(table(("case", "path", *(tensor.replace("_", " ") for tensor in TENSORS), "of the bound", "verdict"), rows))
    print(
        f"""
of the bound    the largest error as a share of the most that rounding to {name(study.dtype)} can do there (engine/attention_error.py)
verdict         up to 100% of it, rounding explains all differences; above, the path computes something else"""
    )
    for path, why in missing.items():
        print(f"{path}: {'not everywhere' if path in [row[1] for row in rows] else 'unavailable'}: {why}")
    return records


def shape_case(shape: Shape, study: Study) -> Case:
    """The shape; of one with very many scores, some heads."""
    heads = max(1, SCORES // shape.T**2)
    checked = shape if heads >= shape.B * shape.H else shape._replace(B=1, H=min(heads, shape.H))
    return Case(str(checked), random_inputs(checked, study.device, study.dtype))


def compute(path: str, case: Case, dropout: float) -> tuple[list[torch.Tensor], str]:
    """Output and gradients of one path, and a remark where it has no gradients here. Raises Unavailable."""
    dropout = dropout if case.in_eval else 0.0
    try:
        return outcome(path, case.inputs, dropout, case.in_eval), ""
    except Unavailable as lack:
        if path != "flex":
            raise
        return outcome(path, case.inputs, dropout, case.in_eval, backward=False), str(lack)


def judge(case: Case, path: str, computed: list[torch.Tensor], truths: list[Truth]) -> tuple[list[str], list[Record]]:
    """A row of the first table, and its records."""
    documented, remark = True, ", forward only" if len(computed) == 1 else ""
    if case.empty_row is not None:  # the others are compared; where it is nan, so are all gradients
        others = [row for row in range(case.inputs.q.size(2)) if row != case.empty_row]
        empty, expected = computed[0][:, :, case.empty_row], "nan" if path == "manual" else "0"  # see manual_attention
        documented = bool((empty.isnan() if expected == "nan" else empty == 0).all())
        remark = f", that one gets {expected}, as documented" if documented else f", that one does NOT get {expected}"
        computed, truths = [computed[0][:, :, others]], [Truth(*(x[:, :, others] for x in truths[0]))]
    found = errors(computed, truths[: len(computed)])
    rounding = within(found)
    records = [
        Record("same function", case.name, path, f"{tensor} {measure}", value)
        for tensor, error in zip(TENSORS, found, strict=False)
        for measure, value in error._asdict().items()
    ]
    records.append(Record("same function", case.name, path, "within", rounding and documented))
    cells = [f"{error.absolute:.1e}" + ("" if math.isnan(error.relative) else f" ({error.relative:.0e})") for error in found]
    if rounding and any(error.relative > 0.1 for error in found):
        remark += ", which leaves hardly a digit here"
    verdict = ("rounding" if rounding else "DIFFERENT") + remark
    return [case.name, path, *cells, *["-"] * (4 - len(found)), f"{max(error.used for error in found):.1%}", verdict], records


# ------------------------------------------------------------------------------------------------------------------------
# 2. What each costs


def measure_costs(study: Study) -> tuple[Costs, dict[tuple[str, str], tuple[Shape, str]]]:
    """Of the shapes asked for, and of the last at smaller T; and why a path and way is not everywhere."""
    settings = study.settings
    paths = settings.backends or ["manual", "fused"]
    costs, missing = {}, {}
    for shape in tqdm(dict.fromkeys([*study.shapes[:-1], *growing(study.shapes[-1])]), unit="shape", leave=False, disable=None):
        found, lacking = cost_of(random_inputs(shape, study.device, study.dtype), paths, settings.rounds, settings.dropout)
        costs |= {(shape, *key): cost for key, cost in found.items()}
        for (path, way), why in lacking.items():
            missing.setdefault((path, way), (shape, why))
    return costs, missing


def short(number: float) -> str:
    """Three digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def growing(shape: Shape) -> list[Shape]:
    """The shape at T = 64, 128, 256, ... up to its own."""
    lengths = [64 * 2**i for i in range(20) if 64 * 2**i < shape.T]
    return [shape._replace(T=T, S=T) for T in [*lengths, shape.T]]


def show_costs(study: Study, costs: Costs, missing: dict[tuple[str, str], tuple[Shape, str]]) -> list[Record]:
    """The second table."""
    peak = gpu_peak(study.device) or matmul_rate(study.dtype, study.device, 1024, 256)
    rows, records = [], []
    for shape, path in dict.fromkeys(key[:2] for key in costs):
        mine = {way: costs[shape, path, way] for way in WAYS if (shape, path, way) in costs}
        times = {way: costs[shape, "manual", way].seconds / mine[way].seconds for way in mine if (shape, "manual", way) in costs}
        rates = {way: useful_flops(shape, way == "training") / cost.seconds for way, cost in mine.items()}
        matrix, rate = score_bytes(shape, study.dtype), list(rates.values())[-1]
        row = [str(shape), path, *(short(1e3 * mine[way].seconds) if way in mine else "-" for way in WAYS)]
        row += [f"{times[way]:.2f}" if way in times else "-" for way in WAYS]
        row += [short(list(mine.values())[-1].bytes / MIB), short(matrix / MIB), short(rate / 1e9), f"{rate / peak:.1%}"]
        rows.append(row)
        for way, cost in mine.items():
            numbers = {"seconds": cost.seconds, "x manual": times.get(way), "extra bytes": cost.bytes, "flops": rates[way]}
            records += [Record("cost", str(shape), path, f"{way} {measure}", value) for measure, value in numbers.items()]
        records.append(Record("cost", str(shape), path, "score matrix bytes", matrix))
    gpu = study.device.type == "cuda"
    print(f"\n2. What each costs: (rows, heads, tokens, channels of a head), causal; medians of {study.settings.rounds} turns\n")
    columns = (
        "forward, ms",
        "training, ms",
        "forward, x manual",
        "training, x manual",
        "extra MiB",
        "T x T, MiB",
        "GFLOP/s",
        "of the peak",
    )
    print(table(("shape", "path", *columns), rows))
    print(
        f"""
training       forward and backward, as are extra MiB and GFLOP/s
x manual       how many times as fast as the manual path
extra MiB      tensors held at most beyond the inputs: {"PyTorch's allocator keeps a mark" if gpu else "the profiler hears of each one"}
T x T, MiB     one matrix of B H T T scores, counted
GFLOP/s        of the operations that attention needs: 4 D for each pair that may attend, 12 D in training
of the peak    {peak / 1e9:,.0f} GFLOP/s, {"by the data sheet" if gpu_peak(study.device) else "of a matrix product measured here"}"""
    )
    if study.settings.dropout and not gpu:
        print("with dropout PyTorch has no fused kernel for a CPU: fused is math there")
    for (path, way), (shape, why) in missing.items():
        print(f"{path}, {way}: unavailable at {shape}: {why}")
        records.append(Record("cost", str(shape), path, f"{way} unavailable", why))
    return records


# ------------------------------------------------------------------------------------------------------------------------
# 3. In a model


def in_a_model(study: Study) -> tuple[list[Record], dict[str, list[float]]]:
    """The third table, and the loss of every training step by path."""
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:  # what train.py says and keeps
        recipe, attention = training_recipe(study)
        runs = {path: train.start(replace(recipe, attention=path, run=path, out_dir=folder)) for path in ("manual", "fused")}
        try:
            training = train_side_by_side(list(runs.values()), study.settings.steps)
        finally:
            for run in runs.values():
                train.close(run)
    run = runs["manual"]
    model = study.model or run.model
    batch = next(iter(run.loaders["val"].once())).to(study.device)
    opening = run.data.meta.get("opening", [run.data.tokenizer.boundary_id])
    manual, fused = (by_path(model, path, batch, opening, *numbers) for path, numbers in zip(runs, training, strict=True))
    what = f"the weights of {study.trained}" if study.trained else "config/names.py, as there is no run: its weights after these steps"
    print(f"\n3. In a model: {what}, in float32;")
    print(f"{study.settings.steps} steps of training from one seed, on {run.machine}, without dropout\n")
    rows, records = compare_models(manual, fused)
    print(table(("", "manual", "fused", "difference"), rows))
    print(f"\nFor this model train.py takes attention={attention} here. The losses part as rounding does: each step starts from the last.")
    return records, {"manual": manual.losses, "fused": fused.losses}


def training_recipe(study: Study) -> tuple[Settings, str]:
    """The settings by which both paths train: the run's, with all that train.py would decide decided once, and without dropout, whose
    random numbers differ by path. And the path that train.py would take."""
    asked = {option: getattr(study.settings, option) for option in ("device", "dtype", "threads", "compile")}
    without = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0, "ema": 0.0}
    alone = {"resume": False, "shard": False, "tensorboard": False, "wandb": False}
    recipe = replace(study.recipe, **asked, **without, **alone, attention="auto")
    config = study.model.config if study.model else recipe.model_config(vocab_size=27)  # of config/names.py
    machine = pick_machine(recipe, config, {})
    return replace(recipe, dtype=name(machine.dtype), threads=machine.threads, compile=machine.compile), machine.attention


def train_side_by_side(runs: list[train.Run], steps: int) -> list[tuple[list[float], list[float]]]:
    """Loss and seconds of every step of each run; they take turns."""
    told: list[tuple[list[float], list[float]]] = [([], []) for _ in runs]
    for step in tqdm(range(steps), unit="step", leave=False, disable=None):
        for run, (losses, seconds) in zip(runs, told, strict=True):
            torch.manual_seed(step)  # noise in the tokens: the same for both
            began = time.perf_counter()
            train.training_step(run)
            losses.append(train.read_numbers(run)["train_loss"])  # which waits for a GPU
            seconds.append(time.perf_counter() - began)
    return told


def compare_models(manual: InModel, fused: InModel) -> tuple[list[list[str]], list[Record]]:
    """The rows of the third table, and its records."""
    gap = gaps(manual, fused)
    ms = [1e3 * median(path.seconds) for path in (manual, fused)]
    faster = f"{'fused' if ms[1] < ms[0] else 'manual'} {max(ms) / min(ms):.2f} times as fast"
    rows = [
        ["loss on a validation batch", f"{manual.loss:.6f}", f"{fused.loss:.6f}", f"{abs(manual.loss - fused.loss):.1e}"],
        ["largest logit", *(f"{largest([path.logits]):.4f}" for path in (manual, fused)), f"up to {gap.logits:.1e}"],
        ["largest gradient", *(f"{largest(path.gradients):.4f}" for path in (manual, fused)), f"up to {gap.gradients:.1e}"],
        ["greedy texts", str(len(manual.texts)), str(len(fused.texts)), f"{gap.identical_texts} identical"],
        ["ms a training step (median)", *(f"{number:.2f}" for number in ms), faster],
    ]
    steps = len(gap.losses)
    for step in sorted({1, *(max(1, steps * i // 4) for i in range(1, 5))}):
        i = step - 1
        rows.append([f"training loss, step {step}", f"{manual.losses[i]:.4f}", f"{fused.losses[i]:.4f}", f"{gap.losses[i]:.1e}"])
    highest = max(gap.losses)
    rows.append(["largest gap of the training losses", "", "", f"{highest:.1e} at step {gap.losses.index(highest) + 1}"])
    numbers = {"logits": gap.logits, "gradients": gap.gradients, "identical greedy texts": gap.identical_texts, "training losses": highest}
    records = [Record("in a model", "difference", "fused", measure, value) for measure, value in numbers.items()]
    for path, found in (("manual", manual), ("fused", fused)):
        records += [Record("in a model", "weights", path, "loss", found.loss)]
        for i in range(steps):
            records.append(Record("in a model", f"step {i + 1}", path, "training loss", found.losses[i]))
            records.append(Record("in a model", f"step {i + 1}", path, "seconds", found.seconds[i]))
    return rows, records


# ------------------------------------------------------------------------------------------------------------------------
# What is left behind

REASONS = [  # and the code in model.py that is meant
    (
        "A score is a sum of D products, of variance D for standard normal numbers; divided by sqrt(D) it has variance 1, and the "
        "softmax does not settle on a single key before it has learned anything.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
    ),
    (
        "What may not be seen gets minus infinity before the softmax, so that the weights of the rest sum to 1; set to 0 after it, they "
        "would sum to less.",
        'scores.masked_fill(~mask, float("-inf"))',
    ),
    (
        "The softmax takes the largest score of each row off all of them first: no exponential overflows, however large the scores.",
        "weights = scores.softmax(dim=-1)",
    ),
    (
        "Scores, masked scores and weights are T x T matrices for each head, and the backward needs the weights again: they are written to "
        "memory and read back.",
        "return drop(weights, dropout) @ v, weights",
    ),
    (
        "The fused kernel takes some keys at a time and keeps, for each query, the largest score so far, the sum of exponentials and the "
        "sum of values, scaled down when a larger score turns up. No T x T matrix is kept; the backward works the scores out again.",
        "return F.scaled_dot_product_attention(",
    ),
    (
        "Its own causal mask counts from the first key. With a cache there are more keys than queries, and the last query is to see all "
        "of them: then the mask is given.",
        "is_causal = causal and T == S",
    ),
    ("A boolean mask says what may be seen: nn.Transformer's says the opposite.", "def causal_mask("),
    (
        "The fused kernel drops weights whenever it is told a share, in eval mode too: so it is told 0 there.",
        "dropout = dropout if self.training else 0.0",
    ),
]


def explanation() -> str:
    """The reasons, each with its line of model.py."""
    lines = (ROOT / "model.py").read_text(encoding="utf-8").splitlines()
    numbers = [next(number for number, line in enumerate(lines, start=1) if code in line) for _, code in REASONS]
    paragraphs = (
        textwrap.fill(reason, 100, initial_indent=f"model.py:{number}".ljust(14), subsequent_indent=" " * 14)
        for (reason, _), number in zip(REASONS, numbers, strict=True)
    )
    return "\n".join(paragraphs)


def write_csv(path: Path, records: list[Record]) -> None:
    """Every number, one a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Record._fields)
    writer.writerows(records)
    write_text(path, text.getvalue())


def draw(study: Study, costs: Costs, losses: dict[str, list[float]]) -> None:
    """The picture: time and memory by T, and the losses of training."""
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen
    from matplotlib.ticker import LogLocator

    shapes = growing(study.shapes[-1])
    figure = matplotlib.figure.Figure(figsize=(15, 4.8), layout="constrained")
    time_axes, memory_axes, loss_axes = figure.subplots(1, 3)
    paths = list(dict.fromkeys(path for _, path, _ in costs))
    for path, way in ((path, way) for path in paths for way in WAYS):
        points = [(shape.T, *costs[shape, path, way]) for shape in shapes if (shape, path, way) in costs]
        style = {"color": f"C{paths.index(path)}", "linestyle": ":" if way == "forward" else "-", "marker": "o", "markersize": 3}
        for axes, i, unit in ((time_axes, 1, 1e3), (memory_axes, 2, 1 / MIB)):
            if points:
                axes.plot([point[0] for point in points], [point[i] * unit for point in points], label=f"{path}, {way}", **style)
    lengths = [shape.T for shape in shapes]
    matrix = [score_bytes(shape, study.dtype) / MIB for shape in shapes]
    memory_axes.plot(lengths, matrix, "--", marker=".", color="0.5", label="one matrix of B H T T scores, counted")
    for axes, unit, title in ((time_axes, "time of a call (ms)", "Time"), (memory_axes, "extra memory (MiB)", "Memory")):
        axes.set(xscale="log", yscale="log", xlabel="T (tokens)", ylabel=unit, title=title)
        axes.set_xticks(lengths, [f"{T:,}" for T in lengths])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for number, (path, curve) in enumerate(losses.items()):
        style = {"linewidth": 3 - 2 * number, "alpha": 0.6 + 0.4 * number, "marker": "o" if len(curve) == 1 else None}
        loss_axes.plot(range(1, len(curve) + 1), curve, color=f"C{number}", label=path, **style)
    loss_axes.set(xlabel="training step", ylabel="loss (nats per token)", title="Training from one seed")
    loss_axes.grid(alpha=0.3)
    loss_axes.legend(fontsize=8)
    B, H, _, _, D = study.shapes[-1]
    figure.suptitle(f"Attention of {B} x {H} heads of {D} channels, {name(study.dtype)}, on {study.place}", fontsize=11)
    with replacing(study.picture) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


if __name__ == "__main__":
    run_program(main)
