"""The learning rate as a factor of its peak."""

from __future__ import annotations

import math

from .settings import ScheduleSettings


def lr_factor(step: int, settings: ScheduleSettings) -> float:
    """Factor for optimizer step ``step`` (from 0): linear warm-up, then constant, linear or cosine down to the floor.

    With linear or cosine the last step of the stage, ``total_steps - 1``, is one decrement above the floor, so no
    step is spent at a factor of 0.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.kind == "constant":
        return 1.0
    span = settings.total_steps - settings.warmup_steps
    done = min(1.0, (step - settings.warmup_steps) / span)
    left = 1 - done if settings.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.floor + (1 - settings.floor) * left
