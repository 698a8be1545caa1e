"""The model that a config describes, be it a GPT or one of the zoo."""

from typing import Any

from model import GPT, GPTConfig
from zoo.encoder import Encoder, EncoderConfig
from zoo.ladder import AttentionMLP, Bigram, LadderConfig, LadderModel, SequenceMLP, Transformer, Uniform
from zoo.ngram import KneserNey
from zoo.seq2seq import Seq2Seq, Seq2SeqConfig
from zoo.vit import ViT, ViTConfig

Config = GPTConfig | LadderConfig
Model = GPT | LadderModel | Seq2Seq | Encoder | ViT
SHAPES = {"seq2seq": (Seq2SeqConfig, Seq2Seq), "encoder": (EncoderConfig, Encoder), "vit": (ViTConfig, ViT)}
LADDER = {
    "uniform": Uniform,
    "bigram": Bigram,
    "mlp": SequenceMLP,
    "attention": AttentionMLP,
    "transformer": Transformer,
    "ngram": KneserNey,
}


def make(config: Config) -> Model:
    """With its initial weights."""
    kind = getattr(config, "kind", None)
    if kind is None:
        return GPT(config)
    return SHAPES[kind][1](config) if kind in SHAPES else LADDER[kind](config)


def config_from(description: dict[str, Any]) -> Config:
    """From the dict that settings.json holds. Raises TypeError or ValueError for what describes no model."""
    if "kind" not in description:
        return GPTConfig(**description)
    kind = SHAPES[description["kind"]][0] if description["kind"] in SHAPES else LadderConfig
    return kind(**description)
