"""Train a GPT, or a model of the zoo: settings -> data -> model -> loop -> run folder.

    python train.py config/names.py                          prepare the data, train, evaluate, print new names
    python train.py config/names.py --n_layer=6 --run=deep   any option overrides the config file
    python train.py config/names.py --resume                 go on where a stopped run left off
    python train.py config/text.py --source=mybook.txt       a text of your own
    torchrun --standalone --nproc_per_node=4 -- train.py config/names.py    four processes share every batch

Without a config it lists those there are.
"""

import copy
import importlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from tqdm import tqdm

from config.command_line import read_config, settings_for_training
from config.settings import Settings
from data.batches import Ahead, RowLoader, StreamLoader
from data.examples import ExampleLoader
from data.prepared import SPLITS, Prepared
from data.tokenizers import decode_documents
from engine import checkpoint
from engine.device import Machine, autocast, eager, peak_memory, pick_machine, set_up, try_to_compile
from engine.errors import Stopped, UserError, run_program
from engine.evaluation import amount, evaluate
from engine.files import append_text, write_text
from engine.logs import Log, check_packages, plot_loss, write_summary
from engine.optimizer import learning_rate_at, make_optimizers, set_learning_rate, update_average
from engine.parallel import World, join_world, leave_world, share, whole
from engine.signals import StopRequest
from engine.tasks import Task, task_of
from engine.writing import continuations, only_new, page
from zoo.ladder import LadderModel
from zoo.models import Config, Model, make

Loader = RowLoader | StreamLoader | ExampleLoader | Ahead


@dataclass
class Progress:
    """How far a run has come. Part of every checkpoint."""

    step: int = 0
    n_targets: int = 0  # tokens predicted so far
    seconds: float = 0.0  # spent in steps, evaluation left out
    best_loss: float = math.inf  # on the validation split
    best_step: int = 0
    no_better: int = 0  # evaluations since
    evaluated: int = 0  # step of the last evaluation
    wall_seconds: float = 0.0  # from the start of the program, of all its sessions


class Step(NamedTuple):
    """What is kept of a step until somebody looks: on a GPU, looking takes time."""

    number: int
    place: dict[str, int]  # in the data, after its last batch
    numbers: torch.Tensor  # (2,) loss, this process's share of it, and length of the gradient


@dataclass
class Run:
    """All that takes part in a training run."""

    settings: Settings
    folder: Path
    world: World  # the processes that share the work
    machine: Machine
    data: Prepared
    loaders: dict[str, Loader]  # by split
    task: Task | None  # what is told of a model that does not write texts
    model: Model
    average: Model | None  # of the weights over the steps, if there is to be one
    forward: Callable  # the model, or a compiled or distributed one with the same weights
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler  # lifts the gradients of float16 above its smallest number; does nothing for other types
    began: float  # what time.perf_counter() would have said had all sessions been one
    lock: FileLock | None = None
    progress: Progress = field(default_factory=Progress)
    log: Log | None = None
    saved: int = 0  # step of the last checkpoint
    unread: list[Step] = field(default_factory=list)  # steps since the last look at their numbers

    @property
    def best(self) -> Model:
        """The model that is evaluated, kept and sampled from."""
        return self.average or self.model


def main(arguments: list[str]) -> None:
    train(settings_for_training(arguments, __doc__))


def train(settings: Settings, first_of_two: bool = False) -> None:
    """One run, from beginning to end. first_of_two: another will start from it, in the same world."""
    run = start(settings)
    try:
        loop(run)
        finish(run)
    finally:
        close(run)
        if not first_of_two:
            leave_world()


