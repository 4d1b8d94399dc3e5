"""What a recipe names ``"module:Name"``: code of the user's own, found where Python looks and in the current folder."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


def is_reference(name: str) -> bool:
    return ":" in name


def load_reference(reference: str, field: str) -> Any:
    """The attribute of a module. Raises ValueError, naming ``field``, where it cannot be had."""
    module, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:  # as it is for python -m, and is not for a program that pip has installed
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a user's module raises while it is loaded
        raise ValueError(f"{field}: {reference!r} cannot be loaded: {type(error).__name__}: {error}") from error
