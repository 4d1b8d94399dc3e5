"""Store of the agents' submissions, one compressed file per episode, for grading again without running the agents."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import zstandard

from woodshed.grading.crossing import Submission
from woodshed.record.atomic import write_whole
from woodshed.record.task import Task

_SUFFIX = ".json.zst"


@dataclass(frozen=True)
class Stored:
    """A stored submission. ``task_digest``: of the task that the agent worked on."""

    id: str
    task: str
    task_digest: str
    submission: Submission


class SubmissionStore:
    """Submissions under ``folder`` by the id of their trajectory. Files are written atomically; the last one counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, id: str, task: Task, submission: Submission) -> None:
        """Store the submission of an episode, replacing that of an earlier try."""
        files = {path: base64.b64encode(data).decode() for path, data in submission.items()}
        record = {
            "id": id,
            "task": task.name,
            "task_digest": task.digest,
            "files": files,
            "deleted": list(submission.deleted),
        }
        write_whole(self._path(id), zstandard.compress(json.dumps(record).encode()))

    def get(self, id: str) -> Stored | None:
        """Return the submission of an episode, or None. Raises ValueError if its file is damaged."""
        try:
            data = self._path(id).read_bytes()
        except FileNotFoundError:
            return None
        return _read(data, self._path(id))

    def __iter__(self) -> Iterator[Stored]:
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            yield _read(path.read_bytes(), path)

    def _path(self, id: str) -> Path:
        return self.folder / f"{sha256(id.encode()).hexdigest()[:32]}{_SUFFIX}"


def _read(data: bytes, path: Path) -> Stored:
    try:
        record = json.loads(zstandard.decompress(data))
        files = {name: base64.b64decode(text) for name, text in record["files"].items()}
        submission = Submission(files, record["deleted"])
        return Stored(record["id"], record["task"], record["task_digest"], submission)
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a stored submission ({type(error).__name__}: {error})") from None
