"""Look inside a trained run: python visualize.py KIND [--option=value ...]

    python visualize.py attention --run=names --text=john            where each token looks, in every layer and head
    python visualize.py attention --text=john --layer=0 --head=2     in one of them
    python visualize.py attention --run=pronounce --text=telemachus  which letters each sound of a word looks at
    python visualize.py embeddings --run=names                       where the tokens lie; whether vowels lie together
    python visualize.py bigram                                       which character follows which in the list of names
    python visualize.py bigram --source=cities.txt                   in another list; --run=RUN: in a bigram model
    python visualize.py confusion --run=digits                       which class the model takes for which, on the test split
    python visualize.py patches --run=digits                         where a Vision Transformer looks, in its last layer

It writes a picture, and of attention and embeddings a page for the browser, which tells about what you point at.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch

from config.command_line import parse
from config.settings import NamesSettings, Range
from data.examples import ExampleLoader, pictures
from data.names.prepare import prepare
from data.tokenizers import BOUNDARY, PairTokenizer, Tokenizer
from engine import attention_map, bigram_map, checkpoint, class_pictures, embedding_map
from engine.classifying import text_ids
from engine.device import pick_device
from engine.errors import UserError, nearest, run_program
from engine.files import output_file, replacing, write_text
from engine.pronouncing import pronounce, source_ids
from engine.run_data import data_of
from engine.tasks import task_of
from engine.trace import token_name
from engine.writing import encode_prompt
from model import GPT
from zoo.encoder import Encoder
from zoo.ladder import Bigram
from zoo.seq2seq import Seq2Seq
from zoo.vit import ViT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class AttentionSettings:
    """All options of visualize.py attention."""

    text: str | None = None
    """The text to read; of a model that pronounces, a word."""
    part: Literal["cross", "encoder", "decoder"] | None = None
    """Of an encoder-decoder: where the sounds look among the letters, the letters among themselves, the sounds among themselves;
    None: cross, the first of these."""
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


@dataclass
class EmbeddingsSettings:
    """All options of visualize.py embeddings."""

    picture: str | None = None
    """File for the picture (PNG); None: embeddings.png in the run folder."""
    page: str | None = None
    """File for the page (HTML); None: embeddings.html in the run folder."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""


@dataclass
class BigramSettings:
    """All options of visualize.py bigram."""

    source: str | None = None
    """List of names to count in; None: the bundled one."""
    run: str | None = None
    """Name of a run of a bigram model under out_dir, or its folder: its own table."""
    picture: str | None = None
    """File for the picture (PNG); None: bigram.png in out_dir."""
    out_dir: str = "out"
    """Folder of the run folders."""


@dataclass
class ConfusionSettings:
    """All options of visualize.py confusion."""

    split: Literal["train", "val", "test"] = "test"
    """Part of the run's data to tell the classes of."""
    picture: str | None = None
    """File for the picture (PNG); None: confusion.png in the run folder."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""


@dataclass
class PatchesSettings:
    """All options of visualize.py patches."""

    split: Literal["train", "val", "test"] = "test"
    """Part of the run's data to show pictures of."""
    count: Annotated[int, Range(1, 100)] = 6
    """Pictures to show, evenly spread over the split."""
    layer: Annotated[int | None, Range(0)] = None
    """Number of the layer, from 0 as in the parameters' names; None: the last."""
    picture: str | None = None
    """File for the picture (PNG); None: patches.png in the run folder."""
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
    if isinstance(model, ViT):
        raise UserError(f"{folder} reads pictures, not texts; visualize.py patches shows where it looks")
    if not isinstance(model, GPT | Encoder | Seq2Seq):
        raise UserError(f"{folder} is another model, {model.config.kind}; a run of a GPT would do")
    if settings.part and not isinstance(model, Seq2Seq):
        raise UserError(f"--part={settings.part}: {folder} has no parts, as an encoder-decoder has; leave it out")
    layers = numbers("layer", settings.layer, model.config.n_layer, folder)
    heads = numbers("head", settings.head, model.config.n_head, folder)
    title = f"{folder.name}: {' '.join(settings.text.split())}"
    try:
        if isinstance(model, Seq2Seq):
            weights, tokens, keys, said = maps_of_word(model, tokenizer, settings.text, settings.part or "cross")
            title = f"{title}, {said}" + (f" ({settings.part})" if settings.part else "")
        elif isinstance(model, Encoder):
            ids = text_ids(settings.text, tokenizer, model.config.block_size)
            weights = attention_map.encoder_weights(model, ids)
            tokens = keys = ["[CLS]", *(token_name(i, tokenizer) for i in ids)]
        else:
            opening = checkpoint.opening(folder, description, tokenizer)
            ids = read(settings.text, tokenizer, opening, model.config.block_size)
            weights, tokens, keys = attention_map.attention_weights(model, ids), [token_name(i, tokenizer) for i in ids], None
    except UserError as error:
        raise UserError(f"--text={settings.text[:40]}: {error}; the run is {folder}") from None
    weights = weights[layers][:, heads]  # (L, H, T, S)
    figure = attention_map.draw(weights, tokens, layers, heads, title, keys)
    save(figure, picture, "; the page shows them")
    write_text(page, attention_map.page(weights, tokens, layers, heads, title, keys))
    print(f"the picture is {picture}\nthe page is {page}\n{attention_map.MEANING}")


