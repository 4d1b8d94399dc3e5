"""Byte-level BPE: training, and a wrapper that never turns plain text into control tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

# A newline and the digits after it are one token, so that a line number is one token; indentation is split into fours;
# digits are single elsewhere; ".py" is one token.
SPLIT = r"\.py|\n\d*|(?:    )+| ?[A-Za-z]+| ?_+| ?\d| ?[^\sA-Za-z\d_]+|\s+"
_SHORT = 256
"""Length in characters up to which encodings are cached."""
_LONG = 2_048
"""Length in characters above which a text is encoded without holding the GIL."""
_NFC_SHRINKS = 4
"""Maximum number of characters that NFC combines into one."""

# Texts are encoded one by one. Without this the library starts threads of its own and warns when the process forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Piece(NamedTuple):
    """A stretch of text; only a ``special`` one may become control tokens."""

    text: str
    special: bool = False


class TokenizerError(ValueError):
    """A tokenizer file is not usable, or a control token does not exist."""


class TooManyTokens(ValueError):
    """A text has at least ``least`` tokens, more than were allowed."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has at least {least} tokens")
        self.least = least


def train_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """Train byte-level BPE of at most ``vocab_size`` entries, of which the first are ``special_tokens`` in order.

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

    It keeps two copies of the vocabulary: one has the added tokens (for pieces marked special), one does not, so that
    "<|im_end|>" in a user's text stays text. ``size`` is the number of rows of the policy's embedding if that is larger
    than the vocabulary (Qwen pads it); the extra ids decode to nothing.
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
        normalizer = json.loads(self._json).get("normalizer")
        self._normalised = normalizer is not None
        self._bounded = normalizer is None or normalizer.get("type") == "NFC"
        """True if ``least_tokens`` can give a bound: normalizers other than NFC may delete any text."""

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def rows(self) -> int:
        """Number of ids, including those that decode to nothing."""
        return len(self._bytes)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Encode a text. Without ``allow_special`` the name of a control token is encoded as plain characters."""
        if allow_special:
            if (one := self.special_ids.get(text)) is not None:
                return [one]
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return list(self._encode_plain(text))

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]], most: int | None = None) -> list[int]:
        """Encode ``(text, special)`` pieces. Neighbouring plain pieces are joined before they are encoded.

        A special piece for which this vocabulary has no control token (``<tool_call>`` in SmolLM2's) is plain text.
        Raises TooManyTokens if there are more than ``most`` tokens, before encoding if the bytes alone show it.
        """
        if most is not None:
            pieces = list(pieces)
            if sum(len(text) for text, _ in pieces) > most:
                least = sum(self.least_tokens(text) for text, special in pieces if not special)
                if least > most:
                    raise TooManyTokens(least)
        ids: list[int] = []
        plain: list[str] = []
        for text, special in pieces:
            one = self.special_ids.get(text) if special else None
            if one is None:
                plain.append(text)
                continue
            if plain:
                ids += self._encode_plain("".join(plain), most)
                plain.clear()
            ids.append(one)
        if plain:
            ids += self._encode_plain("".join(plain), most)
        if most is not None and len(ids) > most:
            raise TooManyTokens(len(ids))
        return ids

    def least_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of ``text``, from its bytes alone.

        Each of the n bytes of a token occurs in a token of at least n bytes, namely this one. So the sum of 1 / (length
        of the longest token that contains the byte) over all bytes is at most the number of tokens.
        """
        if not self._bounded or (self._normalised and not text.isascii()):
            return len(text) // (_NFC_SHRINKS * self.longest) if self._bounded else 0
        data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        counts = np.zeros(256, np.int64)
        for start in range(0, len(data), 1 << 20):
            counts += np.bincount(data[start : start + (1 << 20)], minlength=256)
        return int(counts @ self._shares * (1 - 1e-9))

    @cached_property
    def longest(self) -> int:
        """Length in bytes of the longest token."""
        return max(map(len, self._bytes))

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Per byte value, 1 / length of the longest token that contains it; 0 if no token does."""
        shares = np.zeros(256)
        for token in sorted(set(self._bytes), key=len, reverse=True):
            for byte in token:
                if not shares[byte]:
                    shares[byte] = 1 / len(token)
            if shares.all():
                break
        return shares

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ``ids``; control tokens by name; bytes that are not UTF-8 become U+FFFD."""
        return b"".join([self._bytes[i] for i in ids]).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that one token stands for. Raises IndexError for an id outside the vocabulary."""
        return self._bytes[token]

    def special_id(self, name: str) -> int:
        """Return the id of a control token. Raises TokenizerError if this vocabulary lacks it."""
        if name not in self.special_ids:
            raise TokenizerError(f"the vocabulary has no control token {name!r}; it has {list(self.special_ids)}")
        return self.special_ids[name]

    def to_json(self) -> str:
        """Return the contents of ``tokenizer.json``."""
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

    def _encode_plain(self, text: str, most: int | None = None) -> tuple[int, ...]:
        if len(text) > _SHORT:
            return self._encode_new(text, most)
        ids = self._cache.get(text)
        if ids is None:
            ids = self._encode_new(text, None)
            if len(self._cache) >= 4_096:
                self._cache.clear()
            self._cache[text] = ids
        return ids

    def _encode_new(self, text: str, most: int | None) -> tuple[int, ...]:
        # ``encode`` holds the GIL, ``encode_batch_fast`` releases it: a long text takes seconds.
        encode = self._plain.encode if len(text) <= _LONG else self._encode_long
        try:
            found = encode(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):  # a lone surrogate, which JSON can contain and UTF-8 cannot
            found = encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
        if most is not None and len(found) > most:  # before a list of all of them is made
            raise TooManyTokens(len(found))
        return tuple(found.ids)

    def _encode_long(self, text: str, *, add_special_tokens: bool) -> tokenizers.Encoding:
        return self._plain.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def _without_added(source: str) -> str:
    """Remove the added tokens from a ``tokenizer.json``; those that are only whitespace stay, as ordinary text."""
    data = json.loads(source)
    dropped = {t["content"] for t in data["added_tokens"] if not t["content"].isspace()}
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in dropped]
    data["post_processor"] = None
    if data["model"].get("ignore_merges"):
        # Such a model first looks up the whole word, and would find a control token that is in the vocabulary.
        data["model"]["vocab"] = {t: i for t, i in data["model"]["vocab"].items() if t not in dropped}
    return json.dumps(data)


def _token_bytes(tokenizer: tokenizers.Tokenizer, added: set[int], size: int) -> list[bytes]:
    """Return the bytes of each id; a byte-level vocabulary writes a byte as one printable character (GPT-2's table)."""
    table = _byte_table()
    out = [b""] * size
    for text, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if i in added or any(c not in table for c in text):
            out[i] = text.encode("utf-8")
        else:
            out[i] = bytes(table[c] for c in text)
    return out


def _byte_table() -> dict[str, int]:
    """Map characters to bytes: printable Latin-1 to itself; the other bytes follow in order from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    for b in range(256):
        if b not in printable:
            table[chr(0x100 + len(table) - len(printable))] = b
    return table
