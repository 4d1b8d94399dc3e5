"""A group of deletions without the functions that no value tells of: a candidate of its own, which is tried once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .candidates import Candidate, group_functions
from .groups import GROUPS, delete_group, is_private
from .prepare import CoveredFunction
from .trial import Trial

LEFT_OUT = "left_out"
"""Entry of a task's provenance: the functions of its group that stayed, because no value tells a fix from a guess."""


def smaller(trial: Trial, candidate: Candidate, untold: Collection[str]) -> Candidate | None:
    """``candidate`` without the functions ``untold`` (``CoveredFunction.place``); None where it is no group that rules
    found, or what is left is not of its kind: two functions, one of them public, over several files where it was.

    None also where rules offer just this group by themselves: no change becomes two tasks.
    """
    if candidate.kind not in GROUPS or candidate.detail != candidate.kind or candidate.origins:
        return None
    left = [f for f in candidate.functions if f.place not in untold]
    if len(left) < 2 or len(left) == len(candidate.functions) or _offered(trial, left):
        return None
    files = delete_group(left, trial.workspace)
    first = next((f for f in left if f == candidate.function or not is_private(f.name)), None)
    if first is None or len(files) < min(2, len(candidate.files)):
        return None
    also = tuple(f for f in left if f != first)
    stayed = ", ".join(f.place for f in candidate.functions if f not in left)
    return replace(candidate, function=first, also=also, files=files, stated={**candidate.stated, LEFT_OUT: stayed})


def _offered(trial: Trial, left: Sequence[CoveredFunction]) -> bool:
    """Whether one of the functions leads to this group."""
    return any(
        set(group_functions(trial.suite, trial.workspace, kind, function, trial.splits)) == set(left)
        for kind in GROUPS.keys() & set(trial.settings.kinds)
        for function in left
    )
