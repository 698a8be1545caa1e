"""Train a GPT: settings -> data -> model -> loop -> run folder.

    python train.py config/names.py                          prepare the data, train, evaluate, print new names
    python train.py config/names.py --n_layer=6 --run=deep   any option overrides the config file
    python train.py config/names.py --resume                 go on where a stopped run left off
    python train.py config/text.py --source=mybook.txt       a text of your own

Without a config it lists those there are.
"""

import importlib
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from config.command_line import settings_for_training
from config.settings import Settings
from data.batches import RowLoader, StreamLoader
from data.prepared import Prepared
from data.tokenizers import decode_documents
from engine import checkpoint
from engine.device import autocast, pick_device, pick_dtype
from engine.errors import Stopped, UserError, run_program
from engine.evaluation import amount, evaluate
from engine.files import write_text
from engine.generation import continuations, only_new, page
from engine.logs import Log, plot_loss, write_summary
from engine.optimizer import learning_rate_at, make_optimizers, set_learning_rate
from engine.signals import StopRequest
from model import GPT


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


@dataclass
class Run:
    """All that takes part in a training run."""

    settings: Settings
    folder: Path
    data: Prepared
    loaders: dict[str, RowLoader | StreamLoader]  # by split
    device: torch.device
    dtype: torch.dtype
    model: GPT
    forward: Callable  # the model, or the compiled one with the same weights
    optimizers: list[torch.optim.Optimizer]
    progress: Progress
    log: Log
    began: float  # what time.perf_counter() would have said had all sessions been one


def main(arguments: list[str]) -> None:
    run = start(settings_for_training(arguments, __doc__))
    loop(run)
    finish(run)


def start(settings: Settings) -> Run:
    """Prepare the data, build the model, and make the run folder or take up the one to resume."""
    began = time.perf_counter()
    if settings.run is not None and not re.fullmatch(r"\w[\w .-]*", settings.run):
        raise UserError(
            f"run={settings.run!r} must be a plain name of letters, digits, blanks, . - and _; --out_dir chooses the folder it stands in"
        )
    device = pick_device(settings.device)
    dtype = pick_dtype(settings.dtype, device)
    settings.check_data_options()
    settings.model_config(vocab_size=1)  # a shape that cannot work is said before the data are prepared
    data: Prepared = importlib.import_module(f"data.{settings.dataset}.prepare").prepare(settings)
    loaders = {split: make_loader(split, data, settings) for split in data.tokens}

    torch.manual_seed(settings.seed)
    model = GPT(settings.model_config(data.tokenizer.vocab_size)).to(device)
    optimizers = make_optimizers(model, settings)
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"model: {model.num_parameters():,} parameters, on {device} in {str(dtype).removeprefix('torch.')}{threads}")

    folder = Path(settings.out_dir) / (settings.run or settings.dataset)
    progress = Progress()
    if settings.resume:
        checkpoint.check_resume(folder, settings, data.meta)
        progress = load_state(folder, model, optimizers, loaders["train"])
        checkpoint.remove_leftovers(folder)
        print(f"resume: {folder} at step {progress.step}")
    else:
        checkpoint.make_run_folder(folder)
    data.tokenizer.save(folder / "tokenizer.json")
    if data.meta["kind"] == "rows":
        write_text(folder / "seen.txt", "\n".join(decode_documents(data.tokens["train"], data.tokenizer)) + "\n")
    checkpoint.save_settings(folder, settings, model.config, data.meta)
    log = Log(folder, up_to_step=progress.step)
    forward = torch.compile(model) if settings.compile else model
    return Run(settings, folder, data, loaders, device, dtype, model, forward, optimizers, progress, log, began - progress.wall_seconds)


def make_loader(split: str, data: Prepared, settings: Settings) -> RowLoader | StreamLoader:
    """The batches of one split."""
    tokens = data.tokens[split]
    if data.meta["kind"] == "stream":
        block_size = settings.block_size if split == "train" else min(settings.block_size, len(tokens) - 1)
        return StreamLoader(tokens, block_size, settings.batch_size, settings.seed)
    loader = RowLoader(tokens, data.tokenizer.boundary_id, settings.block_size, settings.batch_size, settings.seed)
    rows = len(loader.batches[0])
    if split == "train" and len(loader.batches) == 1 and rows < settings.batch_size:
        print(f"note: the whole training split is one batch of {rows} rows, fewer than batch_size={settings.batch_size}")
    return loader