def start(settings: Settings) -> Run:
    """Prepare the data, build the model, and make the run folder or take up the one to resume."""
    if settings.run is not None and not re.fullmatch(r"\w[\w .-]*", settings.run):
        raise UserError(
            f"run={settings.run!r} must be a plain name of letters, digits, blanks, . - and _; --out_dir chooses the folder it stands in"
        )
    settings.check_data_options()
    check_packages(settings)
    beginning = trained_before(settings) if settings.start_from and not settings.resume else None
    began = time.perf_counter()
    settings.model_config(vocab_size=1)  # a shape that cannot work is said before the data are prepared
    if settings.shard and settings.model != "gpt":
        raise UserError(f"--shard is for model=gpt; model={settings.model} fits anywhere")
    world = join_world()
    with world.one_first():
        data: Prepared = importlib.import_module(f"data.{settings.dataset}.prepare").prepare(settings)
    config = model_config(settings, data)
    task = task_of(data.meta["kind"], settings.model)
    folder = Path(settings.out_dir) / (settings.run or settings.dataset)
    if settings.resume:
        checkpoint.check_resume(folder, settings, data.meta)
    before = checkpoint.ran_before(folder) if settings.resume else {}
    machine = set_up(world.of_first(lambda: pick_machine(settings, config, before)), world)
    loaders = {split: make_loader(split, data, settings, machine, world) for split in SPLITS}

    torch.manual_seed(settings.seed)
    model = make(config).to(machine.device)
    model.config.attention = machine.attention
    progress = Progress()
    if counting := isinstance(model, LadderModel) and model.counts:
        if settings.resume:
            raise UserError(f"--resume: model={settings.model} has counted all there is, and has nothing to go on with; leave it out")
        progress = count(model, data.tokens["train"], machine.device)
    if beginning:
        if data.tokenizer:
            checkpoint.check_tokens(beginning, data.folder)
        print(f"starting from {beginning}: {checkpoint.load_weights_that_fit(beginning, model)}")
    average = copy.deepcopy(model).requires_grad_(False) if settings.ema else None
    print(f"model: {model.num_parameters():,} parameters, on {machine}{f', {world.size} processes' if world.size > 1 else ''}")
    if settings.shard and world.size == 1:
        machine.notes.append("shard: there is one process, which holds all of the model; torchrun would start several")
    if average and settings.shard:
        share(average, world, machine.device, shard=True)
    forward = model if counting else share(model, world, machine.device, settings.shard)
    forward = try_to_compile(forward, model, machine, loaders["train"], world)
    if unused := settings.without_meaning():
        machine.notes.append(f"model={settings.model} has no {', '.join(unused)}: left out")
    for note in machine.notes:
        print(f"note: {note}")
    optimizers = [] if counting else make_optimizers(model, settings, machine.dtype)
    scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
    if world.rank:
        torch.manual_seed(settings.seed + world.rank)  # for its dropout
    run = Run(settings, folder, world, machine, data, loaders, task, model, average, forward, optimizers, scaler, began, progress=progress)
    open_folder(run)
    return run


def count(model: LadderModel, tokens: np.ndarray, device: torch.device) -> Progress:
    """Let a model learn by counting the training split, all there is to do. Returns how far it has come."""
    began = time.perf_counter()
    model.count(torch.from_numpy(tokens.astype(np.int64)).to(device))
    return Progress(n_targets=len(tokens) - 1, seconds=time.perf_counter() - began)


def model_config(settings: Settings, data: Prepared) -> Config:
    """The model's shape, as settings and data have it."""
    return settings.model_config(data.tokenizer.vocab_size if data.tokenizer else 1, data.meta.get("shape"))


def trained_before(settings: Settings) -> Path:
    """The folder of the run to start from. If a config is named whose run is not there, it is trained first."""
    if not settings.start_from.endswith(".py"):
        return checkpoint.find_run(settings.start_from, settings.out_dir, "start_from")
    first = replace(read_config(Path(settings.start_from)), out_dir=settings.out_dir, device=settings.device)
    if first.start_from:
        raise UserError(
            f"start_from={settings.start_from} starts from {first.start_from} itself: train it first, and name its run, "
            f"--start_from={first.run}"
        )
    folder = Path(first.out_dir) / first.run
    if not (folder / "summary.json").exists():  # which is the last thing that a run writes
        join_world()  # of several processes one is to say so
        print(f"first {settings.start_from}, to start from:")
        train(first, first_of_two=True)
        print()
    return folder


