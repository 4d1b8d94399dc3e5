"""The base of every folder's ``settings.py``: strict, frozen, documented."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

Device = Literal["auto", "cpu", "cuda"]
"""A torch device by name; ``woodshed.policy.device.resolve`` says what ``auto`` means here."""

Place = Annotated[str, BeforeValidator(lambda v: os.fspath(v) if isinstance(v, os.PathLike) else v)]
"""A folder's path, or the URL of a bucket."""


class Settings(BaseModel):
    """Unknown keys are errors, values never change after loading, attribute docstrings become field descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
