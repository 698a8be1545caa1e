"""Run folders: `out/<name>/` with the settings, the tokenizer, the best weights and all that a resume needs."""

import json
import platform
import subprocess
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from config.settings import SamplingSettings, Settings, check
from engine.errors import UserError, nearest
from engine.files import replacing, write_text
from model import GPT, GPTConfig

WEIGHTS = "model.safetensors"
STATE = Path("last") / "state.pt"
MAY_CHANGE_ON_RESUME = {
    *("max_steps", "learning_rate", "patience", "device", "compile", "attention", "resume", "run", "out_dir"),
    *("source", "year", "prepared_dir"),  # the same list from another place is the same data: its hash decides
}


def holds_run(folder: Path) -> bool:
    """Whether a run was started in this folder."""
    return (folder / "settings.json").exists()


def make_run_folder(folder: Path) -> None:
    """An empty run folder. One that holds anything already is set aside under a dated name, never overwritten."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            aside = folder.with_name(f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}")
            while aside.exists():
                aside = aside.with_name(aside.name + "b")
            folder.rename(aside)
            print(f"the older run in {folder} is now in {aside}")
        (folder / "last").mkdir(parents=True, exist_ok=True)
        write_text(folder / "samples.txt", "")  # a folder that cannot be written to is found out now, not after training
    except OSError as error:
        raise UserError(f"cannot write a run to {folder}: {error.strerror}; choose another place with --out_dir") from None


def find_run(run: str | None, out_dir: str = "out") -> Path:
    """The folder of `run`, a name under out_dir or a path; None: the run with the newest weights.

    Raises UserError when there is none, naming those there are.
    """
    runs = sorted(Path(out_dir).glob(f"*/{WEIGHTS}"), key=lambda path: path.stat().st_mtime_ns)
    names = [path.parent.name for path in runs]
    if run is None:
        if not runs:
            raise UserError(f"there is no finished run under {out_dir}; make one with: python train.py config/names.py")
        return runs[-1].parent
    for folder in (Path(out_dir) / run, Path(run)):
        if (folder / WEIGHTS).exists():
            return folder
    there = f"there are: {', '.join(names)}" if names else "make one with: python train.py config/names.py"
    raise UserError(f"--run={run}: no run of that name under {out_dir}{nearest(run, names)}; {there}")


def save_settings(folder: Path, settings: Settings, config: GPTConfig, data: dict) -> None:
    """settings.json: every option as it ran, the model's shape, the data, and what it ran on."""
    description = {
        "settings": asdict(settings),
        "model": asdict(config),
        "data": data,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "git_commit": git_commit(),
        "host": platform.node(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_text(folder / "settings.json", json.dumps(description, indent=1) + "\n")


def read_settings(folder: Path) -> dict[str, Any]:
    """settings.json as written by `save_settings`. Raises UserError when it is missing or damaged."""
    path = folder / "settings.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        for part in ("settings", "model", "data"):
            description[part].keys()
        return description
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; is {folder} the folder of a run?") from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); train the run again") from None


def git_commit() -> str | None:
    """The commit of this checkout; None when it is not one."""
    try:
        here = Path(__file__).resolve().parent
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def save_weights(folder: Path, model: GPT) -> None:
    """model.safetensors, under GPT-2's parameter names. A tied head is stored once, as transformer.wte.weight."""
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tied_head:
        del weights["lm_head.weight"]
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights))


def load_weights(folder: Path, model: GPT) -> None:
    """Fill the model, on whatever device it is, from model.safetensors. Raises UserError for a file that does not fit it."""
    path = folder / WEIGHTS
    try:
        weights = safetensors.torch.load_file(path, device="cpu")
        if model.config.tied_head:
            weights["lm_head.weight"] = weights["transformer.wte.weight"]
        model.load_state_dict(weights)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is damaged or of another model ({' '.join(str(error).split())[:120]}); train the run again") from None


def load_model(folder: Path, device: torch.device) -> GPT:
    """The trained model of a run, ready to evaluate and sample."""
    try:
        model = GPT(GPTConfig(**read_settings(folder)["model"]))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{folder / 'settings.json'} describes no model of this version ({error}); train the run again") from None
    load_weights(folder, model)
    return model.to(device).eval()


def random_state() -> dict[str, Any]:
    """The state of every random generator that training draws from."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def set_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`; the generators of GPUs only when there are as many as there were."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """last/state.pt: tensors, numbers and text only, so that it loads without unpickling code."""
    (folder / STATE).parent.mkdir(exist_ok=True)
    with replacing(folder / STATE) as temporary:
        torch.save(state, temporary)


def load_state(folder: Path) -> dict[str, Any]:
    """What `save_state` saved, on the CPU. Raises UserError for a file that is missing or damaged."""
    path = folder / STATE
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: there is nothing to resume; start anew without --resume") from None
    except Exception as error:  # torch raises many kinds for a damaged file
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged ({first[:80]}); start anew without --resume") from None


def check_resume(folder: Path, settings: Settings, data: dict) -> None:
    """Raise UserError unless the run in `folder` can go on exactly with these settings and this data."""
    if not holds_run(folder):
        raise UserError(f"--resume: there is no run in {folder}; start one without --resume")
    before = read_settings(folder)
    for name, value in asdict(settings).items():
        was = before["settings"].get(name)
        if was == value:
            continue
        if name not in MAY_CHANGE_ON_RESUME:
            raise UserError(f"--resume: {name} was {was} in {folder} and is {value} now; give --{name}={was} to go on with that run")
        if name != "resume":
            print(f"note: {name} was {was} and is {value} from here on")
    if before["data"].get("source_sha256") != data["source_sha256"]:
        raise UserError(
            f"--resume: the run in {folder} learned from other data ({before['data'].get('source')}); start anew without --resume"
        )


def sampling_settings(description: dict[str, Any], options: type[SamplingSettings]) -> SamplingSettings:
    """The sampling options a run was trained with, as defaults for sampling from it."""
    ran = description["settings"]
    return check(options(**{f.name: ran[f.name] for f in fields(SamplingSettings) if f.name in ran and f.name != "device"}))


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote one."""
    for path in folder.rglob(".*.tmp"):
        path.unlink()
