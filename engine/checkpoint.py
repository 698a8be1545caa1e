"""Run folders: `out/<name>/` with the settings, the tokenizer, the best weights and all that a resume needs."""

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from config.settings import SamplingSettings, Settings, check
from data import tokenizers
from data.tokenizers import Tokenizer
from engine.errors import UserError, nearest
from engine.files import replacing, write_text
from engine.optimizer import Muon
from engine.parallel import like, whole
from model import GPT
from zoo.models import Config, Model, config_from, make
from zoo.vit import ViT

WEIGHTS = "model.safetensors"
STATE = Path("last") / "state.pt"
LOCK = Path("last") / "lock"
VERSION = 2  # of the state: 1 kept the optimizers' states by number, not by name
MAY_CHANGE_ON_RESUME = {
    *("max_steps", "learning_rate", "patience", "device", "compile", "attention", "threads", "shard", "resume", "run", "out_dir"),
    *("tensorboard", "wandb", "log_interval", "num_samples", "max_new_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("source", "year", "prepared_dir"),  # the same list from another place is the same data: its hash decides
}


def holds_run(folder: Path) -> bool:
    """Whether a run was started in this folder."""
    return (folder / "settings.json").exists()


def make_run_folder(folder: Path) -> FileLock:
    """An empty run folder, taken for this process. One that holds anything already is set aside under a dated name, never
    overwritten. Raises UserError when another process is training in it."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            older = lock(folder)
            aside = folder.with_name(f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}")
            while aside.exists():
                aside = aside.with_name(aside.name + "b")
            folder.rename(aside)
            older.release()
            print(f"the older run in {folder} is now in {aside}")
        folder.mkdir(parents=True, exist_ok=True)
        taken = lock(folder)
        write_text(folder / "samples.txt", "")  # a folder that cannot be written to is found out now, not after training
        return taken
    except OSError as error:
        raise UserError(f"cannot write a run to {folder}: {error.strerror}; choose another place with --out_dir") from None


def lock(folder: Path) -> FileLock:
    """Take a run folder for this process alone, for as long as it lives, however it ends.

    Raises UserError when another process has it.
    """
    (folder / LOCK).parent.mkdir(exist_ok=True)
    taken = FileLock(folder / LOCK)
    try:
        taken.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another process is training in {folder}; wait for it, or choose another name with --run") from None
    return taken


def find_run(run: str | None, out_dir: str = "out", option: str = "run") -> Path:
    """The folder of `run`, a name under out_dir or a path; None: the run with the newest weights. option: that names it.

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
    if folders := [folder for folder in (Path(out_dir) / run, Path(run)) if folder.is_dir()]:
        raise UserError(f"--{option}={run}: {folders[0]} has no {WEIGHTS}; train.py writes it at its first evaluation")
    there = f"there are: {', '.join(names)}" if names else "make one with: python train.py config/names.py"
    raise UserError(f"--{option}={run}: no run of that name under {out_dir}{nearest(run, names)}; {there}")


def save_settings(folder: Path, settings: Settings, config: Config, data: dict, ran: dict[str, Any], step: int) -> None:
    """settings.json: every option as it ran, the model's shape, the data, what "auto" was decided to be (`ran`), and on what
    it ran: one entry of `sessions` for the start and each resume."""
    session = {
        "from_step": step,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "git_commit": git_commit(),
        "host": platform.node(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    before = read_settings(folder) if holds_run(folder) else {}
    if "versions" in before:  # by version 1, which kept the last session only
        before["sessions"] = [{name: before.get(name) for name in ("versions", "git_commit", "host", "started")}]
    description = {
        "settings": asdict(settings),
        "model": asdict(config),
        "data": data,
        "ran": ran,
        "sessions": [*before.get("sessions", []), session],
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


def settings_of(folder: Path, description: dict[str, Any]) -> Settings:
    """All options that a run was trained with; those of other versions are left out. Raises UserError for what cannot be."""
    known = {f.name for f in fields(Settings)}
    try:
        return check(Settings(**{name: value for name, value in description["settings"].items() if name in known}))
    except UserError as error:
        raise UserError(f"{folder / 'settings.json'} is damaged: {error}") from None


def git_commit() -> str | None:
    """The commit of this checkout; None when it is not one."""
    try:
        here = Path(__file__).resolve().parent
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def ran_before(folder: Path) -> dict[str, Any]:
    """What "auto" was decided to be in this run. Version 1 knew neither bfloat16 on a CPU nor compiling by itself."""
    return read_settings(folder).get("ran", {"device": "cpu", "dtype": "float32", "compile": False})


def save_weights(folder: Path, weights: dict[str, torch.Tensor], config: Config) -> None:
    """model.safetensors, under GPT-2's parameter names. A tied head is stored once, as transformer.wte.weight."""
    weights = {name: tensor.contiguous() for name, tensor in weights.items() if not (config.tied_head and name == "lm_head.weight")}
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights))


def load_weights(folder: Path, model: Model) -> None:
    """Fill the model, on whatever device it is, from model.safetensors. Raises UserError for a file that does not fit it."""
    path = folder / WEIGHTS
    try:
        weights = safetensors.torch.load_file(path, device="cpu")
        if model.config.tied_head and isinstance(model, GPT):
            weights["lm_head.weight"] = weights["transformer.wte.weight"]
        if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
            raise ValueError(f"{broken[0]} has numbers that are not finite")
        fill(model, weights)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is damaged or of another model ({' '.join(str(error).split())[:120]}); train the run again") from None


def check_tokens(folder: Path, prepared: Path) -> None:
    """Raise UserError unless the run in `folder` reads the same tokens as these prepared data: else its embeddings would be of others."""
    ours, theirs = prepared / "tokenizer.json", folder / "tokenizer.json"
    if not theirs.exists() or ours.read_bytes() != theirs.read_bytes():
        raise UserError(f"--start_from: {folder} reads other tokens than these data have; a run with the same tokenizer.json would do")


def load_weights_that_fit(folder: Path, model: Model) -> str:
    """Fill those of the model's parameters that model.safetensors of another run has in the same shape. Returns which these are,
    in words. Raises UserError where there are none."""
    path = folder / WEIGHTS
    try:
        weights = safetensors.torch.load_file(path, device="cpu")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}); train the run again") from None
    parameters = dict(model.named_parameters())
    fitting = [name for name, p in parameters.items() if name in weights and weights[name].shape == p.shape]
    if not fitting:
        raise UserError(f"--start_from: no weights of {folder} fit this model; a run of the same shape would do")
    with torch.no_grad():
        for name in fitting:
            parameters[name].copy_(weights[name])
    new = [name for name in parameters if name not in fitting]
    return f"{len(fitting)} of {len(parameters)} parameters; new: {', '.join(new) or 'none'}"


