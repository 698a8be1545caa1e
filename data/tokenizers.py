"""Text to token ids and back: characters, words, byte pairs.

Every tokenizer has the same small interface:

    encode(text) -> list of ids           raises UserError for what it has no token for
    encode_all(text) -> array of ids      the same, but what it has no token for becomes `unknown_id`
    decode(ids) -> text
    vocab_size, boundary_id               the boundary is the token between two documents
    unknown_id                            None for a tokenizer that knows everything
    token_bytes() -> (vocab_size,) array  how many UTF-8 bytes of text each token stands for
    save(path); load(path)                brings any of them back
"""

import base64
import json
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.errors import UserError
from engine.files import write_text

BOUNDARY = "$"  # of names; longer texts need the dollar sign for itself
END_OF_TEXT = "<|endoftext|>"  # how the boundary of all others is shown; the same letters in a text are ordinary text


# ------------------------------------------------------------------------------------------------------------------------
# Characters


class CharTokenizer:
    """One token a character. Id 0 is the boundary; then `unknown`, when given; then the characters in code point order.

    With `fold`, text is brought to lower case and to Unicode's composed form (NFC) first, so that a prompt may be written
    `Ada`, and é is one character however it was typed.
    """

    boundary_id = 0

    def __init__(self, characters: Iterable[str], fold: bool = False, boundary: str = BOUNDARY, unknown: str | None = None) -> None:
        self.fold, self.boundary, self.unknown = fold, boundary, unknown
        self.unknown_id = None if unknown is None else 1
        special = [boundary] if unknown is None else [boundary, unknown]
        self.ordinary = sorted(set(characters) - {boundary})
        self.characters = [*special, *self.ordinary]
        self.ids = {boundary: self.boundary_id} | {character: i for i, character in enumerate(self.ordinary, start=len(special))}

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        try:
            return [self.ids[character] for character in self._form(text)]
        except KeyError as error:
            known = "".join(character if character.isprintable() else repr(character)[1:-1] for character in self.ordinary)
            known = known if len(known) <= 200 else known[:200] + "..."
            raise UserError(f"unknown character {error.args[0]!r} in {text[:40]!r}; the known ones are {known}") from None

    def encode_all(self, text: str) -> np.ndarray:
        if self.unknown_id is None:
            return np.array(self.encode(text), dtype=np.int64)
        return np.array([self.ids.get(character, self.unknown_id) for character in self._form(text)], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def token_bytes(self) -> np.ndarray:
        lengths = np.array([len(character.encode("utf-8")) for character in self.characters])
        lengths[[i for i in (self.boundary_id, self.unknown_id) if i is not None]] = 0
        return lengths

    def save(self, path: Path) -> None:
        """Write all that `load` needs, as JSON."""
        options = {"fold": self.fold, "boundary": self.boundary, "unknown": self.unknown}
        description = {"kind": "char", "characters": self.ordinary, **options}
        write_text(path, json.dumps(description, ensure_ascii=False, indent=1) + "\n")

    def _form(self, text: str) -> str:
        check_unicode(text)
        return unicodedata.normalize("NFC", text.lower()) if self.fold else text


# ------------------------------------------------------------------------------------------------------------------------
# Words

UNKNOWN_WORD = "[UNK]"
WORD_OR_MARK = r" ?\w+|[^\w]"  # a word with the blank before it, or one character that is in no word: a comma, a line end, ...


class WordTokenizer:
    """One token a word, its leading blank included, and one for each other character. Id 0 is `[UNK]`, 1 the boundary.

    A word the vocabulary lacks becomes `[UNK]`. Texts without such words come back from `decode` as they were.
    """

    unknown_id, boundary_id = 0, 1

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = [UNKNOWN_WORD, END_OF_TEXT, *pieces]  # neither is ever a piece of a text: WORD_OR_MARK would cut it up
        vocabulary = {piece: i for i, piece in enumerate(self.pieces)}
        self.tokenizer = word_splitter(models.WordLevel(vocabulary, unk_token=UNKNOWN_WORD))

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        check_unicode(text)
        encoding = self.tokenizer.encode(text)
        if self.unknown_id in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unknown_id)]
            word = text[start:end].strip() or text[start:end]
            hint = next((f"; {piece!r}, with a blank before it, is" for piece in self.pieces if piece == " " + word), "")
            raise UserError(f"{word!r} is none of the {self.vocab_size - 2:,} words and marks this tokenizer knows{hint}")
        return encoding.ids

    def encode_all(self, text: str) -> np.ndarray:
        check_unicode(text)
        return np.array(self.tokenizer.encode(text).ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        text: list[str] = []
        for i in ids:
            blank = i == self.unknown_id and text and re.search(r"[\w,;:.!?)\]\N{RIGHT DOUBLE QUOTATION MARK}]$", text[-1])
            text.append(" " + UNKNOWN_WORD if blank else self.pieces[i])  # its own blank is lost: put one where prose has one
        return "".join(text)

    def token_bytes(self) -> np.ndarray:
        lengths = np.array([len(piece.encode("utf-8")) for piece in self.pieces])
        lengths[[self.unknown_id, self.boundary_id]] = 0
        return lengths

    def save(self, path: Path) -> None:
        """Write a tokenizer.json of the library `tokenizers`."""
        write_text(path, self.tokenizer.to_str(pretty=True) + "\n")


def word_splitter(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer that cuts text into words and other characters, and leaves the rest to `model`."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(WORD_OR_MARK), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


# ------------------------------------------------------------------------------------------------------------------------
# Byte pairs (Sennrich et al. 2016), on bytes as in GPT-2 (Radford et al. 2019)

# GPT-2's first cut: contractions, letters, digits, other marks (each with the blank before it), white space
GPT2_PIECE = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
PLAIN_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]  # printable in Latin-1: written as themselves in a tokenizer.json
OTHER_BYTES = [byte for byte in range(256) if byte not in PLAIN_BYTES]  # written as the characters from 256 on
BYTE_TO_CHARACTER = {byte: chr(byte) for byte in PLAIN_BYTES} | {byte: chr(256 + i) for i, byte in enumerate(OTHER_BYTES)}
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}


