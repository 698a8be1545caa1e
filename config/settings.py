"""Every option there is: its name, type, default, meaning and range.

A config file sets some of them by plain assignments, the command line overrides it, and `check` refuses what cannot work.
"""

import types
import typing
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_type_hints

from engine.errors import UserError
from model import GPTConfig
from zoo.encoder import EncoderConfig
from zoo.ladder import LadderConfig
from zoo.seq2seq import Seq2SeqConfig
from zoo.vit import ViTConfig


@dataclass(frozen=True)
class Range:
    """The numbers an option may take: low to high, the borders included unless said otherwise."""

    low: float
    high: float = 1e12  # beyond that, numbers are mistakes
    above_low: bool = False
    below_high: bool = False

    def __contains__(self, value: float) -> bool:
        return (value > self.low if self.above_low else value >= self.low) and (
            value < self.high if self.below_high else value <= self.high
        )

    def __str__(self) -> str:
        return f"{'above' if self.above_low else 'at least'} {self.low} and {'below' if self.below_high else 'at most'} {self.high:g}"


SEED = Range(0, 2**63 - 1)


@dataclass
class DataSettings:
    """Where data come from and go to: the options that every prepare.py has."""

    source: str | None = None
    """File to learn from (text: or folder); None: what the dataset ships or downloads."""
    prepared_dir: str | None = None
    """Folder for prepared data; None: the dataset's own, such as data/names/prepared."""


@dataclass
class NamesSettings(DataSettings):
    """Options of data/names/prepare.py."""

    year: int | None = None
    """names, sexes: year to take out of the Social Security Administration's names.zip."""
    split_seed: Annotated[int, SEED] = 1337
    """Seed of the split into training, validation and test part."""


@dataclass
class TokenizerSettings(DataSettings):
    """How a long text becomes tokens."""

    tokenizer: Literal["char", "word", "bpe", "gpt2"] = "char"
    """A token a character, a word, a pair of bytes learned from the text, or one of GPT-2's."""
    vocab_size: Annotated[int, Range(3, 1_000_000)] = 1024
    """Tokens a word or bpe vocabulary may have."""
    min_count: Annotated[int, Range(1)] = 2
    """How often a word or a pair of bytes must occur to get a token."""


@dataclass
class OdysseySettings(TokenizerSettings):
    """Options of data/odyssey/prepare.py."""

    footnotes: bool = False
    """odyssey: keep the translator's footnotes, which follow the last book."""


@dataclass
class TextSettings(TokenizerSettings):
    """Options of data/text/prepare.py."""

    field: str = "text"
    """text: the field of a JSON line that holds its text."""


@dataclass
class SexesSettings(DataSettings):
    """Options of data/sexes/prepare.py."""

    year: int | None = None
    """names, sexes: year to take out of the Social Security Administration's names.zip."""
    split_seed: Annotated[int, SEED] = 1337
    """Seed of the split into training, validation and test part."""


@dataclass
class CmudictSettings(DataSettings):
    """Options of data/cmudict/prepare.py."""

    stress: bool = False
    """cmudict: keep the stress of each vowel, as in AH0 and AH1."""
    split_seed: Annotated[int, SEED] = 1337
    """Seed of the split into training, validation and test part."""


@dataclass
class ImagesSettings(DataSettings):
    """Options of data/images/prepare.py."""

    image_size: Annotated[int, Range(1, 4096)] = 8
    """images: pixels of a side, to which each picture of a source is brought."""
    channels: Literal[1, 3] = 1
    """images: 1 for shades of grey, 3 for colours."""
    split_seed: Annotated[int, SEED] = 1337
    """Seed of the split into training, validation and test part."""


DATASETS = {
    "names": NamesSettings,
    "odyssey": OdysseySettings,
    "text": TextSettings,
    "cmudict": CmudictSettings,
    "sexes": SexesSettings,
    "images": ImagesSettings,
}
CONFIGS = {"gpt": GPTConfig, "seq2seq": Seq2SeqConfig, "encoder": EncoderConfig, "vit": ViTConfig}  # by model; others: LadderConfig
ONLY_MODEL = {"cmudict": "seq2seq", "sexes": "encoder", "images": "vit"}  # which there is for these data


