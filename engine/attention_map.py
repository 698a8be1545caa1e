"""Where each token of a text looks: the attention weights of a model, as a picture and as a page to point at."""

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.files import filled_in
from engine.generation import evaluating
from engine.trace import shortened
from model import GPT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANING = "A weight shows how much of a token was mixed in, not why."
TEMPLATE = Path(__file__).with_name("attention_map.html")
WRITTEN_OUT = 12  # tokens up to which every cell holds its number
LONGEST_SIDE = 60  # inches of a picture, where that leaves each map 2


@torch.no_grad()
def attention_weights(model: GPT, ids: list[int]) -> Tensor:
    """The weights with which the tokens of one text look at each other: (n_layer, n_head, T, T) float32 on the CPU.

    Row i of a head is the token that looks, column j the one it looks at; a row sums to 1. They are those of the manual path,
    without dropout. Raises ValueError for a text that the model cannot read: an empty one, one longer than block_size.
    """
    taken: list[Tensor] = []

    def take(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        taken.append(module.forward(*args, **kwargs, return_weights=True)[1][0].float().cpu())  # not module(): that calls hooks

    before = model.config.attention
    hooks = [block.attn.register_forward_hook(take, with_kwargs=True) for block in model.transformer.h]
    try:
        model.config.attention = "manual"
        with evaluating(model):
            model(torch.tensor([ids], dtype=torch.int64, device=model.transformer.wte.weight.device))
    finally:
        model.config.attention = before
        for hook in hooks:
            hook.remove()
    return torch.stack(taken)


def draw(weights: Tensor, tokens: list[str], layers: list[int], heads: list[int], title: str) -> "Figure":
    """A heat map for each layer (a row of the picture) and head (a column).

    weights: (L, H, T, T), those of the layers and heads named; tokens: T texts. Up to 12 tokens every cell holds its number;
    of tokens too many to label, every k-th has its label.
    """
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    rows, columns, T = len(layers), len(heads), len(tokens)
    cells, labels = map_size(tokens, max(rows, columns))
    width = max(5.5, columns * (cells + labels) + 1.6)
    wrapped = textwrap.fill(title, int(7 * width), max_lines=3, placeholder=" …")
    figure = matplotlib.figure.Figure(figsize=(width, rows * (cells + labels + 0.3) + 1.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    step = math.ceil(10 / (72 * cells / T))  # a label is 10 points high
    for i, layer in enumerate(layers):
        for j, head in enumerate(heads):
            axes = grid[i, j]
            image = draw_map(axes, weights[i, j])
            label(axes, tokens, step)
            axes.set_title(f"layer {layer}, head {head}", fontsize=10)
            if j == 0:
                axes.set_ylabel("this token looks")
            if i == rows - 1:
                axes.set_xlabel("at this one")
    figure.colorbar(image, ax=grid, label="weight", shrink=0.8 if rows == 1 else 0.5, aspect=25)
    figure.suptitle(wrapped, fontsize=12, parse_math=False)  # $ in a text is a dollar, or the mark of the end: no formula
    figure.supxlabel(MEANING, fontsize=9, color="0.35")
    return figure


def map_size(tokens: list[str], maps: int) -> tuple[float, float]:
    """Inches that the cells and the labels of one map take, where `maps` of them stand side by side."""
    T = len(tokens)
    labels = 0.4 + 0.09 * max(map(len, map(shortened, tokens)))
    cells = max(1.8, 0.45 * T) if T <= WRITTEN_OUT else min(0.2 * T + 3, 8.0)
    return max(2.0, min(cells, LONGEST_SIDE / maps - labels)), labels


def draw_map(axes: "Axes", weights: Tensor) -> Any:
    """One heat map of weights (T, T): the image, by which the colour bar knows its colours."""
    import matplotlib
    import numpy as np

    T = len(weights)
    colours = matplotlib.colormaps["Blues"].with_extremes(bad="0.9")
    later = np.triu(np.ones((T, T), dtype=bool), 1)  # what comes later cannot be seen: left out, not drawn as 0
    image = axes.imshow(np.ma.masked_array(weights.numpy(), later), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    if T <= WRITTEN_OUT:
        for i in range(T):
            for j in range(i + 1):
                weight = float(weights[i, j])
                axes.text(j, i, f"{weight:.2f}", ha="center", va="center", fontsize=8, color="white" if weight > 0.55 else "black")
    return image


def label(axes: "Axes", tokens: list[str], step: int) -> None:
    """Name every step-th token on both axes."""
    places = range(0, len(tokens), step)
    names = [shortened(tokens[place]) for place in places]
    size = 9 if len(tokens) <= WRITTEN_OUT else 7.5
    flat = len(tokens) <= WRITTEN_OUT and max(map(len, names)) <= 3
    axes.set_xticks(places, names, parse_math=False, fontsize=size, rotation=0 if flat else 90)
    axes.set_yticks(places, names, parse_math=False, fontsize=size)
    axes.tick_params(length=2)


def page(weights: Tensor, tokens: list[str], layers: list[int], heads: list[int], title: str) -> str:
    """A page of HTML that needs nothing beside itself, with the same maps, one at a time; pointing at a cell tells its weight.

    Arguments as in `draw`. A map is stored as its lower triangle, in whole hundred-thousandths.
    """
    parts = (weights.double() * 1e5).round().int().tolist()
    triangles = [[[row[: i + 1] for i, row in enumerate(head)] for head in layer] for layer in parts]
    data = {"title": title, "tokens": tokens, "layers": layers, "heads": heads, "weights": triangles}
    return filled_in(TEMPLATE, data)
