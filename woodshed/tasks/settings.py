"""Settings of tasks that are not built from packages: synthetic ones, and those of a source of the user's own."""

from __future__ import annotations

from pydantic import Field

from woodshed.record.settings import Settings


class SyntheticSettings(Settings):
    """How many synthetic tasks of each split are drawn (``tasks/generators/synthetic``)."""

    train: int = Field(default=1_000, ge=0)
    """Synthetic tasks for RL. A prompt is never trained twice, so at least rl.steps x rl.groups_per_step."""

    sft: int = Field(default=2_000, ge=0)
    """Synthetic tasks for demonstrations; their functions come from the training split."""

    heldout: int = Field(default=128, ge=0)
    """Synthetic tasks that are only evaluated: all their functions have held-out semantic keys."""

    seed: int = 0
    """Decides functions, names, inputs and bugs."""

    checked: int = Field(default=16, ge=0)
    """Synthetic tasks of each split that go through every validation gate in sandboxes; the others only through the
    generator's own checks."""


class CustomSettings(Settings):
    """How many tasks of each split a source of the user's own is asked for (``tasks/sources/custom.py``)."""

    train: int = Field(default=100, ge=1)
    """Tasks for demonstrations and RL. A prompt is never trained twice, so at least rl.steps x rl.groups_per_step."""

    heldout: int = Field(default=32, ge=1)
    """Tasks that are only evaluated."""

    seed: int = 0
    """Given to the source; for training tasks the run's own ``seed`` is added."""
