"""Targeted textual feedback (Composer 2.5): triggers mark a message of an episode and write the hint that would have
helped; the trainer distils that message from the policy that reads the hint (``train/divergence.py``)."""

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
