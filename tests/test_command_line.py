import pytest
from conftest import ROOT

from config.command_line import parse, read_config, settings_for_training
from config.settings import NamesSettings, Settings
from engine.errors import UserError

NAMES = str(ROOT / "config/names.py")


def from_line(*arguments):
    return settings_for_training([NAMES, *arguments], "")


def test_the_command_line_overrides_the_file():
    assert from_line().n_layer == read_config(ROOT / "config/names.py").n_layer
    assert from_line("--n_layer=6").n_layer == 6
    assert from_line("--n_layer", "6").n_layer == 6
    assert from_line("--n_layer=6").n_head == from_line().n_head
    assert from_line().run == "names"
    assert from_line("--run=mine").run == "mine"


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        (["--compile=True"], "compile", True),
        (["--compile=false"], "compile", False),
        (["--compile", "auto"], "compile", "auto"),
        (["--compile"], "compile", True),
        (["--resume"], "resume", True),
        (["--resume", "--n_layer=3"], "resume", True),
        (["--resume", "False"], "resume", False),
        (["--learning_rate=1"], "learning_rate", 1.0),
        (["--learning_rate=1e-4"], "learning_rate", 1e-4),
        (["--source=a=b.txt"], "source", "a=b.txt"),
        (["--source", "true"], "source", "true"),
        (["--source=false"], "source", "false"),
        (["--resume", "true", "--n_layer=3"], "n_layer", 3),
        (["--n-layer=3"], "n_layer", 3),
        (["--top_k=None"], "top_k", None),
        (["--top_k=5"], "top_k", 5),
        (["--n_layer=2", "--n_layer=3"], "n_layer", 3),
    ],
)
def test_ways_to_say_it(arguments, option, value):
    got = getattr(from_line(*arguments), option)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--n_layr=2"], ["--n_layr", "--n_layer"]),
        (["--n_layer=x"], ["--n_layer=x is no whole number"]),
        (["--n_layer=2.5"], ["--n_layer", "2.5"]),
        (["--n_layer"], ["--n_layer"]),
        (["--n_layer=-1"], ["n_layer=-1", "at least 1"]),
        (["--learning_rate=-1"], ["learning_rate=-1", "above 0"]),
        (["--learning_rate=nan"], ["learning_rate=nan"]),
        (["--dtype=float8"], ["dtype", "float8", "bfloat16"]),
        (["--compile=maybe"], ["compile", "maybe"]),
        (["stray"], ["stray"]),
    ],
)
def test_mistakes_end_in_one_line(arguments, parts):
    with pytest.raises(UserError) as error:
        from_line(*arguments)
    message = str(error.value)
    assert "\n" not in message and "│" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("arguments", [[], ["--n_layer=6"]])
def test_without_a_config_those_there_are_listed(arguments):
    with pytest.raises(UserError, match=r"there are: .*config/names.py") as error:
        settings_for_training(arguments, "")
    assert "settings.py" not in str(error.value)


def test_help_shows_every_option_and_the_configs_values(capsys):
    for arguments in (["--help"], [NAMES, "--help"]):
        with pytest.raises(SystemExit) as stop:
            settings_for_training(arguments, "Train.")
        assert stop.value.code == 0
        out = capsys.readouterr().out
        assert all(f"--{name}" in out for name in vars(Settings()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_layr = 2", r":1: there is no option n_layr; did you mean n_layer\?"),
        ("n_layer = 2\nn_head = 'two'", "n_head='two' must be of type int"),
        ("n_layer = 0", "n_layer=0 must be at least 1"),
        ("\nimport os", ":2: only plain assignments"),
        ("for i in range(3): pass", ":1: only plain assignments"),
        ("n_layer =", ":1: not Python"),
        ("n_layer = four", ":1: n_layer has no value"),
        ("n_layer = open('x')", ":1: n_layer has no value"),
        ("n_layer = 1 / 0", ":1: n_layer has no value"),
        ("a.b = 3", ":1: only plain"),
        ("n_layer = n_head = 3", ":1: only plain"),
    ],
)
def test_config_files_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "c.py"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_config(path)
    assert str(path) in str(error.value)


def test_config_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes('\ufeff"""Mine."""\r\nmax_steps = 4 * 50  # é\r\nwarmup_steps = max_steps // 10\r\nlearning_rate = 1\r\n'.encode())
    settings = read_config(path)
    assert (settings.max_steps, settings.warmup_steps, settings.run, settings.learning_rate) == (200, 20, "mine", 1.0)
    with pytest.raises(UserError, match="cannot read the config .*nowhere.py.*config/names.py"):
        read_config(tmp_path / "nowhere.py")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="mine.py.*codec can't decode"):
        read_config(path)


def test_parse_fills_any_dataclass():
    assert parse(NamesSettings, ["--year=1990"]) == NamesSettings(year=1990)
    assert parse(NamesSettings, [], NamesSettings(split_seed=5)).split_seed == 5
