"""Where the tokens of a model lie: its table of embeddings as a picture, as a page to turn, and whether vowels lie together."""

import math
import textwrap
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engine.files import filled_in
from engine.trace import shortened
from model import GPT
from zoo.ladder import AttentionMLP, SequenceMLP, Transformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("embedding_map.html")
COLOURS = {"vowel": "#d9480f", "consonant": "#1864ab", "boundary": "#2b8a3e", "other": "#868e96"}  # a group each, as in the page
LABELLED = 200  # the first tokens of a vocabulary, which have their text at the point
LABELLED_OF_MANY = 40  # in a picture that cannot be turned or zoomed, of a larger vocabulary
MOST_POINTS = 5000  # of a page
VIEWS = ((20, -60), (20, 30))  # degrees of height and of turn from which the picture looks


def embedding_table(model: nn.Module) -> Tensor:
    """The embedding of each token, (V, C) float32 on the CPU. Raises ValueError for a model that has none."""
    if isinstance(model, GPT):
        weight = model.transformer.wte.weight[: model.config.vocab_size]
    elif isinstance(model, (SequenceMLP, AttentionMLP)):
        weight = model.embedding.weight
    elif isinstance(model, Transformer):
        weight = model.tokens.weight
    else:
        raise ValueError(f"{type(model).__name__} has no embeddings")
    return weight.detach().float().cpu()


def in_three(table: Tensor) -> tuple[Tensor, list[float] | None]:
    """The tokens as points in space: (V, C) -> (V, 3) float64, and the share of the variance that each axis tells.

    Up to three numbers a token are shown as they are, with zeros for what lacks, and None for the shares. More of them become
    their first three principal components (Pearson 1901); of each axis, the entry largest in absolute value is positive.
    """
    table = table.double()
    if table.size(1) <= 3:
        return nn.functional.pad(table, (0, 3 - table.size(1))), None
    centred = table - table.mean(0)
    _, scales, axes = torch.linalg.svd(centred, full_matrices=False)  # (R,), (R, C), R = min(V, C)
    axes = axes[:3] * axes[:3].gather(1, axes[:3].abs().argmax(1, keepdim=True)).sign()
    missing = 3 - len(axes)
    shares = (scales**2 / (scales**2).sum()).nan_to_num()[:3].tolist() + missing * [0.0]
    return nn.functional.pad(centred @ axes.T, (0, missing)), shares


def groups(tokens: list[str], boundary: int) -> list[str]:
    """Of each token: vowel (a, e, i, o, u, with an accent too), consonant (the other letters of the alphabet, y among them),
    boundary or other. Where any token but the boundary is longer than a character (words, byte pairs), no token is a letter.
    """
    letters = all(len(token) == 1 for i, token in enumerate(tokens) if i != boundary)
    found = []
    for i, token in enumerate(tokens):
        base = unicodedata.normalize("NFD", token.lower())[:1] if letters else ""
        if i == boundary:
            found.append("boundary")
        elif base and base in "abcdefghijklmnopqrstuvwxyz":
            found.append("vowel" if base in "aeiou" else "consonant")
        else:
            found.append("other")
    return found


def silhouette(points: Tensor, labels: Tensor) -> float:
    """How well points (N, C) lie with those of their own label (N,) int64: from -1 to 1, 0 for neither (Rousseeuw 1987).

    The mean of (b - a) / max(a, b): a is the mean distance to the others of the same label, b that to the nearest other label.
    A point alone in its group counts 0. Raises ValueError for fewer than two labels.
    """
    if len(labels.unique()) < 2:
        raise ValueError(f"a silhouette needs at least two groups; there are {len(labels.unique())}")
    return _silhouette(distances(points), labels.unique(return_inverse=True)[1])


def distances(points: Tensor) -> Tensor:
    """(N, C) -> (N, N) float64."""
    return torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")


def _silhouette(apart: Tensor, labels: Tensor) -> float:
    """From the distances (N, N), and labels from 0 on."""
    member = nn.functional.one_hot(labels).double()  # (N, K)
    sums, sizes = apart @ member, member.sum(0)
    own = labels[:, None]
    a = sums.gather(1, own)[:, 0] / (sizes[labels] - 1).clamp(min=1)
    b = (sums / sizes).scatter(1, own, math.inf).min(1).values
    score = ((b - a) / torch.maximum(a, b)).nan_to_num(nan=0.0)  # points in one place: 0 / 0
    return float(score.where(sizes[labels] > 1, 0.0).mean())