def maps_of_word(model: Seq2Seq, tokenizer: PairTokenizer, word: str, part: str) -> tuple[torch.Tensor, list[str], list[str] | None, str]:
    """The weights of a part of an encoder-decoder, (n_layer, n_head, T, S), while it says a word; the names of rows and columns, those
    of columns None for a causal map; and what it says. Raises UserError for a word that it cannot read."""
    source = source_ids(word, tokenizer, model.config.block_size)
    sounds = list(pronounce(model, tokenizer, [word])[0][0].sounds)
    size = model.config.block_size  # as many sounds, without an end, are more than the decoder reads: the last one is only written
    target_in = [tokenizer.boundary_id, *tokenizer.target.encode(" ".join(sounds))][:size]
    weights = attention_map.seq2seq_weights(model, source, target_in)[part]
    letters, end = [*tokenizer.source.decode(source[:-1]), BOUNDARY], BOUNDARY
    names = {"cross": ([*sounds, end][:size], letters), "encoder": (letters, letters), "decoder": ([end, *sounds][:size], None)}
    return (weights, *names[part], " ".join(sounds))


def save(figure: "Figure", picture: Path, remedy: str = "") -> None:
    """Write the picture. Says so where its font lacks characters, and the remedy."""
    with warnings.catch_warnings(record=True) as said, replacing(picture) as temporary:
        warnings.simplefilter("always")
        figure.savefig(temporary, format="png", dpi=130)
    if any("Glyph" in str(warning.message) for warning in said):
        print(f"note: the picture's font lacks some of these characters{remedy}", file=sys.stderr)


def numbers(option: str, number: int | None, count: int, folder: Path) -> list[int]:
    """The layers or heads to show. Raises UserError for a number that the model lacks."""
    if number is not None and number >= count:
        raise UserError(f"--{option}={number}: {folder} has {count}; 0 to {count - 1} would fit")
    return list(range(count)) if number is None else [number]


def read(text: str, tokenizer: Tokenizer, opening: list[int], block_size: int) -> list[int]:
    """What a GPT reads: the run's opening and the text. Raises UserError for a text that it cannot read."""
    ids = encode_prompt(tokenizer, text)
    if not ids:
        raise UserError("there are no tokens; --text=john would do")
    if len(opening) + len(ids) > block_size:
        raise UserError(f"{len(ids)} tokens do not fit: block_size={block_size} has room for {block_size - len(opening)}")
    return [*opening, *ids]


def embeddings(arguments: list[str]) -> None:
    """Draw where the tokens of a run lie, and say whether its vowels lie together."""
    settings = parse(EmbeddingsSettings, arguments, description=__doc__, program="visualize.py embeddings")
    folder = checkpoint.find_run(settings.run, settings.out_dir)
    picture = output_file("picture", settings.picture, folder / "embeddings.png")
    page = output_file("page", settings.page, folder / "embeddings.html")
    model, tokenizer = checkpoint.load_run(folder, torch.device("cpu"))
    try:
        table = embedding_map.embedding_table(model)
    except ValueError as error:
        raise UserError(f"{folder}: {error}; a run of another model would do") from None

    tokens = [token_name(i, tokenizer) for i in range(len(table))]
    kinds = embedding_map.groups([tokenizer.decode([i]) for i in range(len(table))], tokenizer.boundary_id)
    points, shares = embedding_map.in_three(table)
    title = f"{folder.name}: the embeddings of {len(table):,} tokens, {table.size(1)} numbers each"
    drawn = (points, tokens, kinds, embedding_map.axis_names(shares), title)
    said = embedding_map.verdict(table, kinds)
    save(embedding_map.draw(*drawn), picture, "; the page shows them")
    write_text(page, embedding_map.page(*drawn, said))
    print(f"the picture is {picture}\nthe page is {page}\n{said}")


