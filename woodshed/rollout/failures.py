"""Failures from outside the policy: which source they have, and when they are too many for a run to go on."""

from __future__ import annotations

from collections import Counter, deque
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

RESUMED = "resumed"
"""Label of a trajectory that another process had begun."""

AT_ONCE: Final = ("task", "replay")
"""Sources of failures that another try would meet again."""


class RunFailing(Exception):
    """Episode after episode ends for want of something outside of it; the message says what."""


def source_of(failure: BaseException) -> FaultSource:
    """What raised nothing of ours is this machine's."""
    if isinstance(failure, Fault):
        return failure.source
    return "endpoint" if isinstance(failure, httpx.HTTPError) else "host"


def loss_reason(trajectory: Trajectory) -> str:
    """Why a trajectory with the status ``infra_error`` is not trained: ``infra_error``, or ``abandoned_fork`` where the
    box of a fork did not repeat its parent's beginning."""
    return "abandoned_fork" if trajectory.labels.get(FAULT) == "replay" else INFRA


class RunPaused(Exception):
    """A recipe's own alarm or limit ends the stage, resumably; the message says what to look at and how to go on."""


class FailureWatch:
    """Counts failed episodes (``counts``, by source) and ends a run in which they are too many.

    More than ``rate`` of ``window`` among the last ``window`` episodes, each failed after all of its tries, are no
    accident; of one task alone they say that it cannot be graded. Tasks that say so themselves (source ``task``) and
    abandoned forks (source ``replay``) are counted and never end a run.
    """

    def __init__(self, rate: float, window: int) -> None:
        self.rate = rate
        self.counts: Counter[str] = Counter()
        self._recent: deque[str | None] = deque(maxlen=window)  # the task of a failed episode

    def update(self, trajectory: Trajectory) -> None:
        """Count a finished episode. Raises RunFailing."""
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
                f"(rl.max_infra_rate, rl.infra_window), and not by what the policy did: {what} does not work. "
                f"The last, after {trajectory.attempts} tries: {trajectory.error[:500]}\n"
                "Mend that and give the same command again: the run goes on where it was"
            )
