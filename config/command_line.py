"""From a config file and a command line to settings. Mistakes end in one line; tyro does the parsing and writes `--help`."""

import ast
import contextlib
import io
import itertools
import re
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import tyro

from config.settings import Settings, check
from engine.errors import UserError, nearest

T = TypeVar("T")
CONFIGS = Path(__file__).resolve().parent


def parse(
    options: type[T], arguments: list[str], defaults: T | None = None, description: str | None = None, program: str | None = None
) -> T:
    """Fill the dataclass `options` from arguments like `--n_layer=6`, `--n_layer 6`, `--compile=False` or a lone `--resume`.

    Prints the help and exits for `--help`. Raises UserError for an option there is not, a value of the wrong type or range.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            filled = tyro.cli(
                options,
                args=spelled_out(arguments, options),
                default=options() if defaults is None else defaults,
                prog=program,
                description=description,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction),
            )
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        raise UserError(one_line(complaint.getvalue())) from None
    return check(filled)


def spelled_out(arguments: list[str], options: type) -> list[str]:
    """The arguments as tyro wants them: `--resume` and `--resume=true` become `--resume=True`, `--ban a b` becomes `--ban=a --ban=b`.

    Raises UserError for an option there is not, with the nearest one there is.
    """
    known = {f"--{field.name}": field.type is bool or True in typing.get_args(field.type) for field in fields(options)}  # is it a switch?
    lists = {f"--{field.name}" for field in fields(options) if typing.get_origin(field.type) is list}
    arguments = list(arguments)
    for i, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        name = "--" + name[2:].replace("-", "_")
        if not argument.startswith("--") or name == "--help":
            continue
        if name not in known:
            raise UserError(f"there is no option {name}{nearest(name, list(known))}")
        if name in lists and "=" not in argument:  # --shapes 1,2,3,4 5,6,7,8
            following = list(itertools.takewhile(lambda text: not text.startswith("--"), arguments[i + 1 :]))
            arguments[i : i + 1 + len(following)] = [f"{name}={text}" for text in following] or [name]
        elif known[name]:
            if not value and arguments[i + 1 : i + 2] and arguments[i + 1].lower() in ("true", "false", "auto"):
                value = arguments.pop(i + 1)
            spelled = {"": "True", "true": "True", "false": "False"}
            arguments[i] = f"{name}={spelled.get(value.lower(), value)}"
    return arguments


def one_line(box: str) -> str:
    """tyro's message without its frame and its pointer to --help."""
    rows = [row.strip("│ ") for row in box.splitlines() if row.startswith("│")]
    text = " ".join(row for row in rows if not set(row) <= {"─"})
    text = re.sub(r"\s*For full helptext,.*", "", text).replace(" Argument helptext:", "; the option is")
    text = re.sub(r"Unrecognized options: (.*)", r"\1: an option begins with --, and a value with blanks needs quotes", text)
    text = re.sub(r"Error parsing (--\w+): invalid literal for int\(\) with base 10: '(.*?)'.*", r"\1=\2 is no whole number", text)
    text = re.sub(r"Error parsing (--\w+): no type matching (.*) could be instantiated from \['(.*?)'\].*", r"\1=\3 must be \2", text)
    return text.replace("{None}|", "None or ")


def settings_for_training(arguments: list[str], description: str) -> Settings:
    """The settings of `train.py CONFIG --option=value ...`."""
    if arguments and not arguments[0].startswith("-"):
        defaults = read_config(Path(arguments[0]))
        return parse(Settings, arguments[1:], defaults, description)
    if "--help" in arguments or "-h" in arguments:
        parse(Settings, ["--help"], description=description)
    raise UserError(f"a config file comes first, as in: python train.py config/names.py --n_layer=2; there are: {known_configs()}")


def known_configs() -> str:
    """The experiments in config/, for a message."""
    rooms = ("__init__.py", "settings.py", "command_line.py")
    return ", ".join(str(path.relative_to(CONFIGS.parent)) for path in sorted(CONFIGS.rglob("*.py")) if path.name not in rooms)


def read_config(path: Path) -> Settings:
    """Settings from a file of plain assignments. A value may use numbers, strings, arithmetic and the names set above it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        statements = ast.parse(text).body
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror}; there are: {known_configs()}") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}:{getattr(error, 'lineno', 1)}: not Python ({error}); plain assignments would do") from None
    known = [field.name for field in fields(Settings)]
    values: dict[str, Any] = {}
    for statement in statements:
        place = f"{path}:{statement.lineno}"
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # the docstring
        if not (isinstance(statement, ast.Assign) and [type(target) for target in statement.targets] == [ast.Name]):
            raise UserError(f"{place}: only plain assignments belong here, such as n_layer = 4")
        name = statement.targets[0].id
        if name not in known:
            raise UserError(f"{place}: there is no option {name}{nearest(name, known)}")
        try:
            expression = compile(ast.Expression(statement.value), str(path), "eval")
            values[name] = eval(expression, {"__builtins__": {}}, dict(values))
        except Exception as error:
            raise UserError(f"{place}: {name} has no value ({error}); a number, a text or arithmetic would do") from None
    values.setdefault("run", path.stem)
    try:
        return check(Settings(**values))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
