"""Where each token of a text looks: the attention weights of a model, as a picture and as a page to point at.

A map has a row for each token that looks and a column for each that it looks at. In a causal one these are the same, and what comes
later is left out; else its columns, the keys, have names of their own, and all of it is shown.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.files import filled_in
from engine.generation import evaluating
from engine.trace import shortened
from model import GPT, CausalSelfAttention
from zoo.encoder import Encoder
from zoo.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANING = "A weight shows how much of a token was mixed in, not why."
TEMPLATE = Path(__file__).with_name("attention_map.html")
WRITTEN_OUT = 12  # tokens up to which every cell holds its number
LONGEST_SIDE = 60  # inches of a picture, where that leaves each map 2


def attention_weights(model: GPT, ids: list[int]) -> Tensor:
    """The weights with which the tokens of one text look at each other: (n_layer, n_head, T, T) float32 on the CPU.

    Raises ValueError for a text that the model cannot read: an empty one, one longer than block_size.
    """
    return weights_of(model, [block.attn for block in model.transformer.h], [ids])


def encoder_weights(model: Encoder, ids: list[int]) -> Tensor:
    """The same for [CLS] and the tokens of a text: (n_layer, n_head, 1 + T, 1 + T)."""
    return weights_of(model, [block.attn for block in model.encoder.h], [ids])


def seq2seq_weights(model: Seq2Seq, source: list[int], target_in: list[int]) -> dict[str, Tensor]:
    """The weights of each part, (n_layer, n_head, rows, columns): "cross", target_in (T) looks at the source (S); "encoder",
    the source at itself; "decoder", target_in at itself, causally."""
    modules = {
        "cross": [block.cross for block in model.decoder.h],
        "encoder": [block.attn for block in model.encoder.h],
        "decoder": [block.attn for block in model.decoder.h],
    }
    return {part: weights_of(model, attention, [source, target_in]) for part, attention in modules.items()}


@torch.no_grad()
def weights_of(model: torch.nn.Module, attention: Sequence[CausalSelfAttention], inputs: Sequence[list[int]]) -> Tensor:
    """The weights of these modules, (modules, n_head, T, S) float32 on the CPU, when the model reads these inputs, a row each.

    Row i of a head is the token that looks, column j the one it looks at; a row sums to 1. They are those of the manual path,
    without dropout.
    """
    taken: list[Tensor] = []

    def take(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        taken.append(module.forward(*args, **kwargs, return_weights=True)[1][0].float().cpu())  # not module(): that calls hooks

    before = model.config.attention
    hooks = [module.register_forward_hook(take, with_kwargs=True) for module in attention]
    device = next(model.parameters()).device
    try:
        model.config.attention = "manual"
        with evaluating(model):
            model(*(torch.tensor([ids], dtype=torch.int64, device=device) for ids in inputs))
    finally:
        model.config.attention = before
        for hook in hooks:
            hook.remove()
    return torch.stack(taken)


def draw(weights: Tensor, tokens: list[str], layers: list[int], heads: list[int], title: str, keys: list[str] | None = None) -> "Figure":
    """A heat map for each layer (a row of the picture) and head (a column).

    weights: (L, H, T, S), those of the layers and heads named; tokens: T texts; keys: S texts, None: the map is causal. Up to 12
    tokens every cell holds its number; of tokens too many to label, every k-th has its label.
    """
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    rows, columns = len(layers), len(heads)
    across, down, cell = map_size(tokens, keys or tokens, max(rows, columns))
    width = max(5.5, columns * across + 1.6)
    wrapped = textwrap.fill(title, int(7 * width), max_lines=3, placeholder=" …")
    figure = matplotlib.figure.Figure(figsize=(width, rows * (down + 0.3) + 1.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    step = math.ceil(10 / (72 * cell))  # a label is 10 points high
    for i, layer in enumerate(layers):
        for j, head in enumerate(heads):
            axes = grid[i, j]
            image = draw_map(axes, weights[i, j], causal=keys is None)
            label(axes, tokens, keys or tokens, step)
            axes.set_title(f"layer {layer}, head {head}", fontsize=10)
            if j == 0:
                axes.set_ylabel("this token looks")
            if i == rows - 1:
                axes.set_xlabel("at this one")
    figure.colorbar(image, ax=grid, label="weight", shrink=0.8 if rows == 1 else 0.5, aspect=25)
    figure.suptitle(wrapped, fontsize=12, parse_math=False)  # $ in a text is a dollar, or the mark of the end: no formula
    figure.supxlabel(MEANING, fontsize=9, color="0.35")
    return figure


def map_size(tokens: list[str], keys: list[str], maps: int) -> tuple[float, float, float]:
    """Inches that one map with its labels takes across and down, and that a cell takes, where `maps` of them stand side by side."""
    beside, below = (0.4 + 0.09 * max(map(len, map(shortened, names))) for names in (tokens, keys))
    longer = max(len(tokens), len(keys))
    side = max(1.8, 0.45 * longer) if longer <= WRITTEN_OUT else min(0.2 * longer + 3, 8.0)
    cell = max(2.0, min(side, LONGEST_SIDE / maps - max(beside, below))) / longer
    return max(1.8, cell * len(keys)) + beside, cell * len(tokens) + below, cell


def draw_map(axes: "Axes", weights: Tensor, causal: bool) -> Any:
    """One heat map of weights (T, S): the image, by which the colour bar knows its colours."""
    import matplotlib

    T, S = weights.shape
    colours = matplotlib.colormaps["Blues"].with_extremes(bad="0.9")
    later = np.triu(np.full((T, S), causal), 1)  # what comes later cannot be seen: left out, not drawn as 0
    image = axes.imshow(np.ma.masked_array(weights.numpy(), later), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    if max(T, S) <= WRITTEN_OUT:
        for i, j in zip(*np.nonzero(~later), strict=True):
            weight = float(weights[i, j])
            axes.text(j, i, f"{weight:.2f}", ha="center", va="center", fontsize=8, color="white" if weight > 0.55 else "black")
    return image


def label(axes: "Axes", tokens: list[str], keys: list[str], step: int) -> None:
    """Name every step-th token on both axes."""
    few = max(len(tokens), len(keys)) <= WRITTEN_OUT
    below, beside = ([shortened(name) for name in names[::step]] for names in (keys, tokens))
    size, flat = 9 if few else 7.5, few and max(map(len, below)) <= 3
    axes.set_xticks(range(0, len(keys), step), below, parse_math=False, fontsize=size, rotation=0 if flat else 90)
    axes.set_yticks(range(0, len(tokens), step), beside, parse_math=False, fontsize=size)
    axes.tick_params(length=2)


def page(weights: Tensor, tokens: list[str], layers: list[int], heads: list[int], title: str, keys: list[str] | None = None) -> str:
    """A page of HTML that needs nothing beside itself, with the same maps, one at a time; pointing at a cell tells its weight.

    Arguments as in `draw`. A map is stored in whole hundred-thousandths; of a causal one its lower triangle.
    """
    parts = (weights.double() * 1e5).round().int().tolist()
    if keys is None:
        parts = [[[row[: i + 1] for i, row in enumerate(head)] for head in layer] for layer in parts]
    data = {"title": title, "tokens": tokens, "keys": keys, "layers": layers, "heads": heads, "weights": parts}
    return filled_in(TEMPLATE, data)
