"""The data that a run learned from, for the programs that look at it later."""

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

from data import prepared
from data.prepared import Prepared
from engine import checkpoint
from engine.errors import UserError


def data_of(folder: Path, description: dict[str, Any], remedy: str = "the run could be trained anew") -> Prepared:
    """The prepared data of the run in this folder, of this description, prepared anew when they are gone.

    Raises UserError when that cannot be, or gives others, with the remedy.
    """
    meta, settings = description["data"], checkpoint.settings_of(folder, description)
    module = importlib.import_module(f"data.{settings.dataset}.prepare")
    options = {name: value for name, value in meta.get("options", {}).items() if name != "year"}  # the source's hash tells the year
    place = Path(settings.prepared_dir or module.PREPARED) / prepared.key(meta.get("source_sha256"), options)
    try:
        data = prepared.load(place)
    except UserError:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what it reports is no result
                data = module.prepare(settings)
        except UserError as error:
            raise UserError(
                f"the data that {folder} was trained on are gone, and train.py could not prepare them again ({error}); {remedy}"
            ) from None
    if data.meta["source_sha256"] != meta.get("source_sha256"):
        raise UserError(f"{meta.get('source')} has changed since {folder} was trained on it; the file as it was then would do, or {remedy}")
    if any(data.meta.get(part, {}) != meta.get(part, {}) for part in ("splits", "arrays")):
        raise UserError(f"{folder} was trained on data prepared by another version; the checkout it was trained with would do, or {remedy}")
    return data
