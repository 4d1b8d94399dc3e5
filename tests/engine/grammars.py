"""Small vocabularies, and an independent reference for what a grammar of finitely many texts allows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models

from woodshed.policy.formats.grammar import Json, Node, to_lark
from woodshed.policy.tokenizer import Tokenizer

CHARACTERS = '{}[]":, abcdefghijklmnopqrstuvwxyz0123456789-.Ġ'
WORDS = ("true", "false", "null", '{"', '":', '",', '"}', "ab", "a\"", "10", "[]", "ue", '"a', '"a":')  # fmt: skip


def tiny_vocabulary(rows: int = 97, words: Collection[str] = WORDS, characters: str = CHARACTERS) -> Tokenizer:
    """Characters and a few words that no merge makes, so that a text has many spellings; and ``<end>``."""
    words = [*dict.fromkeys([*characters.replace(" ", ""), *words])]
    tokenizer = tokenizers.Tokenizer(models.BPE({word: i + 1 for i, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    made = Tokenizer(tokenizer, size=rows)
    assert made.rows == rows
    return made


def end_of(tokenizer: Tokenizer) -> int:
    return tokenizer.special_ids["<end>"]


def values(schema: Mapping[str, Any]) -> list[Any]:
    """Every value of a schema of the few keywords that ``schemas`` draws."""
    if "enum" in schema:
        return list(schema["enum"])
    if schema["type"] == "boolean":
        return [True, False]
    if schema["type"] == "array":
        items = values(schema["items"])
        lengths = range(schema.get("minItems", 0), schema["maxItems"] + 1)
        return [list(chosen) for n in lengths for chosen in product(items, repeat=n)]
    options = []
    for name, of in schema["properties"].items():
        missing = [] if name in schema["required"] else [None]
        options.append([*missing, *((name, value) for value in values(of))])
    return [dict(pair for pair in chosen if pair is not None) for chosen in product(*options)]


def texts(schema: Mapping[str, Any]) -> set[bytes]:
    return {json.dumps(value).encode() for value in values(schema)}


def brute_force(language: Collection[bytes], said: bytes, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> set[int]:
    """Tokens that may follow ``said``, by trying each of them against all texts of the language."""
    out = set(stop_ids) if said in language else set()
    for token in range(tokenizer.rows):
        piece = tokenizer.token_bytes(token)
        if piece and token not in tokenizer.special_ids.values():
            longer = said + piece
            if any(text.startswith(longer) for text in language):
                out.add(token)
    return out


def ids_of(bits: NDArray[np.uint8]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def lark(node: Node, tokenizer: Tokenizer) -> str:
    return to_lark(node, tokenizer.special_ids)


def json_lark(schema: Mapping[str, Any]) -> str:
    return to_lark(Json(schema), {})


def spans_of(language: Collection[bytes], tokens: Sequence[int], tokenizer: Tokenizer) -> Iterator[set[int]]:
    """The reference's allowed tokens at every position of a completion."""
    said = b""
    for token in tokens:
        yield brute_force(language, said, tokenizer, [end_of(tokenizer)])
        said += tokenizer.token_bytes(token) if token != end_of(tokenizer) else b""
