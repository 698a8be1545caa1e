"""Which class a name or a picture belongs to; how often a model is right, and whether it is as sure of it as it is right."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config.settings import SamplingSettings, Settings
from data.examples import Make, classed, documents_of, lengths_of, pictures
from data.pictures import read_picture
from data.prepared import Prepared
from data.tokenizers import CharTokenizer, decode_documents
from engine.errors import UserError
from engine.tables import table
from zoo.encoder import Encoder
from zoo.vit import ViT

AT_ONCE = 1024  # examples
BINS = 15  # of the expected calibration error, as Guo et al. 2017 have it
LONGEST_NGRAM = 5
KNOWS = ()
EXAMPLE = "ada"


def examples(split: str, data: Prepared, settings: Settings) -> tuple[np.ndarray, Make]:
    """As engine/tasks.py has it. Raises UserError for texts that do not fit into the model."""
    arrays = data.arrays[split]
    if data.tokenizer is None:
        return pictures(arrays["images"], arrays["classes"], len(data.meta["classes"]), settings.warp)
    if data.meta["longest"] >= settings.block_size:
        raise UserError(
            f"block_size={settings.block_size} is too small for the longest text; block_size={data.meta['longest'] + 1} would fit"
        )
    tokenizer = data.tokenizer
    return classed(data.tokens[split], tokenizer.boundary_id, arrays["counts"], settings.token_noise, tokenizer.vocab_size)


def samples(model: Encoder | ViT, data: Prepared, settings: Settings, count: int) -> list[str]:
    """The likeliest class of each of the first validation examples. A picture, which has no name, is called by what it shows."""
    inputs = inputs_of(data, "val", count)
    found = probabilities(model, inputs)
    if data.tokenizer is None:
        known = [f"a picture of {data.meta['classes'][i]}:" for i in data.arrays["val"]["classes"][:count]]
    else:
        known = [data.tokenizer.decode(row[row >= 0][:-1].tolist()) for row in inputs]
    return [line(text, found[i], data.meta["classes"]) for i, text in enumerate(known)]


def measure(model: Encoder | ViT, data: Prepared, split: str) -> dict[str, Any]:
    """How good the model is on a split; of texts, also how good a logistic regression on their n-grams is."""
    counts = counts_of(data, split)
    measured = figures(probabilities(model, inputs_of(data, split)), counts)
    measured |= {"examples": len(counts), "classes": data.meta["classes"], "ceiling": float(counts.max(1).sum() / counts.sum())}
    if data.tokenizer is not None:
        said = by_ngrams(data, split)
        measured["ngrams"] = None if said is None else figures(said, counts)
    return measured


def report(measured: dict[str, dict[str, Any]]) -> str:
    """A row for each split and way to tell the classes, then what is mistaken for what."""
    counted = any("counted_accuracy" in found for found in measured.values())
    columns = ("split", "examples", "told by", "right", *(["right, by count"] if counted else []), "cross-entropy", "calibration error")
    rows = []
    for split, found in measured.items():
        ways = {"the model": found, **({f"n-grams of 1 to {LONGEST_NGRAM}": found["ngrams"]} if found.get("ngrams") else {})}
        for name, of_way in ways.items():
            by_count = [f"{of_way['counted_accuracy']:.1%}"] if counted else []
            rows.append((split, f"{found['examples']:,}", name, f"{of_way['accuracy']:.1%}", *by_count, *sureness(of_way)))
        if counted:
            rows.append((split, f"{found['examples']:,}", "at best", "100.0%", f"{found['ceiling']:.1%}", "-", "-"))
    parts = [table(columns, rows)]
    if any("ngrams" in found and found["ngrams"] is None for found in measured.values()):
        parts.append("note: no logistic regression on n-grams, for want of scikit-learn (pip install -e '.[zoo]') or of a second class")
    for split, found in measured.items():
        columns = (f"{split}: is", *(f"told {name}" for name in found["classes"]))
        rows = [(name, *(f"{n:,}" for n in row)) for name, row in zip(found["classes"], found["confusion"], strict=True)]
        parts.append(table(columns, rows))
    return "\n\n".join(parts)


def sureness(of_way: dict[str, Any]) -> tuple[str, str]:
    """The last two columns of a row."""
    return f"{of_way['cross_entropy']:.4f}", f"{of_way['calibration_error']:.1%}"


# ------------------------------------------------------------------------------------------------------------------------
# What a model says


def classify(model: Encoder, tokenizer: CharTokenizer, classes: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """The probability of each class for each text, (N, n_classes).

    Raises UserError for a text with an unknown character, for one that does not fit into the model, and for other classes than
    the model's.
    """
    if len(classes) != model.config.n_classes:
        raise UserError(f"this model tells {model.config.n_classes} classes apart, not {', '.join(classes)}")
    rows = [text_ids(text, tokenizer, model.config.block_size) for text in texts]
    longest = max(map(len, rows), default=0)
    return probabilities(model, np.array([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=np.int64).reshape(len(rows), -1))


def answers(
    model: Encoder | ViT, tokenizer: CharTokenizer | None, meta: dict[str, Any], prompts: Sequence[str], settings: SamplingSettings
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The likeliest class of each text, or of the picture in each file, with the probabilities of all. Raises UserError for what is
    no picture."""
    classes = meta["classes"]
    for prompt in prompts:
        if tokenizer is None:
            if not Path(prompt).is_file():
                raise UserError("there is no such file; a picture, PNG or JPEG, would do")
            found = read_picture(Path(prompt), model.config.image_size, model.config.channels)
            if isinstance(found, str):
                raise UserError(f"this file is {found}; a picture, PNG or JPEG, would do")
            chances = probabilities(model, found[None].astype(np.float32) / 127.5 - 1)[0]
        else:
            chances = classify(model, tokenizer, classes, [prompt])[0]
        shares = dict(zip(classes, chances.tolist(), strict=True))
        yield line(prompt, chances, classes), {"prompt": prompt, "class": max(shares, key=shares.__getitem__), "probabilities": shares}