def make_loader(split: str, data: Prepared, settings: Settings, machine: Machine, world: World) -> Loader:
    """The batches of one split."""
    part = (world.rank, world.size) if split == "train" else (0, 1)
    if task := task_of(data.meta["kind"], settings.model):
        lengths, make = task.examples(split, data, settings)
        loader = ExampleLoader(lengths, make, settings.batch_size, settings.seed, part)
        return Ahead(loader) if split == "train" and machine.device.type == "cuda" else loader
    tokens = data.tokens[split]
    if data.meta["kind"] == "stream":
        block_size = settings.block_size if split == "train" else min(settings.block_size, len(tokens) - 1)
        loader = StreamLoader(tokens, block_size, settings.batch_size, settings.seed, part)
    else:
        one_shape = machine.compile and split == "train"
        loader = RowLoader(tokens, data.tokenizer.boundary_id, settings.block_size, settings.batch_size, settings.seed, one_shape, part)
        rows = len(loader.batches[0])
        if split == "train" and len(loader.batches) == 1 and rows < settings.batch_size:
            print(f"note: the whole training split is one batch of {rows} rows, fewer than batch_size={settings.batch_size}")
    return Ahead(loader) if split == "train" and machine.device.type == "cuda" else loader


def open_folder(run: Run) -> None:
    """Make the run folder, or bring the run to where the last checkpoint in it left off."""
    run.world.of_first(lambda: take_folder(run))
    if run.settings.resume:
        load_state(run)
        print(f"resume: {run.folder} at step {run.progress.step}")
    run.world.of_first(lambda: describe_run(run))
    run.began -= run.progress.wall_seconds


def take_folder(run: Run) -> None:
    """The first process alone writes: it makes the folder, or takes the one there is."""
    run.lock = checkpoint.lock(run.folder) if run.settings.resume else checkpoint.make_run_folder(run.folder)
    checkpoint.remove_leftovers(run.folder)


def describe_run(run: Run) -> None:
    """What later programs need besides the weights; and the log is opened."""
    if run.data.tokenizer:
        run.data.tokenizer.save(run.folder / "tokenizer.json")
    if run.data.meta["kind"] == "rows":
        write_text(run.folder / "seen.txt", "\n".join(decode_documents(run.data.tokens["train"], run.data.tokenizer)) + "\n")
    ran = {**run.machine.decided(), "processes": run.world.size}
    config = model_config(run.settings, run.data)
    checkpoint.save_settings(run.folder, run.settings, config, run.data.meta, ran, run.progress.step)
    run.log = Log(run.folder, run.progress.step, run.settings)


def close(run: Run) -> None:
    """Let go of what other processes wait for."""
    if run.log:
        run.log.close()
    if run.lock:
        run.lock.release()


def loop(run: Run) -> None:
    """Train to max_steps, or until the validation loss has not improved for `patience` evaluations.

    Raises Stopped after Ctrl-C or SIGTERM, with everything saved.
    """
    settings, progress = run.settings, run.progress
    silent = True if run.world.rank else None  # None: where there is no terminal
    steps = settings.max_steps if run.optimizers else 0  # a model that counts has learned already
    bar = tqdm(total=steps, initial=progress.step, unit="step", dynamic_ncols=True, disable=silent)
    since = (progress.n_targets, progress.seconds)  # of the last row of the log
    with StopRequest() as stop, bar:
        while progress.step < steps and not (settings.patience and progress.no_better >= settings.patience):
            began = time.perf_counter()
            row = training_step(run)
            stopping = run.world.highest(stop.signum or 0)  # a signal may reach one process a step before another
            evaluating = progress.step % settings.eval_interval == 0 or progress.step == settings.max_steps
            logging = evaluating or progress.step % settings.log_interval == 0 or progress.step == 1
            if logging or stopping:
                row |= read_numbers(run)  # on a GPU, the only wait for it
            progress.seconds += time.perf_counter() - began
            if logging:
                speed = (progress.n_targets - since[0]) / (progress.seconds - since[1])
                since = (progress.n_targets, progress.seconds)
                row |= {"tokens_per_second": round(speed, 1), "mfu": round(utilization(run, speed), 4)}
                bar.set_postfix_str(f"loss {row['train_loss']:.3f}, {speed:,.0f} tokens/s, MFU {row['mfu']:.1%}")
            if evaluating:
                row["val_loss"] = evaluate_and_save(run)
            if run.log and logging:
                run.log.add(**row)
            if stopping and progress.best_step == 0:
                save_weights(run)  # not evaluated yet, but better than none
            if evaluating or stopping:
                save_state(run)
            bar.update(1)
            if stopping:
                bar.write(f"stopped at step {progress.step}; to go on, give the same command with --resume")
                raise Stopped(stopping)
        if progress.evaluated < progress.step or not run.optimizers:  # resumed with a max_steps that lay behind it, or counted
            row = {"step": progress.step, "epoch": run.loaders["train"].epoch, "val_loss": evaluate_and_save(run)}
            if run.log:
                run.log.add(**row)
            save_state(run)


