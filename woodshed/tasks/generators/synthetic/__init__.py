"""Synthetic tasks: generated small repositories with one bug or two, which a tiny policy can learn to repair.

Harder ones, with several independent bugs, are made during a run (``rl/growth/``).

``train``/``sft`` and ``heldout`` synthetic tasks share templates, variable names and module names; what is held out are
semantic keys (which condition is combined with which expression in which shape). Held-out scores therefore measure
*compositional* generalisation, not generalisation to new kinds of code.
"""

from .function import (
    HIDDEN,
    TEMPLATES,
    VISIBLE,
    Case,
    Split,
    SyntheticFunction,
    draw_functions,
    semantic_keys,
    split_of,
)
from .spec import NOUNS, Bug, SyntheticSpec, draw_combined, draw_synthetic
from .write import bugs_of, solution_edit, write_synthetic

__all__ = [
    "HIDDEN",
    "NOUNS",
    "TEMPLATES",
    "VISIBLE",
    "Bug",
    "Case",
    "Split",
    "SyntheticFunction",
    "SyntheticSpec",
    "bugs_of",
    "draw_combined",
    "draw_functions",
    "draw_synthetic",
    "semantic_keys",
    "solution_edit",
    "split_of",
    "write_synthetic",
]
