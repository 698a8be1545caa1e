"""The model that a config describes, be it a GPT or one of the zoo."""

from typing import Any

from model import GPT, GPTConfig
from zoo.ladder import AttentionMLP, Bigram, LadderConfig, LadderModel, SequenceMLP, Transformer, Uniform
from zoo.ngram import KneserNey

Config = GPTConfig | LadderConfig
Model = GPT | LadderModel
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
    return GPT(config) if isinstance(config, GPTConfig) else LADDER[config.kind](config)


def config_from(description: dict[str, Any]) -> Config:
    """From the dict that settings.json holds. Raises TypeError or ValueError for what describes no model."""
    return (LadderConfig if "kind" in description else GPTConfig)(**description)
