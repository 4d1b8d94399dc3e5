"""Stores finished live sessions (of users' own agents) for benchmarks and training."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from sqlalchemy.exc import SQLAlchemyError

from woodshed.record.run_directory import DirectoryError
from woodshed.record.segment import Segment
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Effort, Trajectory

from .segments_wire import told
from .trajectories import OpenTrajectory


class KeptSessions:
    """Stores finished trajectories of source ``live`` under ``folder``; thread-safe. Raises OSError if nothing can be
    stored there.

    A session whose id is already stored (a server without a journal was restarted, or a client uses an id twice) is
    stored as ``id@START``, with the Unix time at which it was opened.
    """

    def __init__(self, folder: Path, policy: str) -> None:
        self.policy = policy
        try:
            self.store = TrajectoryStore(folder)
        except (DirectoryError, SQLAlchemyError) as error:
            raise OSError(f"{folder}: sessions cannot be stored here: {_reason(error)}") from error

    def keep(self, finished: OpenTrajectory) -> None:
        """Store a finished session, once. Sessions of other sources and those without a reply are left out.

        Raises OSError if it cannot be stored.
        """
        if finished.about.get("source") != "live" or not finished.usage:
            return
        try:
            if self.store.add(self._trajectory(finished, finished.id)):
                return
            before = self.store.get(finished.id)
            if before is not None and before.started != finished.opened:
                self.store.add(self._trajectory(finished, f"{finished.id}@{finished.opened:.3f}"))
        except (DirectoryError, SQLAlchemyError) as error:
            where = f"{self.store.folder}: session {finished.id!r}"
            raise OSError(f"{where} could not be stored: {_reason(error)}") from error

    def keep_all(self, finished: Iterable[OpenTrajectory]) -> None:
        for each in finished:
            self.keep(each)

    def close(self) -> None:
        self.store.close()

    def _trajectory(self, finished: OpenTrajectory, id: str) -> Trajectory:
        about, recorder = finished.about, finished.recorder
        segments = recorder.freeze()
        conversations = told([segment.messages for segment in recorder.segments], segments)
        return Trajectory(
            id=id,
            task=about.get("task", ""),
            group=about.get("group", ""),
            source="live",
            harness_hash="",
            policy=self.policy,
            status="submitted",
            segments=segments,
            messages=[message for conversation in conversations for message in conversation],
            effort=_effort(finished, segments),
            feedback=list(finished.feedback),
            labels={str(name): str(value) for name, value in about.get("labels", {}).items()},
            prefix_breaks=recorder.prefix_breaks,
            ignored=dict(finished.ignored),
            started=finished.opened,
            ended=time.time(),
        )


def _reason(error: Exception) -> str:
    """The database's own message, without the statement."""
    return str(getattr(error, "orig", None) or error)


def _effort(finished: OpenTrajectory, segments: Iterable[Segment]) -> Effort:
    """Count turns, calls and tokens. Edits, test runs and final messages stay 0: a server cannot recognise them."""
    usage = finished.usage
    effort = Effort(
        turns=len(usage),
        tool_calls=sum(turn.calls for turn in usage),
        invalid_calls=sum(bool(turn.parse_error) for turn in usage),
        thinking_tokens=sum(turn.thinking_tokens for turn in usage),
    )
    for segment in segments:
        sampled = np.flatnonzero(segment.sampled)
        first = int(sampled[0]) if len(sampled) else len(segment)
        effort.prompt_tokens += first
        effort.sampled_tokens += len(sampled)
        effort.tool_output_tokens += len(segment) - first - len(sampled)
    return effort
