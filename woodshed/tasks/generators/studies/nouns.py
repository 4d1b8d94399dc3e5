"""Module names of studies: common English nouns, each likely to be one token of a tokenizer trained on studies.

Handles of several tokens get recombined instead of copied by small policies; one-token handles do not. Few
words, each seen often: with 226 of them one first look in sixteen went to a file that does not exist.
"""

from __future__ import annotations

_TEXT = """
acorn apron bagel beacon blanket bottle breeze cabin candle carpet chair circle cloud cobalt cream curtain diamond
drum falcon field flute ginger glove hammer hill ivory jelly ladder lily lotus marble mirror nectar ocean orange
parrot pepper planet poppy rabbit ridge rose shore snow star stream thunder tower
"""
NOUNS: tuple[str, ...] = tuple(_TEXT.split())
