"""Hidden characters of a name, guessed from what stands on both sides of them: what an encoder is pretrained with."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from config.settings import SamplingSettings, Settings
from data.examples import ExampleLoader, Make, documents_of, masked
from data.prepared import Prepared
from data.tokenizers import CharTokenizer
from engine.errors import UserError
from engine.tables import table
from zoo.encoder import Encoder

AT_ONCE = 1024  # examples
KNOWS = ()
EXAMPLE = "a_a"
HIDDEN = "_"  # in a prompt, and where what is hidden is shown
SHARE, SEED = 0.15, 1337  # of what is hidden in `samples` and `measure`: whatever a run was trained with, the question is the same


def examples(split: str, data: Prepared, settings: Settings) -> tuple[np.ndarray, Make]:
    """As engine/tasks.py has it. Raises UserError for names that do not fit into the model."""
    if data.meta["longest"] >= settings.block_size:
        raise UserError(
            f"block_size={settings.block_size} is too small for the longest name; block_size={data.meta['longest'] + 1} would fit"
        )
    return hidden(data, split, settings.mask_share, settings.seed)


def samples(model: Encoder, data: Prepared, settings: Settings, count: int) -> list[str]:
    """The first validation names, each with some of its letters hidden and then guessed: a_a -> ada."""
    lengths, make = hidden(data, "val", SHARE, SEED)
    _, targets = make(np.arange(min(count, len(lengths))), None).inputs
    texts = []
    names = documents_of(data.tokens["val"], data.tokenizer.boundary_id)
    for name, length, asked in zip(names[: len(targets)], lengths[: len(targets)], targets.numpy() >= 0, strict=True):
        letters = data.tokenizer.decode(name[: length - 1])
        asked = asked[: length - 1] if asked[: length - 1].any() else np.arange(length - 1) == 0  # the end alone shows nothing
        texts.append("".join(HIDDEN if ask else letter for letter, ask in zip(letters, asked, strict=True)))
    return [f"{text} -> {filled}" for text, filled in zip(texts, fill(model, data.tokenizer, texts), strict=True)]


def measure(model: Encoder, data: Prepared, split: str) -> dict[str, Any]:
    """The mean cross-entropy of the hidden characters of a split, in nats, and the share that is guessed right."""
    lengths, make = hidden(data, split, SHARE, SEED)
    loss, right, count = 0.0, 0, 0
    for batch in ExampleLoader(lengths, make, AT_ONCE).once():
        idx, targets = batch.inputs
        logits, asked = logits_of(model, idx), targets >= 0
        loss += float(F.cross_entropy(logits[asked], targets[asked], reduction="sum"))
        right += int((logits[asked].argmax(1) == targets[asked]).sum())
        count += batch.n_targets
    return {"names": len(lengths), "hidden": count, "loss": loss / count, "accuracy": right / count}


def report(measured: dict[str, dict[str, Any]]) -> str:
    """A row for each split."""
    rows = [
        (split, f"{found['names']:,}", f"{found['hidden']:,}", f"{found['loss']:.4f}", f"{found['accuracy']:.1%}")
        for split, found in measured.items()
    ]
    return table(("split", "names", "hidden characters", "cross-entropy", "guessed right"), rows)


def fill(model: Encoder, tokenizer: CharTokenizer, texts: Sequence[str]) -> list[str]:
    """Each text with a letter for each _, the surest first: what is filled in helps to guess the rest.

    Raises UserError for a text without _, with an unknown character, and for one that does not fit into the model.
    """
    rows = [asked_ids(text, tokenizer, model.config.block_size) for text in texts]
    if not rows:
        return []
    mask_id, lengths = tokenizer.vocab_size, torch.tensor([len(row) for row in rows])
    idx = torch.full((len(rows), int(lengths.max())), -1)
    for i, row in enumerate(rows):
        idx[i, : len(row)] = torch.tensor(row)
    while (left := idx == mask_id).any():
        logits = logits_of(model, idx)
        logits[..., tokenizer.boundary_id] = -torch.inf  # the end is where the text has it
        chances, guesses = logits.softmax(2).max(2)  # (B, T) each
        surest = chances.masked_fill(~left, -1).argmax(1, keepdim=True)  # (B, 1)
        idx.scatter_(1, surest, torch.where(left.any(1, keepdim=True), guesses.gather(1, surest), idx.gather(1, surest)))
    return [tokenizer.decode(row[: length - 1]) for row, length in zip(idx.tolist(), lengths.tolist(), strict=True)]


def answers(
    model: Encoder, tokenizer: CharTokenizer, meta: dict[str, Any], prompts: Sequence[str], settings: SamplingSettings
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each text with its hidden letters filled in."""
    for prompt in prompts:
        text = fill(model, tokenizer, [prompt])[0]
        yield f"{prompt} -> {text}", {"prompt": prompt, "text": text}


def asked_ids(text: str, tokenizer: CharTokenizer, block_size: int) -> list[int]:
    """What the model reads: [MASK] for each _, and the boundary at the end. Raises UserError for what it cannot read."""
    if HIDDEN not in text:
        raise UserError(f"{text[:40]!r} has nothing to guess; write {HIDDEN} for each hidden letter, as in a{HIDDEN}a")
    pieces = [tokenizer.encode(piece) for piece in text.split(HIDDEN)]
    ids = pieces[0] + [i for piece in pieces[1:] for i in (tokenizer.vocab_size, *piece)]
    if tokenizer.boundary_id in ids:
        raise UserError(f"{text[:40]!r} is no name; letters and {HIDDEN} would do")
    if len(ids) >= block_size:
        raise UserError(f"{text[:40]!r} has {len(ids)} letters; this model reads up to {block_size - 1}")
    return [*ids, tokenizer.boundary_id]


@torch.no_grad()
def logits_of(model: Encoder, idx: torch.Tensor) -> torch.Tensor:
    """(B, T) -> (B, T, V) on the CPU, dropout off."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    logits, _ = model(idx.to(device))
    model.train(was_training)
    return logits.float().cpu()


def hidden(data: Prepared, split: str, share: float, seed: int) -> tuple[np.ndarray, Make]:
    """The examples of a split."""
    return masked(data.tokens[split], data.tokenizer.boundary_id, data.tokenizer.vocab_size, share, seed)
