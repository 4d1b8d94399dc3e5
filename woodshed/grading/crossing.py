"""Selects the files of an agent's box that are its submission: regular, allow-listed, unprotected, of bounded size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from woodshed.record.task import Task, TaskInfo

from .settings import GradingSettings

DEFAULTS = GradingSettings()
_MAX_PATH = 1024


def crossing(info: TaskInfo, files: Mapping[str, bytes], settings: GradingSettings = DEFAULTS) -> dict[str, bytes]:
    """Select the files that cross into grading, in order of their paths (relative to the workdir)."""
    taken: dict[str, bytes] = {}
    total = 0
    for path in sorted(files):
        data = files[path]
        if len(taken) == settings.max_files:
            break
        if not submittable(info, path) or len(data) > settings.max_file_bytes:
            continue
        if total + len(data) <= settings.max_total_bytes:
            taken[path] = data
            total += len(data)
    return taken


class Submission(dict[str, bytes]):
    """Files of an agent's box. ``deleted``: submittable files of the workspace that the box no longer has.

    A plain mapping of files, laid over the workspace, deletes nothing.
    """

    def __init__(self, files: Mapping[str, bytes], deleted: Iterable[str] = ()) -> None:
        super().__init__(files)
        self.deleted = tuple(sorted(deleted))


def collected(task: Task, files: Mapping[str, bytes], settings: GradingSettings = DEFAULTS) -> Submission:
    """Select the submission from the ``files`` of an agent's box.

    If not all of them can cross, only those that the agent changed do: the grading box has the others anyway, and a
    file that the agent left as it was must not count as deleted.
    """
    own = {name for name in task.workspace_names() if submittable(task.info, name)}
    crossed = crossing(task.info, files, settings)
    if any(name in files for name in own - crossed.keys()):
        kept = {name for name in own & files.keys() if (task.workspace / name).read_bytes() == files[name]}
        crossed = crossing(task.info, {name: data for name, data in files.items() if name not in kept}, settings)
        own -= kept
    return Submission(crossed, own - crossed.keys())


def submittable(info: TaskInfo, path: str) -> bool:
    """Return whether a path matches ``submission``, not ``protected``, and stays below the workdir.

    Paths that are not UTF-8 or longer than 1,024 bytes are refused: host and digest cannot handle them.
    """
    try:
        if len(path.encode()) > _MAX_PATH:
            return False
    except UnicodeEncodeError:
        return False
    pure = PurePosixPath(path)
    plain = path == str(pure) and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
    return plain and matches_any(path, info.submission) and not matches_any(path, info.protected)


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Match globs as in ``Path.glob``: ``*`` and ``?`` within one name, ``**/`` for zero or more folders."""
    return any(_regex(pattern).fullmatch(path) for pattern in patterns)


def crossed_digest(crossed: Mapping[str, bytes], deleted: Iterable[str] = ()) -> str:
    """Return the sha256 (hex) over paths and contents of files, and over the paths of deleted files."""
    digest = hashlib.sha256(repr(sorted(deleted)).encode())
    for path in sorted(crossed):
        digest.update(f"{len(path.encode())}:{len(crossed[path])}:".encode() + path.encode() + crossed[path])
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str]:
    parts = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        if piece == "**/":
            parts.append("(?:[^/]+/)*")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]"):
            parts.append("[^" + piece[2:] if piece.startswith("[!") else piece)
        else:
            parts.append(re.escape(piece))
    return re.compile("".join(parts), re.DOTALL)
