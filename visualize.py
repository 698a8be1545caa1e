"""Look inside a trained run: python visualize.py KIND [--option=value ...]

    python visualize.py attention --run=names --text=john            where each token looks, in every layer and head
    python visualize.py attention --text=john --layer=0 --head=2     in one of them

It writes a picture, and a page for the browser that tells the weight of the cell you point at.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from config.command_line import parse
from config.settings import Range
from data.tokenizers import Tokenizer
from engine import attention_map, checkpoint
from engine.device import pick_device
from engine.errors import UserError, nearest, run_program
from engine.files import output_file, replacing, write_text
from engine.trace import token_name
from engine.writing import encode_prompt


@dataclass
class AttentionSettings:
    """All options of visualize.py attention."""

    text: str | None = None
    """The text to read."""
    layer: Annotated[int | None, Range(0)] = None
    """Number of a layer, from 0 as in the parameters' names; None: all."""
    head: Annotated[int | None, Range(0)] = None
    """Number of a head, from 0; None: all."""
    picture: str | None = None
    """File for the picture (PNG); None: attention.png in the run folder."""
    page: str | None = None
    """File for the page (HTML); None: attention.html in the run folder."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""


def main(arguments: list[str]) -> None:
    kind, *rest = arguments or [""]
    if kind in ("--help", "-h"):
        print(__doc__.strip())
        print(f"\nKINDs: {', '.join(PICTURES)}. The options of one: python visualize.py attention --help")
        return
    if not kind or kind.startswith("-"):
        raise UserError(
            f"the kind of picture comes first, as in: python visualize.py attention --text=john; there are: {', '.join(PICTURES)}"
        )
    if kind not in PICTURES:
        raise UserError(f"there is no picture {kind!r}{nearest(kind, list(PICTURES))}; there are: {', '.join(PICTURES)}")
    PICTURES[kind](rest)


def attention(arguments: list[str]) -> None:
    """Draw where the tokens of a text look."""
    settings = parse(AttentionSettings, arguments, description=__doc__, program="visualize.py attention")
    if settings.text is None:
        raise UserError("there is no text to read; --text=john would do")
    folder = checkpoint.find_run(settings.run, settings.out_dir)
    picture = output_file("picture", settings.picture, folder / "attention.png")
    page = output_file("page", settings.page, folder / "attention.html")
    description = checkpoint.read_settings(folder)
    model, tokenizer = checkpoint.load_run(folder, pick_device(settings.device))
    layers = numbers("layer", settings.layer, model.config.n_layer, folder)
    heads = numbers("head", settings.head, model.config.n_head, folder)
    opening = checkpoint.opening(folder, description, tokenizer)
    ids = read(settings.text, tokenizer, opening, model.config.block_size, folder)

    weights = attention_map.attention_weights(model, ids)[layers][:, heads]  # (L, H, T, T)
    tokens = [token_name(i, tokenizer) for i in ids]
    title = f"{folder.name}: {' '.join(settings.text.split())}"
    figure = attention_map.draw(weights, tokens, layers, heads, title)
    with warnings.catch_warnings(record=True) as said, replacing(picture) as temporary:
        warnings.simplefilter("always")
        figure.savefig(temporary, format="png", dpi=130)
    if any("Glyph" in str(warning.message) for warning in said):
        print("note: the picture's font lacks some of these characters; the page shows them", file=sys.stderr)
    write_text(page, attention_map.page(weights, tokens, layers, heads, title))
    print(f"the picture is {picture}\nthe page is {page}\n{attention_map.MEANING}")


def numbers(option: str, number: int | None, count: int, folder: Path) -> list[int]:
    """The layers or heads to show. Raises UserError for a number that the model lacks."""
    if number is not None and number >= count:
        raise UserError(f"--{option}={number}: {folder} has {count}; 0 to {count - 1} would fit")
    return list(range(count)) if number is None else [number]


def read(text: str, tokenizer: Tokenizer, opening: list[int], block_size: int, folder: Path) -> list[int]:
    """What the model reads: the run's opening and the text. Raises UserError for a text that it cannot read."""
    try:
        ids = encode_prompt(tokenizer, text)
    except UserError as error:
        raise UserError(f"--text={text}: {error}; the run is {folder}") from None
    if not ids:
        raise UserError(f"--text={text} has no tokens; --text=john would do")
    if len(opening) + len(ids) > block_size:
        raise UserError(
            f"--text has {len(ids)} tokens; {folder} reads block_size={block_size} at once, of which {block_size - len(opening)} would fit"
        )
    return [*opening, *ids]


PICTURES: dict[str, Callable[[list[str]], None]] = {"attention": attention}


if __name__ == "__main__":
    run_program(main)
