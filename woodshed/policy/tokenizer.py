"""Byte-level BPE: training, and a wrapper that never reads control tokens out of plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

# A newline and the digits after it are one token, so that a numbered line is named by what begins it; indentation goes
# by fours; digits are single elsewhere; ".py" is one token.
SPLIT = r"\.py|\n\d*|(?:    )+| ?[A-Za-z]+| ?_+| ?\d| ?[^\sA-Za-z\d_]+|\s+"
_SHORT = 256


class Piece(NamedTuple):
    """A stretch of text; only a ``special`` one may become control tokens."""

    text: str
    special: bool = False


class TokenizerError(ValueError):
    """A tokenizer file cannot be used, or a control token does not exist."""


def train_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE of at most ``vocab_size`` entries, of which the first are ``special_tokens`` in order.

    All 256 bytes are in the vocabulary, so any text survives a round trip. Raises TokenizerError when ``vocab_size``
    has no room for the bytes and the special tokens.
    """
    if vocab_size < 256 + len(special_tokens):
        raise TokenizerError(f"vocab_size {vocab_size} has no room for 256 bytes and {len(special_tokens)} tokens")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in special_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Tokenizer:
    """A Hugging Face ``tokenizer.json`` with a byte-level vocabulary.

    Two copies of the vocabulary are kept: one knows the added tokens (for pieces marked special), one does not, so
    that "<|im_end|>" in a user's text stays text. ``size`` is the number of rows of the policy's
    embedding where that is larger than the vocabulary (Qwen pads it); the ids between decode to nothing.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, size: int = 0) -> None:
        self._tokenizer = tokenizer
        self._json = tokenizer.to_str()
        decoder = tokenizer.decoder
        if decoder is None or type(decoder).__name__ != "ByteLevel":
            raise TokenizerError("only byte-level vocabularies are supported (decoder ByteLevel)")
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids: dict[str, int] = {token.content: i for i, token in added.items()}
        self._plain = tokenizers.Tokenizer.from_str(_without_added(self._json))
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._bytes = _token_bytes(tokenizer, set(added), max(self.vocab_size, size))
        self._cache: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def rows(self) -> int:
        """How many ids there are, those included that decode to nothing."""
        return len(self._bytes)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Token ids. Without ``allow_special`` a control token's name is encoded as the characters it consists of."""
        if allow_special:
            if (one := self.special_ids.get(text)) is not None:
                return [one]
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return list(self._encode_plain(text))

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of ``(text, special)`` pieces. Neighbouring plain pieces are joined before they are encoded.

        A special piece that this vocabulary has no control token for (``<tool_call>`` in SmolLM2's) is plain text.
        """
        ids: list[int] = []
        plain: list[str] = []
        for text, special in pieces:
            one = self.special_ids.get(text) if special else None
            if one is None:
                plain.append(text)
                continue
            if plain:
                ids += self._encode_plain("".join(plain))
                plain.clear()
            ids.append(one)
        if plain:
            ids += self._encode_plain("".join(plain))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, control tokens by name; bytes that are not UTF-8 become U+FFFD."""
        return b"".join([self._bytes[i] for i in ids]).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for. Raises IndexError for an id outside the vocabulary."""
        return self._bytes[token]

    def special_id(self, name: str) -> int:
        """The id of a control token. Raises TokenizerError when this vocabulary lacks it."""
        if name not in self.special_ids:
            raise TokenizerError(f"the vocabulary has no control token {name!r}; it has {list(self.special_ids)}")
        return self.special_ids[name]

    def to_json(self) -> str:
        """The contents of ``tokenizer.json``."""
        return self._json

    def save(self, path: Path | str) -> None:
        Path(path).write_text(self._json, encoding="utf-8")

    @staticmethod
    def load(path: Path | str, *, size: int = 0) -> Tokenizer:
        """Read a ``tokenizer.json``. Raises TokenizerError naming the file."""
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)), size=size)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None
        except Exception as error:  # the Rust side raises bare Exception
            raise TokenizerError(f"{path}: {error}") from None

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        ids = self._cache.get(text)
        if ids is None:
            try:
                ids = tuple(self._plain.encode(text, add_special_tokens=False).ids)
            except (UnicodeEncodeError, TypeError):  # a lone surrogate, which JSON can carry and UTF-8 cannot
                ids = tuple(self._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)
            if len(text) <= _SHORT:
                if len(self._cache) >= 4_096:
                    self._cache.clear()
                self._cache[text] = ids
        return ids


def _without_added(source: str) -> str:
    """The same vocabulary without added tokens (those of whitespace only stay: they are ordinary text)."""
    data = json.loads(source)
    dropped = {t["content"] for t in data["added_tokens"] if not t["content"].isspace()}
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in dropped]
    data["post_processor"] = None
    if data["model"].get("ignore_merges"):
        # Such a model looks a whole word up first, and would find a control token that is listed in the vocabulary.
        data["model"]["vocab"] = {t: i for t, i in data["model"]["vocab"].items() if t not in dropped}
    return json.dumps(data)


def _token_bytes(tokenizer: tokenizers.Tokenizer, added: set[int], size: int) -> list[bytes]:
    """Bytes per id; a byte-level vocabulary writes each byte as one printable character (GPT-2's table)."""
    table = _byte_table()
    out = [b""] * size
    for text, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if i in added or any(c not in table for c in text):
            out[i] = text.encode("utf-8")
        else:
            out[i] = bytes(table[c] for c in text)
    return out


def _byte_table() -> dict[str, int]:
    """Character -> byte: printable Latin-1 stands for itself, the other bytes follow in order from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    for b in range(256):
        if b not in printable:
            table[chr(0x100 + len(table) - len(printable))] = b
    return table
