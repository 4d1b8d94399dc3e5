"""Accepted solutions: submissions that pass every required test of a task, in addition to its reference.

They are stored in ``accepted/TASK/DIGEST/`` of a benchmark, outside of the locked task: ``files/`` and
``accepted.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from woodshed.grading.crossing import Submission, crossing
from woodshed.grading.pytest_grader import changed_files
from woodshed.grading.verify import grade
from woodshed.record.atomic import write_whole
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

from .lock import BenchmarkError

ACCEPTED = "accepted"


@dataclass(frozen=True)
class Accepted:
    """A solution other than the reference. ``origin``: where it comes from; ``date``: UTC, to the second."""

    digest: str
    origin: str
    date: str
    submission: Submission


def keep_accepted(folder: Path, task: Task, submission: Mapping[str, bytes], outcome: Outcome, origin: str) -> str:
    """Keep a graded submission that resolved the task; return its digest.

    Returns '' if it did not resolve the task, equals the reference, or is kept already. Raises BenchmarkError for a
    path that leads out of the folder.
    """
    if not outcome.resolved:
        return ""
    made = _normal(task, submission)
    digest = _digest(made)
    if digest == _digest(_normal(task, task.solution_files())):
        return ""
    place = folder / ACCEPTED / task.path.name / digest[:16]
    if (place / "accepted.json").exists():
        return ""
    for name, data in made.items():
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise BenchmarkError(f"{task.name}: refusing to write {name!r} of a submission")
        target = place / "files" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    about = {
        "digest": digest,
        "origin": origin,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "deleted": list(made.deleted),
    }
    write_whole(place / "accepted.json", json.dumps(about, indent=1) + "\n")
    return digest


def accepted_of(folder: Path, name: str) -> list[Accepted]:
    """Return the solutions kept for the task in ``tasks/NAME``, oldest first."""
    found = []
    for path in (folder / ACCEPTED / name).glob("*/accepted.json"):
        about = json.loads(path.read_text("utf-8"))
        base = path.parent / "files"
        files = {p.relative_to(base).as_posix(): p.read_bytes() for p in sorted(base.rglob("*")) if p.is_file()}
        kept = Submission(files, about["deleted"])
        found.append(Accepted(about["digest"], about["origin"], about["date"], kept))
    return sorted(found, key=lambda each: (each.date, each.digest))


async def offer(
    folder: Path, task: Task, files: Mapping[str, bytes], origin: str, backend: Backend, layers: LayerStore
) -> tuple[Outcome, str]:
    """Grade a submission and keep it if it resolves the task; return (outcome, result of ``keep_accepted``)."""
    outcome = await grade(task, files, backend, layers)
    return outcome, keep_accepted(folder, task, files, outcome, origin)


def _normal(task: Task, submission: Mapping[str, bytes]) -> Submission:
    """Return the part of a submission that crosses into grading and differs from the workspace."""
    deleted = getattr(submission, "deleted", ())
    return Submission(changed_files(task, crossing(task.info, submission)), deleted)


def _digest(submission: Submission) -> str:
    digest = hashlib.sha256()
    for name in sorted(submission):
        digest.update(f"{len(name)}:{name}:{len(submission[name])}:".encode() + submission[name])
    for name in submission.deleted:
        digest.update(f"-{len(name)}:{name}".encode())
    return digest.hexdigest()