@dataclass
class SamplingSettings:
    """How to sample: the options that train.py and sample.py share."""

    num_samples: Annotated[int, Range(1)] = 10
    """Texts to write."""
    max_new_tokens: Annotated[int | None, Range(1, 10_000_000)] = None
    """Longest continuation, in tokens; None: block_size."""
    temperature: Annotated[float, Range(0)] = 1.0
    """Divides the logits: below 1 safer, above 1 wilder, 0 always the likeliest token."""
    top_k: Annotated[int | None, Range(1)] = None
    """Draw from the k likeliest tokens only (and those tied with the k-th); None: from all."""
    top_p: Annotated[float | None, Range(0, 1, above_low=True)] = None
    """Draw from the likeliest tokens that together have this probability; None: from all."""
    min_p: Annotated[float | None, Range(0, 1)] = None
    """Draw from tokens at least this fraction as likely as the likeliest; None: from all."""
    seed: Annotated[int, SEED] = 1337
    """Seed of everything drawn by chance, but for the split."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU when there is one."""


@dataclass
class Settings(NamesSettings, OdysseySettings, TextSettings, CmudictSettings, SexesSettings, ImagesSettings, SamplingSettings):
    """All options of train.py."""

    dataset: Literal["names", "odyssey", "text", "cmudict", "sexes", "images"] = "names"
    """Which folder of data/ prepares what to learn from."""

    model: Literal["gpt", "uniform", "bigram", "mlp", "attention", "transformer", "ngram", "seq2seq", "encoder", "vit"] = "gpt"
    """The GPT of model.py, one of the simpler models that lead up to it (zoo/ladder.py, zoo/ngram.py), or the same block in another
    shape (zoo/seq2seq.py, zoo/encoder.py, zoo/vit.py)."""
    start_from: str | None = None
    """Weights to begin with, as far as they fit: the name or folder of a run, or a config (its run is trained first if need be)."""
    block_size: Annotated[int, Range(1)] = 256
    """Longest context, in tokens."""
    n_layer: Annotated[int, Range(1)] = 4
    """Blocks, one after the other."""
    n_head: Annotated[int, Range(1)] = 4
    """Attention heads in a block."""
    n_embd: Annotated[int, Range(1)] = 128
    """Channels of a token, a multiple of n_head."""
    n_hidden: Annotated[int, Range(1)] = 128
    """mlp, attention: units of the hidden layer."""
    smoothing: Annotated[float | None, Range(0)] = 1.0
    """bigram: added to every count; None: learn the table by gradient descent instead."""
    order: Annotated[int, Range(1, 10)] = 5
    """ngram: characters that are counted together, the one to come included."""
    dropout: Annotated[float, Range(0, 1, below_high=True)] = 0.0
    """Share of activations set to zero in training, of what each branch adds."""
    attention_dropout: Annotated[float | None, Range(0, 1, below_high=True)] = None
    """The same for the attention weights; None: as dropout."""
    embedding_dropout: Annotated[float | None, Range(0, 1, below_high=True)] = None
    """The same for the embeddings; None: as dropout."""
    token_noise: Annotated[float, Range(0, 1, below_high=True)] = 0.0
    """Share of the tokens a model reads that are replaced by others in training, while it still has to predict the right ones; an
    encoder that tells classes gets them masked."""
    bias: bool = True
    """Biases in the linear layers and LayerNorms."""
    attention: Literal["auto", "fused", "manual"] = "auto"
    """Attention in one kernel, or written out; both give the same numbers. auto: the faster here."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Normalisation of the residual stream."""
    norm_place: Literal["pre", "post"] = "pre"
    """seq2seq, encoder, vit: before each branch, or after each sum, as in the original."""
    position: Literal["learned", "rotary", "sinusoidal"] = "learned"
    """How the model knows the order of the tokens."""
    activation: Literal["gelu", "relu", "relu2"] = "gelu"
    """Non-linearity of the MLP."""
    qk_norm: bool = False
    """Normalise queries and keys."""
    tied_head: bool = True
    """Use the token embedding as the output layer too."""
    init: Literal["gpt2", "fan_in"] = "gpt2"
    """Initial weights: GPT-2's, or scaled to each layer's width with branches that start by adding nothing."""
    label_smoothing: Annotated[float, Range(0, 1, below_high=True)] = 0.0
    """seq2seq, encoder, vit: share of each target's probability that is spread over all, in training."""
    mask_share: Annotated[float, Range(0, 1, above_low=True)] = 0.15
    """encoder on names: share of the characters to be guessed."""
    patch_size: Annotated[int, Range(1)] = 2
    """vit: pixels of a side of the patches into which a picture is cut."""
    warp: Annotated[float, Range(0, 1)] = 0.0
    """vit: move, turn and stretch pictures in training, each by chance, by up to this share of half their side."""
    pad_vocab_to: Annotated[int | None, Range(1)] = None
    """Give the token table a multiple of this many rows; None: 64, which suits a GPU, for more than 1,024 tokens, else 1."""

    batch_size: Annotated[int, Range(1)] = 64
    """Rows of block_size tokens in a batch."""
    grad_accum: Annotated[int, Range(1)] = 1
    """Batches a step: their gradients add up to that of one large batch."""
    max_steps: Annotated[int, Range(1)] = 5000
    """Steps (optimizer updates) to train."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all parameters, or Muon for the matrices inside the blocks."""
    learning_rate: Annotated[float, Range(0, above_low=True)] = 1e-3
    """Highest learning rate."""
    warmup_steps: Annotated[int, Range(0)] = 100
    """Steps over which the learning rate rises to it."""
    schedule: Literal["cosine", "linear", "constant", "inverse_sqrt"] = "cosine"
    """How the learning rate falls after that; constant: linearly over the last cooldown_steps, not before; inverse_sqrt: as the
    original Transformer's, with the inverse square root of the step."""
    cooldown_steps: Annotated[int, Range(0)] = 0
    """constant: steps at the end over which the learning rate falls."""
    min_learning_rate: Annotated[float, Range(0)] = 0.0
    """Where it falls to, at max_steps."""
    weight_decay: Annotated[float, Range(0)] = 0.1
    """The optimizer's pull of the matrices towards zero."""
    grad_clip: Annotated[float, Range(0)] = 1.0
    """Longest gradient (norm over all parameters); 0: no limit."""
    ema: Annotated[float, Range(0, 1, below_high=True)] = 0.0
    """Evaluate and keep a running average of the weights that holds this share of itself at each step; 0: the weights themselves."""

    eval_interval: Annotated[int, Range(1)] = 250
    """Steps between evaluations on the validation split, each of which saves a checkpoint."""
    eval_tokens: Annotated[int | None, Range(1)] = None
    """Evaluate on about so many tokens of a split (of pairs, classes and hidden letters: examples), evenly spread; None: on all."""
    log_interval: Annotated[int, Range(1)] = 10
    """Steps between rows of log.csv."""
    patience: Annotated[int, Range(0)] = 0
    """Stop after this many evaluations without a better loss; 0: never."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the matrix products; auto: bfloat16 where the device has units for it, as a short measurement tells on a CPU."""
    compile: Literal["auto", True, False] = "auto"
    """Compile the model with torch.compile: a slow start, then faster steps. auto: when there are minutes of steps to save from."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads on a CPU; None: as many as have enough to do."""
    shard: bool = False
    """With torchrun: each process holds only a part of every layer (FSDP2), for models that do not fit one GPU."""
    tensorboard: bool = False
    """Write the log for TensorBoard too, in the run folder. Needs the extra `log`."""
    wandb: bool = False
    """Send the log to Weights & Biases too. Needs the extra `log`."""

    out_dir: str = "out"
    """Folder of the run folders."""
    run: str | None = None
    """Name of this run's folder in out_dir; None: the config's name."""
    resume: bool = False
    """Go on with the run in that folder, exactly where its last checkpoint left it."""

    def check_data_options(self) -> None:
        """Raise UserError for an option of another dataset, which would be ignored."""
        only = ONLY_MODEL.get(self.dataset)
        if only and self.model != only:
            raise UserError(f"model={self.model} does not fit dataset={self.dataset}; model={only} would")
        if (not only and self.model in ("seq2seq", "vit")) or (self.model == "encoder" and self.dataset not in ("names", "sexes")):
            fit = ", ".join(name for name in DATASETS if ONLY_MODEL.get(name) == self.model)
            raise UserError(f"model={self.model} does not fit dataset={self.dataset}; dataset={fit} would")
        own = {f.name for f in fields(DATASETS[self.dataset])}
        for f in (f for options in DATASETS.values() for f in fields(options)):
            if f.name not in own and getattr(self, f.name) != f.default:
                raise UserError(f"{f.name}={getattr(self, f.name)} means nothing for dataset={self.dataset}; leave it out")

    def without_meaning(self) -> list[str]:
        """Options of the model and its batches that were set, and that this kind of model does not have."""
        own = {
            "gpt": {f.name for f in fields(GPTConfig)},
            "seq2seq": {f.name for f in fields(Seq2SeqConfig)} - {"pad_vocab_to"},
            "encoder": {f.name for f in fields(EncoderConfig)} - {"pad_vocab_to", "tied_head"},
            "vit": {f.name for f in fields(ViTConfig)} - {"pad_vocab_to", "tied_head"},
            "bigram": {"smoothing"},
            "ngram": {"order"},
            "mlp": {"n_embd", "n_hidden"},
            "attention": {"n_embd", "n_hidden", "attention"},
            "transformer": {"n_layer", "n_head", "n_embd", "attention"},
        }.get(self.model, set())
        of_models = {f.name for kind in (*CONFIGS.values(), LadderConfig) for f in fields(kind)} - {"block_size", "vocab_size"}
        guessing = self.model == "encoder" and self.dataset == "names"
        of_batches = {"mask_share": guessing, "warp": self.model == "vit", "token_noise": self.model != "vit" and not guessing}
        unknown = of_models - own | {name for name, has in of_batches.items() if not has}
        return [f.name for f in fields(self) if f.name in unknown and getattr(self, f.name) != f.default]

    def model_config(self, vocab_size: int, shape: dict[str, int] | None = None) -> GPTConfig | LadderConfig:
        """The model these settings describe. vocab_size, shape: what the data say of it. Raises UserError for one that cannot work."""
        kind = CONFIGS.get(self.model, LadderConfig)
        options = {f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)}
        options |= {"vocab_size": vocab_size, **(shape or {})}
        options["attention"] = "fused" if self.attention == "auto" else self.attention
        if self.pad_vocab_to is None and self.model in CONFIGS:
            options["pad_vocab_to"] = 64 if vocab_size > 1024 and self.model == "gpt" else 1
        try:
            return kind(**options) if self.model in CONFIGS else LadderConfig(self.model, **options)
        except ValueError as error:
            raise UserError(str(error)) from None


def check(settings: Any) -> Any:
    """Return settings (any dataclass of this file's kind) with whole numbers made floats where a float is meant.

    Raises UserError for the first value of a wrong type or out of range, naming the option and what would fit.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        limits = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)]
        if hint := typing.get_args(hint)[0] if limits else hint:
            allowed = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
            choices = [choice for kind in allowed for choice in typing.get_args(kind) if typing.get_origin(kind) is Literal]
        if float in allowed and type(value) is int:
            value = float(value)
            setattr(settings, field.name, value)
        if choices:
            if value not in choices and not (value is None and types.NoneType in allowed):
                raise UserError(f"{field.name}={value!r} is not one of {', '.join(map(str, choices))}")
        elif type(value) not in [typing.get_origin(t) or t for t in allowed]:
            names = " or ".join("None" if t is types.NoneType else t.__name__ for t in allowed)
            raise UserError(f"{field.name}={value!r} must be of type {names}")
        for limit in limits:
            if value is not None and value not in limit:
                raise UserError(f"{field.name}={value} must be {limit}")
    return settings
