"""Settings of generated tasks."""

from __future__ import annotations

from pydantic import Field

from woodshed.record.settings import Settings


class SyntheticSettings(Settings):
    """How many synthetic tasks of each split are drawn (``tasks/studies``)."""

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