def silhouette_test(table: Tensor, labels: Tensor, shuffles: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The silhouette, and the share of shuffled labellings that score at least as much. Arguments and errors as of `silhouette`."""
    score, apart = silhouette(table, labels), distances(table)
    labels = labels.unique(return_inverse=True)[1]
    chance = torch.Generator().manual_seed(seed)
    as_much = sum(_silhouette(apart, labels[torch.randperm(len(labels), generator=chance)]) >= score - 1e-12 for _ in range(shuffles))
    return score, as_much / shuffles


def verdict(table: Tensor, kinds: list[str], shuffles: int = 1000) -> str:
    """A sentence: whether the vowels of these groups lie together, and the consonants, in all dimensions of the table (V, C)."""
    letters = [i for i, kind in enumerate(kinds) if kind in ("vowel", "consonant")]
    labels = torch.tensor([int(kinds[i] == "vowel") for i in letters])
    if min(int(labels.sum()), len(letters) - int(labels.sum())) < 2:
        return "vowels and consonants: cannot be tested, as too few of this run's tokens are single letters"
    score, share = silhouette_test(table[letters], labels, shuffles)
    p = (round(share * shuffles) + 1) / (shuffles + 1)
    if p >= 0.05:
        judged = "they lie together no more than by chance"
    else:
        judged = "they lie together" if score > 0 else "nearer together than by chance, but not apart from each other"
    return (
        f"vowels and consonants: silhouette {score:.3f}; of {shuffles:,} shuffled labellings {round(share * shuffles):,} scored as much "
        f"(p = {p:.3f}): {judged}"
    )


def axis_names(shares: list[float] | None) -> list[str]:
    """What the three axes are, from the shares that `in_three` gives."""
    if shares is None:
        return [f"embedding {i}" for i in range(3)]
    return [f"component {i} ({share:.0%} of variance)" for i, share in enumerate(shares, start=1)]


def draw(points: Tensor, tokens: list[str], kinds: list[str], axes_named: list[str], title: str) -> "Figure":
    """The points (V, 3) seen from two sides, in the colour of their group, each with its token (of more than 200, the first 40)."""
    import matplotlib.figure  # slow to import, and needed only here; no pyplot: it would look for a screen

    figure = matplotlib.figure.Figure(figsize=(15, 7))
    figure.subplots_adjust(left=0.01, right=0.97, bottom=0.06, top=0.95, wspace=0.04)
    for place, (height, turn) in enumerate(VIEWS, start=1):
        axes = figure.add_subplot(1, 2, place, projection="3d", elev=height, azim=turn)
        draw_view(axes, points, tokens, kinds)
        axes.set(xlabel=axes_named[0], ylabel=axes_named[1], zlabel=axes_named[2])
    legend = figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=len(COLOURS), frameon=False, fontsize=11)
    for handle in legend.legend_handles:
        handle.set(sizes=[90], alpha=0.8)
    figure.suptitle(textwrap.fill(title, 110, max_lines=2, placeholder=" …"), fontsize=13, parse_math=False)
    return figure


def draw_view(axes: "Axes", points: Tensor, tokens: list[str], kinds: list[str]) -> None:
    """One view. All axes have the same scale: what looks near is near."""
    few = len(tokens) <= LABELLED
    for kind, colour in COLOURS.items():
        chosen = points[[i for i, other in enumerate(kinds) if other == kind]]
        if len(chosen):
            name = f"{kind} ({len(chosen):,})"
            axes.scatter(*chosen.T.numpy(), color=colour, label=name, s=150 if few else 6, alpha=0.3, linewidth=0)
    for point, token, kind in zip(points[: LABELLED if few else LABELLED_OF_MANY].tolist(), tokens, kinds, strict=False):
        axes.text(*point, shortened(token), color=COLOURS[kind], ha="center", va="center", fontsize=11 if few else 7, parse_math=False)
    middle = (points.amax(0) + points.amin(0)) / 2
    half = float((points - middle).abs().max()) * 1.05 or 1.0
    for limit, centre in zip((axes.set_xlim, axes.set_ylim, axes.set_zlim), middle.tolist(), strict=True):
        limit(centre - half, centre + half)
    axes.set_box_aspect((1, 1, 1), zoom=1.0)
    axes.tick_params(labelsize=8)


def page(points: Tensor, tokens: list[str], kinds: list[str], axes_named: list[str], title: str, said: str = "") -> str:
    """A page of HTML that needs nothing beside itself, with the same points to turn; pointing at one tells its token.

    Arguments as in `draw`; said: a line below the points. It holds the first 5,000.
    """
    shown = min(len(tokens), MOST_POINTS)
    if shown < len(tokens):
        said = f"{said} Shown: the first {shown:,} of {len(tokens):,} tokens.".strip()
    places = [[float(f"{x:.5g}") for x in point] for point in points[:shown].tolist()]
    data = {"title": title, "tokens": tokens[:shown], "groups": kinds[:shown], "axes": axes_named, "points": places, "said": said}
    return filled_in(TEMPLATE, {**data, "labelled": LABELLED})