def training_step(run: Run) -> dict[str, float]:
    """One update of the weights, from grad_accum batches. Returns the row for the log, less what `read_numbers` adds."""
    settings, progress, machine = run.settings, run.progress, run.machine
    run.model.train()
    learning_rate = learning_rate_at(progress.step, settings)
    set_learning_rate(run.optimizers, learning_rate)
    batches = [next(run.loaders["train"]) for _ in range(settings.grad_accum)]
    n_targets = sum(batch.n_all for batch in batches)
    step_loss = torch.zeros((), device=machine.device)  # mean over all targets of the step, this process's share of it
    for batch in batches:
        batch = batch.to(machine.device)
        if run.task is None:
            batch = batch.with_noise(settings.token_noise, run.model.config.vocab_size)
        with autocast(machine.device, machine.dtype):
            _, loss = run.forward(*batch.inputs)
        loss = loss * (batch.n_targets / n_targets)  # so that the gradients add up to that of one large batch
        run.scaler.scale(loss * run.world.size).backward()  # the processes' gradients are averaged, not added
        step_loss += loss.detach()
    for optimizer in run.optimizers:
        run.scaler.unscale_(optimizer)
    grad_norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.grad_clip or math.inf)
    for optimizer in run.optimizers:
        run.scaler.step(optimizer)
        optimizer.zero_grad()
    run.scaler.update()
    if run.average:
        update_average(run.average, run.model, settings.ema, progress.step)
    progress.step += 1
    progress.n_targets += n_targets
    run.unread.append(Step(progress.step, run.loaders["train"].state_dict(), torch.stack((step_loss, whole(grad_norm)))))
    return {"step": progress.step, "epoch": run.loaders["train"].epoch, "learning_rate": learning_rate}


def read_numbers(run: Run) -> dict[str, float]:
    """Loss and gradient of the last step, for the log. Raises UserError for the first step since the last look that has one which
    is no number any more: every later one is broken, and none of them was saved."""
    numbers = torch.stack([step.numbers for step in run.unread])  # (steps, 2)
    losses = numbers[:, 0].contiguous()
    run.world.add_up(losses)
    for step, loss, norm in zip(run.unread, losses.tolist(), numbers[:, 1].tolist(), strict=True):
        of_epoch = f" of epoch {step.place['epoch']}" if "epoch" in step.place else ""
        place = f"step {step.number}, on batch {step.place['batch']}{of_epoch}"
        check_finite(run, loss, f"loss is {loss} at {place}")
        if not run.scaler.is_enabled():  # which leaves out such steps
            check_finite(run, norm, f"gradient has length {norm} at {place}")
    run.unread.clear()
    return {"train_loss": loss, "grad_norm": norm}


def check_finite(run: Run, number: float, sentence: str) -> None:
    """Raise UserError, with the sentence, for one that is no number any more."""
    if not math.isfinite(number):
        kept = f"; the checkpoint of step {run.saved} is kept" if run.saved else ""
        raise UserError(f"the {sentence}: a lower --learning_rate would help{kept}")


def utilization(run: Run, tokens_per_second: float) -> float:
    """MFU: the share of the machine's fastest matrix products that so many tokens a second take (Chowdhery et al. 2022)."""
    return tokens_per_second * run.model.flops_per_token() / (run.machine.peak * run.world.size)


def evaluate_and_save(run: Run) -> float:
    """The loss on the whole validation split; the weights are kept if it is the best so far. Shows and stores a few samples."""
    progress = run.progress
    loss = evaluate_split(run, "val")
    check_finite(run, loss, f"validation loss is {loss} at step {progress.step}")
    progress.evaluated = progress.step
    if loss < progress.best_loss:
        progress.best_loss, progress.best_step, progress.no_better = loss, progress.step, 0
        save_weights(run)
    else:
        progress.no_better += 1
    if samples := short_samples(run):
        append_text(run.folder / "samples.txt", f"step {progress.step}, validation loss {loss:.4f}\n" + "\n".join(samples) + "\n\n")
        best = "*" if progress.no_better == 0 else " "
        shown = " ".join(" ".join(samples).split())  # on one line
        tqdm.write(f"step {progress.step:>6}  validation loss {loss:.4f}{best}  {shown[:60]}")
    return loss


