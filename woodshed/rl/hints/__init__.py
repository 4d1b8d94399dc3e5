"""Targeted textual feedback (Composer 2.5): triggers mark a message of an episode and write a hint that would have
helped; the trainer then distils, for this message, the policy with the hint into the policy without it
(``train/divergence.py``)."""

from .marking import Hinter, HintError, HintStats, Marks, renderer, usages
from .settings import HintSettings
from .triggers import TRIGGERS, Hint, SeenEpisode, Trigger, load_trigger

__all__ = [
    "TRIGGERS",
    "Hint",
    "HintError",
    "HintSettings",
    "HintStats",
    "Hinter",
    "Marks",
    "SeenEpisode",
    "Trigger",
    "load_trigger",
    "renderer",
    "usages",
]
