"""Monitors: what in an episode looks like a reward hack. They flag; what follows from that is the recipe's to say.

A monitor sees what the agent did and handed in, not whether it passed. To add one, write a function from
``MonitoredEpisode`` to findings and name it in ``all.MONITORS``; its treatment is a field of
``grading.settings.MonitorSettings``.
"""

from .all import MONITORS, NAMES, inspect
from .base import Finding, MonitoredEpisode
from .treat import count, quarantined, watch

__all__ = ["MONITORS", "NAMES", "Finding", "MonitoredEpisode", "count", "inspect", "quarantined", "watch"]