class BPETokenizer:
    """One token for each of the 256 bytes and for frequent runs of bytes. It knows every text; the boundary is the last id.

    ranks: bytes of a token -> its id. Of two neighbours that are a token together, those are joined first whose token
    has the lowest id. `tiktoken` does it.
    """

    unknown_id = None

    def __init__(self, ranks: dict[bytes, int]) -> None:
        self.ranks = ranks
        self.boundary_id = len(ranks)
        self.encoding = tiktoken.Encoding(
            "rhapsode", pat_str=GPT2_PIECE, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: self.boundary_id}
        )

    @property
    def vocab_size(self) -> int:
        return len(self.ranks) + 1

    def encode(self, text: str) -> list[int]:
        check_unicode(text)
        return self.encoding.encode_ordinary(text)

    def encode_all(self, text: str) -> np.ndarray:
        check_unicode(text)
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def encode_bytes(self, data: bytes) -> list[int]:
        """Any bytes: what is no UTF-8 becomes one token a byte. `decode_bytes` is the inverse."""
        ids: list[int] = []
        start = 0
        while start < len(data):
            try:
                return ids + self.encode(data[start:].decode("utf-8"))
            except UnicodeDecodeError as error:
                wrong, end = start + error.start, start + error.end
                ids += self.encode(data[start:wrong].decode("utf-8"))
                ids += [self.ranks[data[i : i + 1]] for i in range(wrong, end)]
                start = end
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.encoding.decode(list(ids))  # half a character, at the end of a sample, becomes a �

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return self.encoding.decode_bytes(list(ids))

    def token_bytes(self) -> np.ndarray:
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, i in self.ranks.items():
            lengths[i] = len(token)
        return lengths

    def save(self, path: Path) -> None:
        """Write a tokenizer.json for the library `tokenizers`, and beside it the same as ranks for `tiktoken`."""
        vocabulary = {written(token): i for token, i in self.ranks.items()}
        merges = [(written(left), written(right)) for left, right in all_merges(self.ranks)]
        tokenizer = byte_pair_splitter(models.BPE(vocabulary, merges))
        write_text(path, tokenizer.to_str() + "\n")
        lines = (f"{base64.b64encode(token).decode()} {i}\n" for token, i in self.ranks.items())
        write_text(path.with_suffix(".tiktoken"), "".join(lines))


