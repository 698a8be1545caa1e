"""What a model that tells classes takes for what, and where a Vision Transformer looks: as pictures."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.generation import evaluating
from engine.trace import shortened
from zoo.block import SelfAttention
from zoo.vit import ViT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANING = "A weight shows how much of a patch [CLS] mixed in, not why."
WRITTEN_OUT = 15  # classes up to which every cell holds its number
LABELLED = 60  # classes up to which every class has its label


def confusion_of(truth: np.ndarray, told: np.ndarray, n_classes: int) -> np.ndarray:
    """How often what is of one class, truth (N,), was told to be of another, told (N,): (n_classes, n_classes), truth by row."""
    return np.bincount(truth * n_classes + told, minlength=n_classes**2).reshape(n_classes, n_classes)


def draw_confusion(confusion: np.ndarray, classes: Sequence[str], title: str) -> "Figure":
    """A row for each true class, a column for each that was told, of counts (K, K). A cell's colour is its share of the row:
    blue where it is right, red where it is wrong, on a scale of its own, so that few mistakes can be seen beside many hits.
    Up to 15 classes every cell that is not 0 holds its count."""
    import matplotlib
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    K = len(confusion)
    shares = confusion / confusion.sum(1, keepdims=True).clip(1)
    diagonal = np.eye(K, dtype=bool)
    worst = float(shares[~diagonal].max(initial=0)) or 1.0
    names = [shortened(name) for name in classes]
    labels = 0.09 * max(map(len, names))
    side = max(3.2, 0.45 * K) if K <= WRITTEN_OUT else min(0.2 * K + 3, 14)
    figure = matplotlib.figure.Figure(figsize=(side + labels + 3.2, side + labels + 1.4), layout="constrained")
    axes = figure.subplots()
    parts = (("Blues", ~diagonal, 1.0, "right: share of the row"), ("Reds", diagonal, worst, "wrong: share of the row"))
    for colours, left_out, top, meaning in parts:
        colour_map = matplotlib.colormaps[colours].with_extremes(bad=(0, 0, 0, 0))
        image = axes.imshow(np.ma.masked_array(shares, left_out), cmap=colour_map, vmin=0, vmax=top, interpolation="nearest")
        figure.colorbar(image, ax=axes, label=meaning, shrink=0.7, format=lambda share, _: f"{share:.3g}")
    if K <= WRITTEN_OUT:
        for i, j in zip(*np.nonzero(confusion), strict=True):
            dark = shares[i, j] > 0.6 * (1.0 if i == j else worst)
            axes.text(j, i, f"{confusion[i, j]:,}", ha="center", va="center", fontsize=9, color="white" if dark else "black")
    places = range(0, K, -(-K // LABELLED))
    flat = K <= WRITTEN_OUT and max(map(len, names)) <= 3
    axes.set_xticks(places, [names[i] for i in places], parse_math=False, fontsize=9, rotation=0 if flat else 90)
    axes.set_yticks(places, [names[i] for i in places], parse_math=False, fontsize=9)
    axes.set(xlabel="told", ylabel="truth")
    axes.tick_params(length=2)
    right = int(confusion.trace())
    text = f"{title}\n{right:,} of {confusion.sum():,} right"
    figure.suptitle(
        "\n".join(textwrap.fill(line, int(9 * (side + labels + 3))) for line in text.split("\n")), fontsize=12, parse_math=False
    )
    return figure


@torch.no_grad()
def attention_to_patches(model: ViT, images: Tensor) -> Tensor:
    """The weights with which [CLS] looks at the patches of images (N, channels, H, W), float: (N, n_layer, n_head, patches) float32
    on the CPU, row by row of a picture. What is missing to 1 is what it looks at itself. They are those of the manual path,
    without dropout. Raises ValueError for images that the model cannot read."""
    taken: list[Tensor] = []

    def take(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        weights = module.forward(*args, **kwargs, return_weights=True)[1]  # not module(): that calls hooks
        taken.append(weights[:, :, 0, 1:].float().cpu())  # (N, H, patches): of [CLS], which comes first

    before = model.config.attention
    layers = [module for module in model.modules() if isinstance(module, SelfAttention)]
    hooks = [layer.register_forward_hook(take, with_kwargs=True) for layer in layers]
    try:
        model.config.attention = "manual"
        with evaluating(model):
            model(images.to(model.cls.device))
    finally:
        model.config.attention = before
        for hook in hooks:
            hook.remove()
    return torch.stack(taken, dim=1)


def draw_patch_attention(images: np.ndarray, weights: Tensor, told: Sequence[str], truth: Sequence[str], title: str) -> "Figure":
    """A row for each of images (N, channels, H, W) uint8: the picture; beside it where [CLS] looks, on average and in each head.

    weights: (N, n_head, patches), those of one layer; told, truth: the class of each image, in the model's eyes and in fact.
    A patch is the more orange the larger its weight is beside the largest of its row; each map's own largest stands above it.
    """
    import matplotlib.colors
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    N, n_head, patches = weights.shape
    side = round(patches**0.5)
    height, width = images.shape[2:]
    maps = torch.cat((weights.mean(1, keepdim=True), weights), dim=1).view(N, n_head + 1, side, side).numpy()
    columns = n_head + 2
    figure = matplotlib.figure.Figure(figsize=(max(5.5, 1.6 * columns + 0.6), 1.75 * N + 1.3), layout="constrained")
    grid = figure.subplots(N, columns, squeeze=False)
    orange = (1.0, 0.45, 0.0)
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("orange", [(*orange, 0.0), (*orange, 0.9)])  # of nothing, the picture
    for i in range(N):
        picture = images[i].transpose(1, 2, 0)  # (H, W, channels)
        grey = picture.mean(2)
        shown = picture if picture.shape[2] == 3 else grey
        wrong = told[i] != truth[i]
        grid[i, 0].imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        said = f"{shortened(told[i])}, but it is {shortened(truth[i])}" if wrong else shortened(told[i])
        grid[i, 0].set_title(f"told: {said}", fontsize=9, color="C3" if wrong else "black", parse_math=False)
        for j, name in enumerate(["mean", *(f"head {head}" for head in range(n_head))], start=1):
            axes = grid[i, j]
            axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            extent = (-0.5, width - 0.5, height - 0.5, -0.5)  # a patch lies over its pixels
            image = axes.imshow(maps[i, j - 1], cmap=colours, vmin=0, vmax=maps[i].max(), extent=extent, interpolation="nearest")
            axes.set_title(f"{name}: {maps[i, j - 1].max():.2f}", fontsize=9)
        for axes in grid[i]:
            axes.set_axis_off()
    bar = figure.colorbar(image, ax=grid, label="weight, in parts of the row's largest", shrink=0.8 if N == 1 else 0.5, aspect=25)
    bar.set_ticks([0, float(maps[-1].max())], labels=["0", "1"])
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth()), max_lines=2, placeholder=" …"), fontsize=12, parse_math=False)
    figure.supxlabel(f"above each map: its largest weight. {MEANING}", fontsize=9, color="0.35")
    return figure
