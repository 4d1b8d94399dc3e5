"""Changes to Python functions: one changed line, or deleted bodies and definitions. Pure syntax; runs nothing."""

from .delete import FunctionSpan, changed_functions, delete_bodies, delete_body, function_spans, remove_functions
from .mutations import Mutation, apply_line, mutations, normalise, pick
from .splice import merge

__all__ = [
    "FunctionSpan",
    "Mutation",
    "apply_line",
    "changed_functions",
    "delete_bodies",
    "delete_body",
    "function_spans",
    "merge",
    "mutations",
    "normalise",
    "pick",
    "remove_functions",
]
