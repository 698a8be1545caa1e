"""What a run leaves to read: log.csv, loss.png, samples.txt, summary.json."""

import csv
import importlib.util
import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from config.settings import Settings
from engine.errors import UserError
from engine.files import append_text, replacing, write_text

COLUMNS = ("step", "epoch", "train_loss", "val_loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")


class Log:
    """log.csv: one row per logged step, and whatever else the settings ask for. But for its last two columns nothing in it
    depends on the clock: the same run twice gives the same numbers."""

    def __init__(self, folder: Path, up_to_step: int = 0, settings: Settings | None = None) -> None:
        """Start the log, or go on with the one there, less the rows after `up_to_step`."""
        self.path = folder / "log.csv"
        self.rows = [row for row in read_log(self.path) if int(row["step"]) <= up_to_step] if up_to_step else []
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_text(self.path, text.getvalue())
        self.tensorboard = open_tensorboard(folder, up_to_step) if settings and settings.tensorboard else None
        self.wandb = open_wandb(folder, settings) if settings and settings.wandb else None

    def add(self, **values: float) -> None:
        """Append one row; columns without a value stay empty."""
        row = {name: "" if values.get(name) is None else repr(values[name]) for name in COLUMNS}
        self.rows.append(row)
        append_text(self.path, ",".join(row.values()) + "\n")  # numbers need no quotes
        curves = {name: value for name, value in values.items() if name != "step" and value is not None}
        if self.tensorboard:
            for name, value in curves.items():
                self.tensorboard.add_scalar(name, value, values["step"])
        if self.wandb:
            self.wandb.log(curves, step=values["step"])

    def close(self) -> None:
        if self.tensorboard:
            self.tensorboard.close()
        if self.wandb:
            self.wandb.finish()


def check_packages(settings: Settings) -> None:
    """Raise UserError for a log that needs a package which is not installed."""
    for name in ("tensorboard", "wandb"):
        if getattr(settings, name) and importlib.util.find_spec(name) is None:
            raise UserError(f"--{name}: the package {name} is not installed; pip install -e '.[log]' would do")


def open_tensorboard(folder: Path, up_to_step: int) -> Any:
    """TensorBoard's writer, in folder/tensorboard; what an earlier session wrote after `up_to_step` is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=up_to_step + 1)


def open_wandb(folder: Path, settings: Settings) -> Any:
    """A run of Weights & Biases, with the settings, under the name of the folder. Raises UserError where nobody is logged in."""
    import wandb

    try:
        return wandb.init(project="rhapsode", name=folder.name, dir=str(folder), config=asdict(settings))
    except wandb.Error as error:
        raise UserError(f"--wandb: {error}; `wandb login` or WANDB_MODE=offline would do") from None


def read_log(path: Path) -> list[dict[str, str]]:
    """The rows of a log.csv, none when there is none. Raises UserError for a file that is no such log."""
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if None not in row.values()]  # a row cut short by a kill is no row
        for row in rows:
            int(row["step"]), float(row["train_loss"] or 0), float(row["val_loss"] or 0)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); move it away to go on with a new one") from None
    return rows


def write_summary(folder: Path, summary: dict) -> None:
    """summary.json: how good the run got, and how fast."""
    write_text(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def plot_loss(folder: Path, rows: list[dict[str, str]], best_step: int) -> None:
    """loss.png: the loss of the training batches and of the validation split, by step."""
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    figure = matplotlib.figure.Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    train = [(int(row["step"]), float(row["train_loss"])) for row in rows if row["train_loss"]]
    val = [(int(row["step"]), float(row["val_loss"])) for row in rows if row["val_loss"]]
    axes.plot(
        *zip(*train or [(0, math.nan)], strict=True), color="tab:gray", linewidth=0.6, alpha=0.7, label="training batch (with dropout)"
    )
    axes.plot(*zip(*val or [(0, math.nan)], strict=True), color="tab:blue", marker="o", markersize=3, label="validation split")
    best = dict(val).get(best_step)
    if best is not None:
        axes.annotate(f"{best:.3f}", (best_step, best), textcoords="offset points", xytext=(0, 7), ha="center", color="tab:blue")
    losses = [loss for _, loss in val + train[len(train) // 10 :]]  # the fall of the first steps would flatten all the rest
    if losses:
        margin = 0.1 * (max(losses) - min(losses)) + 1e-3
        axes.set_ylim(min(losses) - margin, max(losses) + margin)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(folder.name, parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(folder / "loss.png") as temporary:
        figure.savefig(temporary, format="png", dpi=130)
