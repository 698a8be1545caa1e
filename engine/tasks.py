"""What there is to tell of a model that does not write texts. train.py, evaluate.py and sample.py ask a task, which is a module:

examples(split, data, settings)    the lengths and the `make` of its ExampleLoader (data/examples.py)
samples(model, data, settings, n)  what the model says of the first n validation examples, a line each
measure(model, data, split)        how good that is on a split: figures, as summary.json keeps them
report(measured)                   the figures of some splits, {"val": ..., "test": ...}, as a table
answers(model, tokenizer, meta, prompts, settings)
                                   what it says of each prompt: lines for people, each with its object for JSON
KNOWS                              the options of sample.py that it understands, beside those that all do
EXAMPLE                            a prompt, for messages
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from engine import classifying, masking, pronouncing
from engine.errors import UserError

Task = ModuleType
TASKS = {"seq2seq": (pronouncing,), "encoder": (masking, classifying), "vit": (classifying,)}  # of each model; others write texts


def task_of(kind: str | None, model: str) -> Task | None:
    """For data of this kind and this model. None: it writes texts."""
    if kind == "rows" and model == "encoder":
        return masking
    return {"pairs": pronouncing, "classes": classifying}.get(kind)


def task_of_run(folder: Path, description: dict[str, Any]) -> Task | None:
    """That of the run in this folder, of this description. Raises UserError where model and data do not belong together."""
    model, data = description["settings"].get("model", "gpt"), description["data"]
    task = task_of(data.get("kind"), model)
    classes = data.get("classes")
    named = isinstance(classes, list) and len(classes) == description["model"].get("n_classes")
    if task not in TASKS.get(model, (None,)) or (task is classifying and not named):
        raise UserError(f"{folder / 'settings.json'} is damaged: its data are not what a {model} learns from; train the run again")
    return task