def loop(run: Run) -> None:
    """Train to max_steps, or until the validation loss has not improved for `patience` evaluations.

    Raises Stopped after Ctrl-C or SIGTERM, with everything saved.
    """
    settings, progress = run.settings, run.progress
    bar = tqdm(total=settings.max_steps, initial=progress.step, unit="step", dynamic_ncols=True, disable=None)
    with StopRequest() as stop, bar:
        while progress.step < settings.max_steps and not (settings.patience and progress.no_better >= settings.patience):
            began = time.perf_counter()
            row = training_step(run)
            evaluating = progress.step % settings.eval_interval == 0 or progress.step == settings.max_steps
            logging = evaluating or progress.step % settings.log_interval == 0 or progress.step == 1
            if logging:
                row["train_loss"] = finite(row["train_loss"], "loss", progress)  # on a GPU, the only wait for it
                row["grad_norm"] = float(row["grad_norm"])
            progress.seconds += time.perf_counter() - began
            if evaluating:
                row["val_loss"] = evaluate_and_save(run)
            if logging:
                run.log.add(**row)
                bar.set_postfix_str(f"loss {row['train_loss']:.3f}, {progress.n_targets / progress.seconds:,.0f} tokens/s")
            if evaluating:
                save_state(run)
            bar.update(1)
            if stop.signum is not None:
                if progress.best_step == 0:
                    checkpoint.save_weights(run.folder, run.model)  # not evaluated yet, but better than none
                save_state(run)
                bar.write(f"stopped at step {progress.step}; to go on, give the same command with --resume")
                raise Stopped(stop.signum)
        if progress.evaluated < progress.step:  # resumed with a max_steps that lay behind it
            run.log.add(step=progress.step, epoch=run.loaders["train"].epoch, val_loss=evaluate_and_save(run))
            save_state(run)


def training_step(run: Run) -> dict[str, float | torch.Tensor]:
    """One update of the weights, from grad_accum batches. Returns the row for the log."""
    settings, progress = run.settings, run.progress
    run.model.train()
    learning_rate = learning_rate_at(progress.step, settings)
    set_learning_rate(run.optimizers, learning_rate)
    batches = [next(run.loaders["train"]) for _ in range(settings.grad_accum)]
    n_targets = sum(batch.n_targets for batch in batches)
    step_loss = torch.zeros((), device=run.device)  # mean over all targets of the step
    for batch in batches:
        batch = batch.to(run.device)
        with autocast(run.device, run.dtype):
            _, loss = run.forward(batch.idx, batch.targets, batch.positions)
        loss = loss * (batch.n_targets / n_targets)  # so that the gradients add up to that of one large batch
        loss.backward()
        step_loss += loss.detach()
    grad_norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.grad_clip or math.inf)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    progress.step += 1
    progress.n_targets += n_targets
    return {
        "step": progress.step,
        "epoch": run.loaders["train"].epoch,
        "train_loss": step_loss,
        "learning_rate": learning_rate,
        "grad_norm": grad_norm,
    }


def evaluate_and_save(run: Run) -> float:
    """The loss on the whole validation split; the weights are kept if it is the best so far. Shows and stores a few samples."""
    progress = run.progress
    batches = run.loaders["val"].once(run.settings.eval_tokens)
    loss = finite(evaluate(run.model, batches, run.device, run.dtype), "validation loss", progress)
    progress.evaluated = progress.step
    if loss < progress.best_loss:
        progress.best_loss, progress.best_step, progress.no_better = loss, progress.step, 0
        checkpoint.save_weights(run.folder, run.model)
    else:
        progress.no_better += 1
    samples = short_samples(run)
    with open(run.folder / "samples.txt", "a", encoding="utf-8", newline="\n") as file:
        file.write(f"step {progress.step}, validation loss {loss:.4f}\n" + "\n".join(samples) + "\n\n")
    best = "*" if progress.no_better == 0 else " "
    shown = " ".join(" ".join(samples).split())  # on one line
    tqdm.write(f"step {progress.step:>6}  validation loss {loss:.4f}{best}  {shown[:60]}")
    return loss


def short_samples(run: Run) -> list[str]:
    """A few names, or the beginning of a text: enough to see how the model is doing."""
    count, settings = 5, run.settings
    if run.data.meta["kind"] == "stream":
        count, settings = 1, replace(settings, max_new_tokens=min(settings.block_size, 200))
    texts = continuations(run.model, run.data.tokenizer, replace(settings, num_samples=count), run.data.meta["opening"])
    return list(islice(texts, count))


def finite(loss: float | torch.Tensor, name: str, progress: Progress) -> float:
    """The loss as a number. Raises UserError for one that is no number any more."""
    loss = float(loss)
    if not math.isfinite(loss):
        kept = f"; the checkpoint of step {progress.evaluated} is kept" if progress.evaluated else ""
        raise UserError(f"the {name} is {loss} at step {progress.step}: a lower --learning_rate would help{kept}")
    return loss