def load_model(folder: Path, device: torch.device) -> Model:
    """The trained model of a run, ready to evaluate and sample."""
    try:
        model = make(config_from(read_settings(folder)["model"]))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{folder / 'settings.json'} describes no model of this version ({error}); train the run again") from None
    load_weights(folder, model)
    return model.to(device).eval()


def load_run(folder: Path, device: torch.device) -> tuple[Model, Tokenizer | None]:
    """The trained model of a run and its tokenizer, None if it reads no tokens. Raises UserError when they do not belong together."""
    model = load_model(folder, device)
    if isinstance(model, ViT):
        return model, None
    tokenizer = tokenizers.load(folder / "tokenizer.json")
    if tokenizer.vocab_size != model.config.vocab_size:
        raise UserError(
            f"{folder / 'tokenizer.json'} has {tokenizer.vocab_size} tokens, its model {model.config.vocab_size}; train the run again"
        )
    return model, tokenizer


def opening(folder: Path, description: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    """What the model of a run reads before a text. Raises UserError where its settings.json has no tokens for it."""
    ids = description["data"].get("opening", [tokenizer.boundary_id])
    if not all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids):
        raise UserError(f"{folder / 'settings.json'} is damaged: opening={ids} are no tokens of the run; train it again")
    return ids


def fill(model: Model, weights: dict[str, torch.Tensor]) -> None:
    """Set the model's parameters, which may be spread over processes, to these whole ones."""
    parameters = model.state_dict()
    model.load_state_dict({name: like(tensor, parameters.get(name, tensor)) for name, tensor in weights.items()})


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of every random generator that this process trains with."""
    return {"cpu": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """The inverse of `random_state`; the generator of a GPU only when there was one."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and len(state.get("cuda", ())):
        torch.cuda.set_rng_state(state["cuda"], device)


def optimizer_state(optimizers: list[torch.optim.Optimizer], model: GPT) -> dict[str, dict[str, torch.Tensor]]:
    """What the optimizers remember, by the name of the parameter. All processes must call it at once."""
    names = {p: name for name, p in model.named_parameters()}
    return {names[p]: whole(state) for optimizer in optimizers for p, state in optimizer.state.items()}


