"""Settings of generated tasks."""

from __future__ import annotations

from pydantic import Field

from woodshed.record.settings import Settings


class SyntheticSettings(Settings):
    """How many synthetic tasks of each split are drawn (``tasks/synthetic``)."""

    train: int = Field(default=1_000, ge=0)
    """Synthetic tasks for RL. A prompt is never trained twice, so at least rl.steps x rl.groups_per_step."""

    sft: int = Field(default=2_000, ge=0)
    """Synthetic tasks for demonstrations. They share their semantic keys with pretraining, and with nothing else."""

    dev: int = Field(default=64, ge=0)
    """Synthetic tasks on which settings are chosen, such as the sampling temperature of each evaluated policy."""

    heldout: int = Field(default=128, ge=0)
    """Synthetic tasks that are only evaluated: all their functions have semantic keys that nothing else has."""

    seed: int = 0
    """Decides functions, names, inputs and bugs."""

    checked: int = Field(default=16, ge=0)
    """Synthetic tasks of each split that go through every validation gate in sandboxes; the others only through the
    generator's own checks."""