def text_ids(text: str, tokenizer: CharTokenizer, block_size: int) -> list[int]:
    """What the model reads: the text, and the boundary at its end. Raises UserError for what it cannot read."""
    ids = tokenizer.encode(text)
    if not ids or tokenizer.boundary_id in ids:
        raise UserError(f"{text!r} is no name; letters would do")
    if len(ids) >= block_size:
        raise UserError(f"{text[:40]!r} has {len(ids)} letters; this model reads up to {block_size - 1}")
    return [*ids, tokenizer.boundary_id]


def line(text: str, chances: np.ndarray, classes: Sequence[str]) -> str:
    """A text, its likeliest class and how likely that is: ada  female 99.1%."""
    best = int(chances.argmax())
    return f"{text}  {classes[best]} {chances[best]:.1%}"


@torch.no_grad()
def probabilities(model: Encoder | ViT, inputs: np.ndarray) -> np.ndarray:
    """Inputs (N, T) int64 or (N, channels, H, W) float32 -> (N, n_classes) float64, dropout off."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    found = [np.empty((0, model.config.n_classes))]
    for first in range(0, len(inputs), AT_ONCE):
        logits, _ = model(torch.from_numpy(inputs[first : first + AT_ONCE]).to(device))
        found.append(logits.double().softmax(1).cpu().numpy())
    model.train(was_training)
    return np.concatenate(found)


def inputs_of(data: Prepared, split: str, count: int | None = None) -> np.ndarray:
    """What the model reads of the first `count` examples of a split, as training has it: ids (N, T), or pixels from -1 to 1."""
    if data.tokenizer is None:
        return data.arrays[split]["images"][:count].astype(np.float32) / 127.5 - 1
    documents = documents_of(data.tokens[split], data.tokenizer.boundary_id)[:count]
    return documents[:, : lengths_of(documents).max(initial=1)]


def counts_of(data: Prepared, split: str) -> np.ndarray:
    """How often each example belongs to each class, (N, n_classes); a picture once, to one."""
    arrays = data.arrays[split]
    if data.tokenizer is not None:
        return np.asarray(arrays["counts"])
    return np.eye(len(data.meta["classes"]), dtype=np.int64)[arrays["classes"]]


# ------------------------------------------------------------------------------------------------------------------------
# How good that is


def figures(chances: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Of probabilities (N, n_classes) and how often each example belongs to each class, (N, n_classes): the share of examples of
    which the likeliest class is the commonest one, the mean cross-entropy, how far sureness and being right are apart, and what
    was mistaken for what (rows: what is, columns: what was said). If an example belongs to several classes or has a weight, also the
    share of all that was counted which is of the class that was said."""
    said, commonest = chances.argmax(1), counts.argmax(1)
    said_counts = counts[np.arange(len(counts)), said]
    right = said_counts == counts.max(1)  # of two classes equally common, either
    shares = counts / counts.sum(1, keepdims=True)
    confusion = np.zeros((counts.shape[1], counts.shape[1]), dtype=int)
    np.add.at(confusion, (np.where(right, said, commonest), said), 1)
    found = {
        "accuracy": float(right.mean()),
        "cross_entropy": float(-(shares * np.log(chances.clip(min=1e-300))).sum(1).mean()),
        "calibration_error": calibration_error(chances.max(1), right),
        "confusion": confusion.tolist(),
    }
    if (counts.sum(1) > 1).any():
        found["counted_accuracy"] = float(said_counts.sum() / counts.sum())
    return found


def calibration_error(sure: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """The expected calibration error (Guo et al. 2017, equation 3): of `bins` equally wide intervals of sureness, how far mean
    sureness and the share that is right are apart, weighted by how many examples lie in each. Both (N,)."""
    place = np.ceil(sure * bins).astype(int).clip(1, bins) - 1  # intervals are open on the left
    apart = np.bincount(place, weights=sure - right, minlength=bins)  # of each interval, times its examples
    return float(np.abs(apart).sum() / len(sure))


def by_ngrams(data: Prepared, split: str) -> np.ndarray | None:
    """What a logistic regression on the n-grams of ^ada$ says, fitted to what a model is trained with, the shares of the classes in
    the training split: probabilities (N, n_classes). None where scikit-learn is missing, or training has one class only."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    texts = {part: [f"^{text}$" for text in decode_documents(data.tokens[part], data.tokenizer)] for part in {"train", split}}
    counts = counts_of(data, "train")
    shares = counts / counts.sum(1, keepdims=True)
    numbers, classes = shares.nonzero()  # a text stands once for each of its classes, with the class's share as its weight
    if len(set(classes.tolist())) < 2:
        return None
    grams = CountVectorizer(analyzer="char", ngram_range=(1, LONGEST_NGRAM), lowercase=False)
    seen = grams.fit_transform(texts["train"])[numbers]
    regression = LogisticRegression(max_iter=1000).fit(seen, classes, sample_weight=shares[numbers, classes])
    chances = np.zeros((len(texts[split]), len(data.meta["classes"])))
    chances[:, regression.classes_] = regression.predict_proba(grams.transform(texts[split]))
    return chances