def evaluate_split(run: Run, split: str) -> float:
    """The loss of the best weights so far on one split. Sharded processes go through it together, others share it out."""
    world = World() if run.settings.shard else run.world
    with eager():
        loss = evaluate(run.best, run.loaders[split].once(run.settings.eval_tokens), run.machine.device, run.machine.dtype, world)
    return run.world.of_first(lambda: loss)  # to the last bit the same for all: it decides what they do next


def short_samples(run: Run) -> list[str]:
    """A few names, or the beginning of a text: enough to see how the model is doing. None in processes that do not write."""
    if run.task:
        return [] if run.world.rank else run.task.samples(run.best, run.data, run.settings, 5)
    count, settings = 5, run.settings
    if run.data.meta["kind"] == "stream":
        count, settings = 1, replace(settings, max_new_tokens=min(settings.block_size, 200))
    return sampled(run, replace(settings, num_samples=count))


def sampled(run: Run, settings: Settings) -> list[str]:
    """num_samples texts, in the first process."""
    texts = continuations(run.best, run.data.tokenizer, settings, run.data.meta["opening"])
    if run.world.rank and not run.settings.shard:
        return []
    with eager():
        made = list(islice(texts, settings.num_samples))  # sharded: together, as each holds a part of the model
    return [] if run.world.rank else made


def save_weights(run: Run) -> None:
    """model.safetensors, from the model that is evaluated."""
    weights = whole(run.best.state_dict())
    if run.world.rank == 0:
        checkpoint.save_weights(run.folder, weights, run.model.config)


def save_state(run: Run) -> None:
    """All that an exact resume needs."""
    run.progress.wall_seconds = time.perf_counter() - run.began
    state = {
        "model": whole(run.model.state_dict()),
        "average": whole(run.average.state_dict()) if run.average else None,
        "optimizer": checkpoint.optimizer_state(run.optimizers, run.model),
        "scaler": run.scaler.state_dict(),
        "loader": run.loaders["train"].state_dict(),
        "random": run.world.gathered(checkpoint.random_state(run.machine.device)),
        "progress": asdict(run.progress),
    }
    if run.world.rank == 0:
        checkpoint.save_state(run.folder, {**state, "samples_size": (run.folder / "samples.txt").stat().st_size})
    run.saved = run.progress.step


