"""Reward terms for the message that ends an episode: it exists, and what it says about tests is true.

The rules know whether a test command was given, not whether the prose is good (Composer 2 report, 4.2). Values are -1
or 0. Rules like these can be evaded: ``false && pytest`` counts as a test run.
"""

from __future__ import annotations

import re

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

from .test_runs import runs_tests
from .tool_use import EDITS

_CLAIM = re.compile(
    r"\btests?\s+(suite\s+)?(now\s+)?(all\s+)?(pass(es|ed)?|succeed(s|ed)?|(is|are)\s+(now\s+)?(all\s+)?(green|passing))\b"
    r"|\bran\s+(all\s+)?(of\s+)?(the\s+)?tests?\b|\bverified\s+(it\s+)?(with|by)\s+(the\s+)?tests?\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"n't\b|\b(no|not|cannot|never|without|unable|should|please)\b", re.IGNORECASE)


def untested_finish(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the agent ran no test between its last edit and its submission; 0 if it edited nothing."""
    if trajectory.status != "submitted":
        return 0.0
    untested = False
    for event in trajectory.events:
        if event.error is None and event.name in EDITS:
            untested = True
        elif runs_tests(event, task):
            untested = False
    return -1.0 if untested else 0.0


def unfounded_claim(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the last message says that tests ran or pass, but none ran in the whole episode.

    Sentences with a negation or a request do not count as a claim.
    """
    if any(runs_tests(event, task) for event in trajectory.events):
        return 0.0
    sentences = re.split(r"(?<=[.!?\n])\s+", final_message(trajectory))
    return -1.0 if any(_CLAIM.search(s) and not _DENIAL.search(s) for s in sentences) else 0.0


def silent_finish(task: Task, trajectory: Trajectory, outcome: Outcome, *, least: int = 20) -> float:
    """Return -1 if the agent submitted with a message of fewer than ``least`` characters for its user."""
    if trajectory.status != "submitted":
        return 0.0
    return -1.0 if len(final_message(trajectory)) < least else 0.0


def final_message(trajectory: Trajectory) -> str:
    """Return the text of the agent's last message, followed by the ``message`` of its last ``finish`` call."""
    said = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"][-1:]
    said += [(e.arguments or {}).get("message") for e in trajectory.events if e.name == "finish" and not e.error][-1:]
    return "\n".join(text for text in said if isinstance(text, str)).strip()
