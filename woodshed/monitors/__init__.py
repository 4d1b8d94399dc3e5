"""Monitors: functions that flag what looks like a reward hack in an episode. The recipe says how a flag is treated.

A monitor sees what the agent did and submitted, not whether it passed. A monitor of your own is a function from
``MonitoredEpisode`` to findings, anywhere; a recipe names it ``"my_module:my_function" = "flag"`` in ``rl.monitors``. A
built-in one is listed in ``all.MONITORS``, and its treatment is a field of ``grading.settings.MonitorSettings``.
"""

from .all import MONITORS, NAMES, inspect, load_monitor
from .base import Finding, MonitoredEpisode
from .treat import count, quarantined, watch

__all__ = [
    "MONITORS",
    "NAMES",
    "Finding",
    "MonitoredEpisode",
    "count",
    "inspect",
    "load_monitor",
    "quarantined",
    "watch",
]