def load_state(run: Run) -> None:
    """Bring everything to where `save_state` found it; a run stopped before its first checkpoint begins again."""
    state = checkpoint.load_state(run.folder)
    samples = run.folder / "samples.txt"
    if state is None:
        print(f"note: {run.folder} has no checkpoint yet")
        return checkpoint.cut_back(samples, 0)
    try:
        if state["version"] == 1:
            state = checkpoint.from_version_1(state, run.model)
        checkpoint.fill(run.model, state["model"])
        if run.average:
            checkpoint.fill(run.average, state["average"])
        checkpoint.set_optimizer_state(run.optimizers, run.model, state["optimizer"])
        run.scaler.load_state_dict(state["scaler"])
        run.loaders["train"].load_state_dict(state["loader"])
        run.progress = Progress(**state["progress"])
        run.saved = run.progress.step
        if any(type(value) is not type(default) for value, default in zip(astuple(run.progress), astuple(Progress()), strict=True)):
            raise ValueError("its progress is no numbers")
        if len(state["random"]) == run.world.size:
            checkpoint.set_random_state(state["random"][run.world.rank], run.machine.device)
        else:
            torch.manual_seed(hash((run.settings.seed, run.progress.step, run.world.rank)))  # as many new ones as there are processes
        if run.world.rank == 0:
            checkpoint.cut_back(samples, state["samples_size"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        place = run.folder / checkpoint.STATE
        raise UserError(f"{place} is no state of this run ({str(error)[:80]}); start anew without --resume") from None


def finish(run: Run) -> None:
    """Measure the best weights on every split, write the summary, show new documents or a page of text."""
    run.world.gathered(None)  # the weights are written
    checkpoint.load_weights(run.folder, run.best)
    summary = summarise(run)
    if run.world.rank == 0:
        if run.task:
            summary["measured"] = {split: run.task.measure(run.best, run.data, split) for split in ("val", "test")}
        write_summary(run.folder, summary)
        plot_loss(run.folder, run.log.rows, run.progress.best_step)
    print_summary(summary)
    if "measured" in summary:
        print(f"\n{run.task.report(summary['measured'])}\n")
    print(f"everything is in {run.folder}")
    if run.task is None:
        print_samples(run)


def summarise(run: Run) -> dict[str, Any]:
    """How good the run got, on each split, and how fast."""
    progress = run.progress
    losses = {split: evaluate_split(run, split) for split in run.loaders}
    return {
        "steps": progress.step,
        "best_step": progress.best_step,
        "loss": losses,
        "perplexity": {split: math.exp(loss) if loss < 700 else math.inf for split, loss in losses.items()},  # exp(710) is no float
        **({} if run.task else of_text(run, losses)),
        "parameters": run.model.num_parameters(),
        "tokens_per_second": (speed := progress.n_targets / progress.seconds),
        "mfu": utilization(run, speed),
        "peak_memory_bytes": peak_memory(run.machine.device),
        "training_seconds": progress.seconds,
        "wall_seconds": time.perf_counter() - run.began,
    }


def of_text(run: Run, losses: dict[str, float]) -> dict[str, Any]:
    """What these losses are for each bit of the text, by split."""
    amounts = {split: amount(loader.once(run.settings.eval_tokens), run.data.tokenizer) for split, loader in run.loaders.items()}
    if run.data.meta["kind"] == "rows":  # a character a token, the boundary counted as one
        bits = {"bits_per_character": {split: loss / math.log(2) for split, loss in losses.items()}}
    else:
        bits = {"bits_per_byte": {split: amounts[split].bits_per_byte(loss) for split, loss in losses.items()}}
    return {
        **bits,
        "tokens_per_byte": {split: found.tokens / found.bytes if found.bytes else None for split, found in amounts.items()},
        "unknown": {split: found.unknown / found.tokens for split, found in amounts.items()},
    }


def print_summary(summary: dict[str, Any]) -> None:
    """The summary as a table."""
    unit = next((name for name in ("bits_per_byte", "bits_per_character") if name in summary), None)
    columns = {"loss": (8, ".4f"), **({unit: (16, ".4f")} if unit else {}), "perplexity": (12, ".3f")}  # width, and form of a number
    print(f"\n{'':12}" + "".join(f"{name.replace('_per_', '/'):>{width}}" for name, (width, _) in columns.items()))
    for split, name in {"train": "training", "val": "validation", "test": "test"}.items():
        cells = ((summary[column][split], width, form) for column, (width, form) in columns.items())
        print(f"{name:12}" + "".join(f"{'undefined' if n is None else format(n, form):>{width}}" for n, width, form in cells))
    if unit and None in summary[unit].values():
        shares = " / ".join(f"{share:.2%}" for share in summary["unknown"].values())
        print(f"{shares} of the tokens are unknown: the loss says nothing of their text, so there are no bits per byte")
    print(
        f"{summary['steps']:,} steps in {summary['wall_seconds']:.0f} s, {summary['tokens_per_second']:,.0f} tokens/s "
        f"(MFU {summary['mfu']:.0%}), {summary['peak_memory_bytes'] / 2**20:,.0f} MiB; best weights from step {summary['best_step']:,}"
    )


def print_samples(run: Run) -> None:
    """New names, in no part of the list; or pages of text."""
    if run.data.meta["kind"] == "stream":
        for text in sampled(run, run.settings):
            print(f"\n{page(text)}")
        return
    if run.world.rank and not run.settings.shard:
        return
    texts = continuations(run.best, run.data.tokenizer, run.settings, run.data.meta["opening"])
    known = {"", *(document for tokens in run.data.tokens.values() for document in decode_documents(tokens, run.data.tokenizer))}
    with eager():
        new, drawn = only_new(texts, known, run.settings.num_samples)
    print(f"\n{len(new)} new {run.settings.dataset}, in no part of the list ({drawn} drawn):")
    print("\n".join(f"  {text}" for text in new))


if __name__ == "__main__":
    run_program(main)
