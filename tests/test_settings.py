import math
from dataclasses import fields

import pytest

from benchmarks.parts import PartsSettings
from config.command_line import parse
from config.settings import NamesSettings, OdysseySettings, Range, Settings, TextSettings, check
from engine.errors import UserError
from model import GPTConfig
from sample import SampleSettings


def test_defaults_are_in_range_and_gpt2s():
    settings = check(Settings())
    model = settings.model_config(27)
    gpt2 = GPTConfig()
    for field in fields(GPTConfig):
        if field.name not in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            assert getattr(model, field.name) == getattr(gpt2, field.name), field.name


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("n_layer", 0, "n_layer=0 must be at least 1"),
        ("n_layer", 2.5, "n_layer=2.5 must be of type int"),
        ("n_layer", True, "n_layer=True must be of type int"),
        ("n_layer", "4", "n_layer='4' must be of type int"),
        ("learning_rate", -1, "learning_rate=-1.0 must be above 0"),
        ("learning_rate", math.nan, "learning_rate=nan"),
        ("learning_rate", math.inf, "learning_rate=inf"),
        ("dropout", 1, "dropout=1.0 must be at least 0 and below 1"),
        ("top_k", 0, "top_k=0 must be at least 1"),
        ("top_p", 0.0, "top_p=0.0 must be above 0 and at most 1"),
        ("temperature", math.nan, "temperature=nan"),
        ("seed", -1, "seed=-1"),
        ("schedule", "linaer", "schedule='linaer' is not one of cosine, linear, constant"),
        ("compile", "yes", "compile='yes' is not one of auto, True, False"),
        ("qk_norm", 1, "qk_norm=1 must be of type bool"),
        ("source", 3, "source=3 must be of type str or None"),
    ],
)
def test_values_that_cannot_work(option, value, message):
    with pytest.raises(UserError) as error:
        check(Settings(**{option: value}))
    assert message in str(error.value)


def test_a_whole_number_is_a_fine_float():
    settings = check(Settings(learning_rate=1, top_p=1))
    assert type(settings.learning_rate) is float
    assert type(settings.top_p) is float


def test_a_shape_that_cannot_work_is_a_mistake_of_the_users():
    with pytest.raises(UserError, match="n_embd=64 does not divide by n_head=3; n_embd=63 would fit"):
        Settings(n_embd=64, n_head=3).model_config(27)


def test_range():
    assert 1 in Range(0, 1) and 0 in Range(0, 1)
    assert 0 not in Range(0, above_low=True)
    assert 1 not in Range(0, 1, below_high=True)
    assert 10**400 not in Range(0)
    assert math.nan not in Range(0) and math.inf not in Range(0)


@pytest.mark.parametrize("options", [Settings, NamesSettings, OdysseySettings, TextSettings, SampleSettings, PartsSettings])
def test_every_option_is_documented(options, capsys):
    with pytest.raises(SystemExit):
        parse(options, ["--help"])
    rows = " ".join(capsys.readouterr().out.replace("│", " ").split()).split(" --")
    documented = {row.split()[0] for row in rows if len(row.split("(default")[0].split()) > 4}
    assert {f.name for f in fields(options)} <= documented