def set_optimizer_state(optimizers: list[torch.optim.Optimizer], model: GPT, state: dict[str, dict[str, torch.Tensor]]) -> None:
    """The inverse of `optimizer_state`. Raises ValueError for a state that is not of these parameters."""
    names = {p: name for name, p in model.named_parameters()}
    for optimizer in optimizers:
        expected = {"momentum"} if isinstance(optimizer, Muon) else {"step", "exp_avg", "exp_avg_sq"}
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            tensors = state[names[p]]
            if set(tensors) != expected or any(tensor.shape not in (p.shape, ()) for tensor in tensors.values()):
                raise ValueError(f"the optimizer's state of {names[p]} has other parts or shapes")
            tensors = {key: tensor.to(p.device) for key, tensor in tensors.items()}
            optimizer.state[p] = {key: like(tensor, p) if tensor.shape == p.shape else tensor for key, tensor in tensors.items()}


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """last/state.pt: tensors, numbers and text only, so that it loads without unpickling code."""
    (folder / STATE).parent.mkdir(exist_ok=True)
    with replacing(folder / STATE) as temporary, open(temporary, "wb") as file:
        try:
            torch.save({"version": VERSION, **state}, file)
        except RuntimeError as error:  # how torch closes a file that it could not write to
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load_state(folder: Path) -> dict[str, Any] | None:
    """What `save_state` saved, on the CPU; None when the run was stopped before its first checkpoint.

    Raises UserError for a file that is damaged or of a later version.
    """
    path = folder / STATE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # torch raises many kinds for a damaged file
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged ({first[:80]}); start anew without --resume") from None
    version = state.setdefault("version", 1) if isinstance(state, dict) else None
    if type(version) is not int:
        raise UserError(f"{path} is no state of this run; start anew without --resume")
    if version > VERSION:
        raise UserError(f"{path} was written by a later version ({version}; this one reads up to {VERSION}); a newer checkout would do")
    return state


def from_version_1(state: dict[str, Any], model: GPT) -> dict[str, Any]:
    """The state as version 2 would have it. Version 1 numbered the parameters, in the order in which AdamW (matrices, then the
    rest) and Muon were given them."""
    names = {name: p.dim() for name, p in model.named_parameters()}
    inner = [name for name, dim in names.items() if len(state["optimizers"]) == 2 and ".h." in name and dim == 2]
    outer = [name for name in names if name not in inner]
    orders = [[name for name in outer if names[name] == 2] + [name for name in outer if names[name] != 2], inner]
    optimizer = {}
    for saved, order in zip(state["optimizers"], orders, strict=False):
        for number, tensors in saved["state"].items():
            optimizer[order[number]] = {{"momentum_buffer": "momentum"}.get(key, key): tensor for key, tensor in tensors.items()}
    random = {"cpu": state["random"]["cpu"], **({"cuda": state["random"]["cuda"][0]} if state["random"]["cuda"] else {})}
    return {**state, "optimizer": optimizer, "average": None, "scaler": {}, "random": [random]}


def check_resume(folder: Path, settings: Settings, data: dict) -> None:
    """Raise UserError unless the run in `folder` can go on exactly with these settings and this data."""
    if not holds_run(folder):
        raise UserError(f"--resume: there is no run in {folder}; start one without --resume")
    before = read_settings(folder)
    defaults = asdict(Settings())
    for name, value in asdict(settings).items():
        was = before["settings"].get(name, defaults[name])  # an option there was not yet
        if was == value:
            continue
        if name not in MAY_CHANGE_ON_RESUME:
            raise UserError(f"--resume: {name} was {was} in {folder} and is {value} now; give --{name}={was} to go on with that run")
        if name != "resume" and value not in (None, "auto"):  # else it stays what it was decided to be
            print(f"note: {name} was {was} and is {value} from here on")
    if before["data"].get("source_sha256") != data["source_sha256"]:
        raise UserError(
            f"--resume: the run in {folder} learned from other data ({before['data'].get('source')}); start anew without --resume"
        )


def sampling_settings(description: dict[str, Any], options: type[SamplingSettings]) -> SamplingSettings:
    """The sampling options a run was trained with, as defaults for sampling from it."""
    ran = description["settings"]
    return check(options(**{f.name: ran[f.name] for f in fields(SamplingSettings) if f.name in ran and f.name != "device"}))


def cut_back(path: Path, size: int) -> None:
    """Cut a file that a run appends to back to what it was at the checkpoint; what came after comes again."""
    path.touch()
    os.truncate(path, min(size, path.stat().st_size))


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote one."""
    for path in folder.rglob(".*.tmp"):
        path.unlink()