def bigram(arguments: list[str]) -> None:
    """Draw which character follows which, in a list of names or in a bigram model."""
    settings = parse(BigramSettings, arguments, description=__doc__, program="visualize.py bigram")
    if settings.source is not None and settings.run is not None:
        raise UserError("--source counts in a list, --run shows the table of a model: only one of them fits")
    picture = output_file("picture", settings.picture, Path(settings.out_dir) / "bigram.png")
    if settings.run is not None:
        folder = checkpoint.find_run(settings.run, settings.out_dir)
        model, tokenizer = checkpoint.load_run(folder, torch.device("cpu"))
        if not isinstance(model, Bigram):
            raise UserError(f"--run={settings.run}: a bigram model has a table to show; this run is of {type(model).__name__}")
        table, title = bigram_map.shares(model), f"{folder.name}: which character follows which, in per cent"
    else:
        data = prepare(NamesSettings(source=settings.source))
        tokens, tokenizer = torch.from_numpy(data.tokens["train"].astype(np.int64)), data.tokenizer
        table = bigram_map.counted(tokens, tokenizer.vocab_size)
        title = f"Which character follows which in {data.meta['documents']['train']:,} names, in per cent"
    if tokenizer.vocab_size > bigram_map.MOST:
        raise UserError(f"{tokenizer.vocab_size} characters are too many for a picture; up to {bigram_map.MOST} would fit")
    save(bigram_map.draw(table, [token_name(i, tokenizer) for i in range(tokenizer.vocab_size)], title), picture)
    print(f"the picture is {picture}")


def confusion(arguments: list[str]) -> None:
    """Draw which class a model takes for which."""
    settings = parse(ConfusionSettings, arguments, description=__doc__, program="visualize.py confusion")
    folder = checkpoint.find_run(settings.run, settings.out_dir)
    picture = output_file("picture", settings.picture, folder / "confusion.png")
    description = checkpoint.read_settings(folder)
    if description["data"].get("kind") != "classes":
        raise UserError(f"{folder} tells no classes; a run that does would do, such as that of config/zoo/digits.py")
    model, _ = checkpoint.load_run(folder, pick_device(settings.device))
    data, trained = data_of(folder, description), checkpoint.settings_of(folder, description)
    lengths, make = task_of("classes", trained.model).examples(settings.split, data, trained)
    told, truth = told_and_true(model, ExampleLoader(lengths, make, trained.batch_size))
    classes = data.meta["classes"]
    title = f"{folder.name}: the {settings.split} split"
    save(class_pictures.draw_confusion(class_pictures.confusion_of(truth, told, len(classes)), classes, title), picture)
    print(f"the picture is {picture}\n{(told == truth).sum():,} of {len(truth):,} are right")


@torch.no_grad()
def told_and_true(model: Any, loader: ExampleLoader) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest class of each example in the model's eyes, and the one with the largest share in fact: (N,) int64 each."""
    device = next(model.parameters()).device
    pairs = [(model(*batch.to(device).inputs[:-1])[0].argmax(1).cpu(), batch.inputs[-1].argmax(1)) for batch in loader.once()]
    told, truth = (torch.cat(parts).numpy() for parts in zip(*pairs, strict=True))
    return told, truth


def patches(arguments: list[str]) -> None:
    """Draw where a Vision Transformer looks."""
    settings = parse(PatchesSettings, arguments, description=__doc__, program="visualize.py patches")
    folder = checkpoint.find_run(settings.run, settings.out_dir)
    picture = output_file("picture", settings.picture, folder / "patches.png")
    description = checkpoint.read_settings(folder)
    model, _ = checkpoint.load_run(folder, pick_device(settings.device))
    if not isinstance(model, ViT):
        raise UserError(f"{folder} reads no pictures; a run of a Vision Transformer would do, such as that of config/zoo/digits.py")
    layer = numbers("layer", settings.layer, model.config.n_layer, folder)[-1]
    data = data_of(folder, description)
    arrays, classes = data.arrays[settings.split], data.meta["classes"]
    chosen = np.unique(np.linspace(0, len(arrays["classes"]) - 1, settings.count).round().astype(int))
    images, truth = arrays["images"][chosen], arrays["classes"][chosen]
    inputs = pictures(images, truth, len(classes))[1](np.arange(len(chosen)), None).inputs[0]

    with torch.no_grad():
        told = model(inputs.to(model.cls.device))[0].argmax(1).tolist()
    weights = class_pictures.attention_to_patches(model, inputs)[:, layer]  # (N, H, patches)
    title = f"{folder.name}: where [CLS] looks in layer {layer}"
    save(class_pictures.draw_patch_attention(images, weights, [classes[i] for i in told], [classes[i] for i in truth], title), picture)
    print(f"the picture is {picture}\n{class_pictures.MEANING}")


PICTURES: dict[str, Callable[[list[str]], None]] = {
    "attention": attention,
    "embeddings": embeddings,
    "bigram": bigram,
    "confusion": confusion,
    "patches": patches,
}


if __name__ == "__main__":
    run_program(main)
