"""Failures from outside the policy: which source they have, and when they are too many for a run to go on."""

from __future__ import annotations

from collections import Counter
from typing import Final

import httpx

from woodshed.record.fault import Fault, FaultSource
from woodshed.record.trajectory import Trajectory

INFRA: Final = "infra_error"
"""Status of a trajectory that something else than the policy ended."""

FAULT = "fault"
"""Label of such a trajectory: the source of the failure."""

RETRIED = "retried"
"""Label of a trajectory that was tried again: the source of the last failure before."""


AT_ONCE: Final = ("task", "replay")
"""Sources of failures that another try would meet again."""


class RunFailing(Exception):
    """Episode after episode ends for want of something outside of it; the message says what."""


def source_of(failure: BaseException) -> FaultSource:
    """What raised nothing of ours is this machine's."""
    if isinstance(failure, Fault):
        return failure.source
    return "endpoint" if isinstance(failure, httpx.HTTPError) else "host"


class FailureWatch:
    """Counts failed episodes (``counts``, by source) and ends a run in which only such come.

    ``most``: so many in a row, each after all of its tries, are no accident; of one task alone they say that it cannot
    be graded. Tasks that say so themselves (source ``task``) and abandoned forks (source ``replay``) are counted and
    never end a run.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.counts: Counter[str] = Counter()
        self._in_a_row = 0
        self._tasks: set[str] = set()

    def update(self, trajectory: Trajectory) -> None:
        """Count a finished episode. Raises RunFailing."""
        if trajectory.status != INFRA:
            self._in_a_row = 0
            self._tasks.clear()
            return
        source = trajectory.labels.get(FAULT, "host")
        self.counts[source] += 1
        if source in AT_ONCE:
            return
        self._in_a_row += 1
        self._tasks.add(trajectory.task)
        if self._in_a_row >= self.most and len(self._tasks) > 1:
            what = "the policy server" if source == "endpoint" else "this machine or its sandbox"
            raise RunFailing(
                f"the last {self._in_a_row} episodes failed, each {trajectory.attempts} times, and not by what the "
                f"policy did: {what} does not work. The last: {trajectory.error[:500]}\n"
                "Mend that and give the same command again: the run goes on where it was"
            )
