"""How a recipe names reward terms (``rl.rewards``)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from woodshed.record.settings import Settings


class TermSettings(Settings):
    """One reward term; a bare number is its ``weight``."""

    weight: float = Field(allow_inf_nan=False)
    """Factor of the term's value; 0 turns the term off. Penalties have values below 0: give them a positive weight."""
    cap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum that the weighted term moves the reward of one episode, in either direction; none by default."""
    options: dict[str, bool | int | float | str] = {}
    """Keyword arguments of the term's function, such as ``{ k = 2.0, q = 0.3 }`` of ``effort``."""


def _written_out(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    terms = {"outcome": 1.0, **value}
    return {
        k: {"weight": v} if isinstance(v, (int, float)) and not isinstance(v, bool) else v for k, v in terms.items()
    }


RewardTerms = Annotated[dict[str, TermSettings], BeforeValidator(_written_out)]
"""Name, or ``"my_module:my_function"``, of each term. Without a word of the recipe ``outcome`` has weight 1."""
