"""Failures that the policy did not cause: their sources, and the limit above which a run ends."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import httpx

from woodshed.record.fault import Fault, FaultSource
from woodshed.record.trajectory import Trajectory

INFRA: Final = "infra_error"
"""Status of a trajectory that ended by a failure that the policy did not cause."""

FAULT = "fault"
"""Label of a trajectory with status ``infra_error``: the source of the failure."""

RETRIED = "retried"
"""Label of a trajectory that succeeded after a failed try: the source of the last failure."""

RESUMED = "resumed"
"""Label of a trajectory that an earlier process had begun."""

AT_ONCE: Final = ("task", "replay")
"""Sources of failures that would happen again in another try, so none is made."""


class RunFailing(Exception):
    """Too many episodes end by failures of the infrastructure; the message says which."""


def source_of(failure: BaseException) -> FaultSource:
    """Return the source of a failure; an exception that is neither a Fault nor an HTTP error counts as the host's."""
    if isinstance(failure, Fault):
        return failure.source
    return "endpoint" if isinstance(failure, httpx.HTTPError) else "host"


def loss_reason(trajectory: Trajectory) -> str:
    """Return the reason why a trajectory with status ``infra_error`` is not trained: ``infra_error``, or
    ``abandoned_fork`` if the box of a fork did not repeat its parent's beginning."""
    return "abandoned_fork" if trajectory.labels.get(FAULT) == "replay" else INFRA


class RunPaused(Exception):
    """An alarm or limit of the recipe pauses the stage; the message says what to check and how to continue."""


class FailureWatch:
    """Counts failed episodes (``counts``, by source) and ends a run in which too many fail.

    The run ends if more than ``rate`` of the last ``window`` episodes failed, each after all of its tries. If they all
    belong to one task, that task probably cannot be graded, and the run continues. Tasks that report this themselves
    (source ``task``) and abandoned forks (source ``replay``) are counted but never end a run.
    """

    def __init__(self, rate: float, window: int) -> None:
        self.rate = rate
        self.counts: Counter[str] = Counter()
        self._recent: deque[str | None] = deque(maxlen=window)  # the task of a failed episode

    def update(self, trajectory: Trajectory) -> None:
        """Count a finished episode. Raises RunFailing if too many have failed."""
        if trajectory.status != INFRA:
            self._recent.append(None)
            return
        source = trajectory.labels.get(FAULT, "host")
        self.counts[source] += 1
        if source in AT_ONCE:
            return
        self._recent.append(trajectory.task)
        failed = [task for task in self._recent if task is not None]
        window = self._recent.maxlen or 1
        if len(failed) > self.rate * window and len(set(failed)) > 1:
            what = "the policy server" if source == "endpoint" else "this machine or its sandbox"
            raise RunFailing(
                f"{len(failed)} of the last {len(self._recent)} episodes failed, more than {self.rate:g} of {window} "
                f"(rl.max_infra_rate, rl.infra_window), and not because of the policy: {what} does not work. "
                f"The last, after {trajectory.attempts} tries: {trajectory.error[:500]}\n"
                "Fix that and give the same command again: the run continues where it stopped"
            )