def save_state(run: Run) -> None:
    """All that an exact resume needs."""
    run.progress.wall_seconds = time.perf_counter() - run.began
    state = {
        "model": run.model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "loader": run.loaders["train"].state_dict(),
        "random": checkpoint.random_state(),
        "progress": asdict(run.progress),
        "samples_size": (run.folder / "samples.txt").stat().st_size,
    }
    checkpoint.save_state(run.folder, state)


def load_state(folder: Path, model: GPT, optimizers: list[torch.optim.Optimizer], loader: RowLoader | StreamLoader) -> Progress:
    """Bring everything to where `save_state` found it; returns the progress."""
    state = checkpoint.load_state(folder)
    try:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        loader.load_state_dict(state["loader"])
        checkpoint.set_random_state(state["random"])
        samples = folder / "samples.txt"
        os.truncate(samples, min(state["samples_size"], samples.stat().st_size))  # what came after the checkpoint comes again
        return Progress(**state["progress"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(f"{folder / checkpoint.STATE} is no state of this run ({str(error)[:80]}); start anew without --resume") from None


def finish(run: Run) -> None:
    """Measure the best weights on every split, write the summary, show new documents or a page of text."""
    checkpoint.load_weights(run.folder, run.model)
    summary = summarise(run)
    write_summary(run.folder, summary)
    plot_loss(run.folder, run.log.rows, run.progress.best_step)
    print_summary(summary)
    print(f"everything is in {run.folder}")
    print_samples(run)


def summarise(run: Run) -> dict[str, Any]:
    """How good the run got, on each split, and how fast."""
    progress, limit = run.progress, run.settings.eval_tokens
    losses = {split: evaluate(run.model, loader.once(limit), run.device, run.dtype) for split, loader in run.loaders.items()}
    amounts = {split: amount(loader.once(limit), run.data.tokenizer) for split, loader in run.loaders.items()}
    if run.data.meta["kind"] == "rows":  # a character a token, the boundary counted as one
        bits = {"bits_per_character": {split: loss / math.log(2) for split, loss in losses.items()}}
    else:
        bits = {"bits_per_byte": {split: amounts[split].bits_per_byte(loss) for split, loss in losses.items()}}
    return {
        "steps": progress.step,
        "best_step": progress.best_step,
        "loss": losses,
        **bits,
        "perplexity": {split: math.exp(loss) if loss < 700 else math.inf for split, loss in losses.items()},  # exp(710) is no float
        "tokens_per_byte": {split: found.tokens / found.bytes if found.bytes else None for split, found in amounts.items()},
        "unknown": {split: found.unknown / found.tokens for split, found in amounts.items()},
        "parameters": run.model.num_parameters(),
        "tokens_per_second": progress.n_targets / progress.seconds,
        "training_seconds": progress.seconds,
        "wall_seconds": time.perf_counter() - run.began,
    }


def print_summary(summary: dict[str, Any]) -> None:
    """The summary as a table."""
    unit = "bits_per_byte" if "bits_per_byte" in summary else "bits_per_character"
    print(f"\n{'':12}{'loss':>8}{unit.replace('_per_', '/'):>16}{'perplexity':>12}")
    for split, name in {"train": "training", "val": "validation", "test": "test"}.items():
        bits = summary[unit][split]
        shown_bits = "undefined" if bits is None else f"{bits:.4f}"
        print(f"{name:12}{summary['loss'][split]:8.4f}{shown_bits:>16}{summary['perplexity'][split]:12.3f}")
    if None in summary[unit].values():
        shares = " / ".join(f"{share:.2%}" for share in summary["unknown"].values())
        print(f"{shares} of the tokens are unknown: the loss says nothing of their text, so there are no bits per byte")
    print(
        f"{summary['steps']:,} steps in {summary['wall_seconds']:.0f} s, {summary['tokens_per_second']:,.0f} tokens/s; "
        f"best weights from step {summary['best_step']:,}"
    )


def print_samples(run: Run) -> None:
    """New names, in no part of the list; or pages of text."""
    texts = continuations(run.model, run.data.tokenizer, run.settings, run.data.meta["opening"])
    if run.data.meta["kind"] == "stream":
        for text in islice(texts, run.settings.num_samples):
            print(f"\n{page(text)}")
        return
    known = {"", *(document for tokens in run.data.tokens.values() for document in decode_documents(tokens, run.data.tokenizer))}
    new, drawn = only_new(texts, known, run.settings.num_samples)
    print(f"\n{len(new)} new {run.settings.dataset}, in no part of the list ({drawn} drawn):")
    print("\n".join(f"  {text}" for text in new))


if __name__ == "__main__":
    run_program(main)
