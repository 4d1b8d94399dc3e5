"""The base of every folder's ``settings.py``: strict, frozen, documented."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Unknown keys are errors, values never change after loading, attribute docstrings become field descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
