"""Which character follows which, as a picture: the table of a bigram model."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.ladder import Bigram, LadderConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 150  # characters that a picture has room for
WRITTEN_OUT = 60  # characters up to which every cell holds its number


def counted(tokens: Tensor, vocab_size: int) -> Tensor:
    """How often each token follows each, of tokens (N,) int64: shares (V, V) that sum to 1 in a row; nan in one of a token never seen."""
    model = Bigram(LadderConfig(kind="bigram", smoothing=0.0, vocab_size=vocab_size))
    model.count(tokens)
    never = torch.bincount(tokens[:-1], minlength=vocab_size) == 0
    return shares(model).masked_fill(never[:, None], float("nan"))


def shares(model: Bigram) -> Tensor:
    """The table of a model: P(next | last), (V, V) float32 on the CPU, a row for each last token."""
    return model.table.detach().float().cpu().softmax(-1)


def draw(table: Tensor, tokens: list[str], title: str) -> "Figure":
    """A heat map of shares (V, V), with per cents written into the cells where there are few enough; what is below 0.5 % stays empty.

    tokens: V texts, the first of them the boundary.
    """
    import matplotlib
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen
    import numpy as np
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import PercentFormatter

    V = len(tokens)
    side = max(4.0, (0.36 if V <= WRITTEN_OUT else 0.16) * V)
    figure = matplotlib.figure.Figure(figsize=(side + 2.2, side + 1.4), layout="constrained")
    axes = figure.subplots()
    values = np.ma.masked_invalid(table.numpy())
    highest = max(float(values.max()) if values.count() else 1.0, 1e-6)
    colours = matplotlib.colormaps["Blues"].with_extremes(bad="0.9")
    image = axes.imshow(values, cmap=colours, norm=PowerNorm(0.5, 0, highest), interpolation="nearest")  # small shares can be told apart
    axes.set_xticks(range(V), tokens, parse_math=False, fontsize=10 if V <= WRITTEN_OUT else 7)
    axes.set_yticks(range(V), tokens, parse_math=False, fontsize=10 if V <= WRITTEN_OUT else 7)
    axes.tick_params(length=2, top=True, labeltop=True)
    axes.set_xlabel(f"is followed by this one ({tokens[0]}: the end)", parse_math=False, fontsize=11)
    axes.set_ylabel(f"this character ({tokens[0]}: the beginning)", parse_math=False, fontsize=11)
    if V <= WRITTEN_OUT:
        for (i, j), share in np.ndenumerate(values.filled(0)):
            if share >= 0.005:
                colour = "white" if share > 0.35 * highest else "black"
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8.5, color=colour)
    figure.colorbar(image, ax=axes, label="share of what follows", format=PercentFormatter(1, 0), shrink=0.6, aspect=30)
    figure.suptitle(title, fontsize=13, parse_math=False)
    return figure
