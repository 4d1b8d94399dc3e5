"""The base of every folder's ``settings.py``: strict, frozen, documented.

What a recipe names ``"module:Name"``: code of the user's own, found where Python looks and in the current folder.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

Device = Literal["auto", "cpu", "cuda"]
"""A torch device by name; ``woodshed.policy.device.resolve`` says what ``auto`` means here."""

Place = Annotated[str, BeforeValidator(lambda v: os.fspath(v) if isinstance(v, os.PathLike) else v)]
"""A folder's path, or the URL of a bucket."""


class Settings(BaseModel):
    """Unknown keys are errors, values never change after loading, attribute docstrings become field descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


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
