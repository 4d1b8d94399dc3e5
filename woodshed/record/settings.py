"""Base class of every folder's settings (strict, frozen, documented), and the loader of references to user code.

A recipe refers to user code as ``"module:Name"``; the module is looked for on Python's path and in the current folder.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

Device = Literal["auto", "cpu", "cuda"]
"""A torch device by name; ``woodshed.policy.device.resolve`` decides what ``auto`` is on this machine."""

Place = Annotated[str, BeforeValidator(lambda v: os.fspath(v) if isinstance(v, os.PathLike) else v)]
"""A folder's path, or the URL of a bucket."""


class Settings(BaseModel):
    """Base of all settings: unknown keys and numbers that are not finite are errors, values are frozen, attribute
    docstrings describe the fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )


def is_reference(name: str) -> bool:
    """Return whether a name in a recipe refers to the user's own code, ``"module:Name"``."""
    return ":" in name


def load_reference(reference: str, field: str = "") -> Any:
    """Import a module and return its attribute. If that fails, raises ValueError, whose message begins with
    ``field``."""
    module, _, attribute = reference.partition(":")
    # ``python -m`` puts the current folder on the path; a program that pip installed does not.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is loaded
        where = f"{field}: " if field else ""
        raise ValueError(f"{where}{reference!r} cannot be loaded: {type(error).__name__}: {error}") from error