def byte_pair_splitter(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer that cuts text as GPT-2 does, writes bytes as characters, and leaves the rest to `model`."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def written(token: bytes) -> str:
    """The token in the letters of a tokenizer.json, in which every byte is one printable character."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def all_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every pair of tokens that together are a token, in the order of that one: the rules `tokenizers` needs to join what
    `tiktoken`, which knows no rules but only tokens, would join."""
    return [
        (token[:cut], token[cut:])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


# ------------------------------------------------------------------------------------------------------------------------
# Pairs of a text and what it is turned into


class SymbolTokenizer:
    """One token a symbol of a short list; in a text a blank stands between two. Id 0 is the boundary."""

    boundary_id, unknown_id = 0, None

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = [BOUNDARY, *sorted(symbols)]
        self.ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        try:
            return [self.ids[symbol] for symbol in text.split()]
        except KeyError as error:
            known = " ".join(self.symbols[1:])
            raise UserError(f"unknown symbol {error.args[0]!r} in {text[:40]!r}; the known ones are {known[:300]}") from None

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.symbols[i] for i in ids)


class PairTokenizer:
    """Two tokenizers: a character of the source, a symbol of the target. What a model writes is of the target, and so are
    `vocab_size`, `decode` and `boundary_id`, which stands at the end of both."""

    boundary_id, unknown_id = 0, None

    def __init__(self, source: CharTokenizer, target: SymbolTokenizer) -> None:
        self.source, self.target = source, target

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    def decode(self, ids: Iterable[int]) -> str:
        return self.target.decode(ids)

    def save(self, path: Path) -> None:
        """Write all that `load` needs, as JSON."""
        description = {
            "kind": "pair",
            "characters": self.source.ordinary,
            "fold": self.source.fold,
            "symbols": self.target.symbols[1:],
        }
        write_text(path, json.dumps(description, ensure_ascii=False, indent=1) + "\n")


# ------------------------------------------------------------------------------------------------------------------------
# Making and loading them

Tokenizer = CharTokenizer | WordTokenizer | BPETokenizer | PairTokenizer


def train_tokenizer(kind: str, texts: Iterable[str], vocab_size: int, min_count: int) -> Tokenizer:
    """A tokenizer of this kind (char, word, bpe or gpt2) with at most vocab_size tokens, learned from the texts.

    min_count: how often a word or a pair of tokens must occur to become a token. Characters and gpt2 need neither number.
    """
    if kind == "char":
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return CharTokenizer(characters, boundary=END_OF_TEXT, unknown="\N{REPLACEMENT CHARACTER}")
    if kind == "word":
        trainer = trainers.WordLevelTrainer(vocab_size=vocab_size - 2, min_frequency=min_count, show_progress=False)
        tokenizer = word_splitter(models.WordLevel())
        tokenizer.train_from_iterator(texts, trainer)
        return WordTokenizer(in_order(tokenizer.get_vocab()))
    if kind == "bpe":
        if vocab_size < 257:
            raise UserError(f"vocab_size={vocab_size} is too small for tokenizer=bpe: 256 bytes and the boundary make 257")
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=min_count,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer = byte_pair_splitter(models.BPE())
        tokenizer.train_from_iterator(texts, trainer)
        return BPETokenizer(ranks_of(tokenizer.get_vocab()))
    return gpt2_tokenizer()


def in_order(vocabulary: dict[str, int]) -> list[str]:
    """The tokens of a tokenizer.json by id. Raises ValueError when an id is missing."""
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("the ids of the vocabulary have gaps")
    return sorted(vocabulary, key=vocabulary.__getitem__)


def ranks_of(vocabulary: dict[str, int]) -> dict[bytes, int]:
    """The vocabulary of a BPE tokenizer.json as ranks."""
    return {bytes(CHARACTER_TO_BYTE[c] for c in token): i for i, token in enumerate(in_order(vocabulary))}


def gpt2_tokenizer() -> BPETokenizer:
    """OpenAI's 50,257 tokens. Raises UserError when tiktoken neither has them nor can fetch them."""
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; ValueError: a damaged file
        raise UserError(
            f"tokenizer=gpt2: tiktoken cannot fetch its vocabulary ({type(error).__name__}); with a network once, or with "
            "TIKTOKEN_CACHE_DIR set to a folder that has it, it can; tokenizer=bpe needs neither"
        ) from None
    return BPETokenizer({encoding.decode_single_token_bytes(i): i for i in range(encoding.eot_token)})


def load(path: Path) -> Tokenizer:
    """The tokenizer saved at `path`. Raises UserError for a file that does not hold one."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        if description.get("kind") == "pair":
            source = CharTokenizer(description["characters"], fold=description["fold"])
            return PairTokenizer(source, SymbolTokenizer(description["symbols"]))
        if "model" not in description:
            if description["kind"] != "char":
                raise KeyError(description["kind"])
            return CharTokenizer(*(description[name] for name in ("characters", "fold", "boundary", "unknown")))
        kind, vocabulary = description["model"]["type"], description["model"]["vocab"]
        if kind not in ("WordLevel", "BPE"):
            raise KeyError(kind)
        return WordTokenizer(in_order(vocabulary)[2:]) if kind == "WordLevel" else BPETokenizer(ranks_of(vocabulary))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} holds no tokenizer this version knows ({type(error).__name__}: {error})") from None


def check_unicode(text: str) -> None:
    """Raise UserError for a lone surrogate: half a character, which no UTF-8 file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{text[error.start]!r} in {text[:40]!r} is half a character (a lone surrogate); UTF-8 text has none") from None


# ------------------------------------------------------------------------------------------------------------------------
# Documents in a row


def encode_documents(documents: list[str], tokenizer: CharTokenizer) -> np.ndarray:
    """["ada", "eve"] -> the ids of $ada$eve$, the form of a rows split."""
    return tokenizer.encode_all(BOUNDARY + BOUNDARY.join(documents) + BOUNDARY)


def decode_documents(tokens: Iterable[int], tokenizer: CharTokenizer) -> list[str]:
    """The inverse of `encode_documents`."""
    return tokenizer.decode(tokens)[1:-1].split(BOUNDARY)
