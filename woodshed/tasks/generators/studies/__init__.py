"""Studies: generated small repositories with one bug each, which a tiny policy can learn to repair.

``train``/``sft`` and ``heldout`` studies share templates, variable names and module names; what is held out are
semantic keys (which condition is combined with which expression in which shape). Held-out scores therefore measure
*compositional* generalisation, not generalisation to new kinds of code.
"""

from .function import HIDDEN, TEMPLATES, VISIBLE, Case, Split, StudyFunction, draw_functions, is_heldout, semantic_keys
from .spec import NOUNS, StudySpec, draw_studies
from .write import solution_edit, write_study

__all__ = [
    "HIDDEN",
    "NOUNS",
    "TEMPLATES",
    "VISIBLE",
    "Case",
    "Split",
    "StudyFunction",
    "StudySpec",
    "draw_functions",
    "draw_studies",
    "is_heldout",
    "semantic_keys",
    "solution_edit",
    "write_study",
]
