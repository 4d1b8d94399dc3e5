"""Mutations of Python functions: one changed line, or a deleted body. Pure syntax; runs nothing."""

from .delete import FunctionSpan, delete_body, function_spans
from .mutations import Mutation, apply_line, mutations, normalise, pick

__all__ = [
    "FunctionSpan",
    "Mutation",
    "apply_line",
    "delete_body",
    "function_spans",
    "mutations",
    "normalise",
    "pick",
]
