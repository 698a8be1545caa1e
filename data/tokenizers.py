"""Text to token ids and back.

Every tokenizer has the same small interface: `encode(text) -> ids`, `decode(ids) -> text`, `vocab_size`, `boundary_id` (the
token that begins and ends a document), `save(path)`; `load(path)` brings any of them back.
"""

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from engine.errors import UserError
from engine.files import write_text

BOUNDARY = "$"


class CharTokenizer:
    """One token a character. Id 0 is the boundary `$`; the characters follow in code point order.

    Text is brought to Unicode's composed form (NFC), so that é is one character however it was typed, and with `lowercase`
    to lower case, so that a prompt may be written `Ada`.
    """

    boundary_id = 0

    def __init__(self, characters: Iterable[str], lowercase: bool = False) -> None:
        self.characters = [BOUNDARY, *sorted(set(characters) - {BOUNDARY})]
        self.lowercase = lowercase
        self.ids = {character: i for i, character in enumerate(self.characters)}

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def normalize(self, text: str) -> str:
        """The form in which text is encoded."""
        return unicodedata.normalize("NFC", text.lower() if self.lowercase else text)

    def encode(self, text: str) -> list[int]:
        """Raises UserError for a character that is not in the vocabulary, naming it and those that are."""
        try:
            return [self.ids[character] for character in self.normalize(text)]
        except KeyError as error:
            known = "".join(self.characters[1:])
            raise UserError(f"unknown character {error.args[0]!r} in {text[:40]!r}; the known ones are {known}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The inverse of `encode`, boundaries included."""
        return "".join(self.characters[i] for i in ids)

    def save(self, path: Path) -> None:
        """Write all that `load` needs, as JSON."""
        description = {"kind": "char", "characters": self.characters[1:], "lowercase": self.lowercase}
        write_text(path, json.dumps(description, ensure_ascii=False, indent=1) + "\n")


def load(path: Path) -> CharTokenizer:
    """The tokenizer saved at `path`. Raises UserError for a file that does not hold one."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        if description["kind"] != "char":
            raise KeyError(description["kind"])
        return CharTokenizer(description["characters"], description["lowercase"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds no tokenizer this version knows ({type(error).__name__}: {error})") from None


def encode_documents(documents: list[str], tokenizer: CharTokenizer) -> np.ndarray:
    """["ada", "eve"] -> the ids of $ada$eve$, the form of a rows split."""
    return np.array(tokenizer.encode(BOUNDARY + BOUNDARY.join(documents) + BOUNDARY))


def decode_documents(tokens: Iterable[int], tokenizer: CharTokenizer) -> list[str]:
    """The inverse of `encode_documents`."""
    return tokenizer.decode(tokens)[1:-1].split(BOUNDARY)
