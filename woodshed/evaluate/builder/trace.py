"""Trace committed lines back to the sessions whose edits wrote them.

An added line belongs to the last session of the same repository that wrote the same text into the same file before the
commit. White space does not count (a formatter may have run in between), and common lines (``else:``, brackets) are not
traced. A written line is used once: a line that was matched to an earlier commit cannot be matched to a later one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from woodshed.tasks.packages.history import Commit

from .sessions import Session, Written
from .settings import TraceSettings

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_COMMON = frozenset(
    [
        "else:",
        "try:",
        "finally:",
        "return",
        "pass",
        "break",
        "continue",
        "returnnone",
        "returntrue",
        "returnfalse",
        "returnself",
    ]
)
_SHORTEST = 4


@dataclass(frozen=True)
class Traced:
    """A commit and the session that wrote most of it. ``lines``: number of its ``added`` distinctive lines that the
    session wrote; ``others``: further sessions that wrote lines of it."""

    commit: Commit
    session: Session
    lines: int
    added: int
    others: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.lines / self.added


def trace(
    commits: Sequence[tuple[Commit, Sequence[Written]]],
    sessions: Sequence[Session],
    repository: Sequence[str],
    settings: TraceSettings | None = None,
) -> list[Traced]:
    """Return the commits that were written in sessions, oldest first.

    ``commits``: each with its added lines; ``repository``: names of the repository (``identity``). Of several commits
    of one session, only the one with most of its lines is kept, because the first message of a session asks for one
    thing.
    """
    settings = settings or TraceSettings()
    known = {identity(name) for name in repository}
    ours = [s for s in sessions if s.repository and identity(s.repository) in known]
    pool = _Pool(ours, settings.days)
    found: dict[str, Traced] = {}
    for commit, added in sorted(commits, key=lambda pair: (pair[0].date, pair[0].id)):
        if not commit.date:
            continue
        lines = [line for line in added if _normal(line.line)]
        counts = Counter(pool.take(line, unix(commit.date)) for line in lines)
        del counts[None]
        if not counts:
            continue
        (best, number), *rest = counts.most_common()
        assert best is not None
        traced = Traced(commit, best, number, len(lines), tuple(session.id for session, _ in rest if session))
        if number < settings.min_lines or traced.share < settings.min_share:
            continue
        if best.id not in found or found[best.id].lines < number:
            found[best.id] = traced
    return sorted(found.values(), key=lambda each: (each.commit.date, each.commit.id))


class _Pool:
    """Lines that sessions wrote and that are not matched to a commit yet, by a hash of their text."""

    def __init__(self, sessions: Sequence[Session], days: float) -> None:
        self._seconds = days * 86400
        self._lines: dict[bytes, list[tuple[Session, str]]] = defaultdict(list)
        for session in sorted(sessions, key=lambda s: (s.ended, s.id)):
            for line in session.written:
                if _normal(line.line):
                    self._lines[_hash(line.line)].append((session, line.path))

    def take(self, line: Written, committed: float) -> Session | None:
        """Return the last session that wrote the line before the commit, and remove the line from the pool."""
        held = self._lines.get(_hash(line.line), [])
        for index in range(len(held) - 1, -1, -1):
            session, path = held[index]
            begun = math.floor(session.started)  # git notes whole seconds, so a commit may seem to come before
            if begun <= committed <= begun + self._seconds and _same_file(path, line.path):
                del held[index]
                return session
        return None


def _hash(line: str) -> bytes:
    return hashlib.blake2b(_normal(line).encode("utf-8", "replace"), digest_size=12).digest()


def _normal(line: str) -> str:
    """Return a line without white space; '' if it is too short or too common to trace."""
    text = "".join(line.split())
    distinctive = sum(c.isalnum() for c in text) >= _SHORTEST and text.lower() not in _COMMON
    return text if distinctive else ""


def _same_file(written: str, committed: str) -> bool:
    """Return whether an agent's name of a file (relative or absolute) means the file ``committed``."""
    written = written.removeprefix("./")
    return written == committed or written.endswith("/" + committed)


def unix(date: str) -> float:
    """Return the Unix seconds of an ISO 8601 time."""
    return datetime.fromisoformat(date.replace("Z", "+00:00")).timestamp()


def added_lines(diff: str) -> Iterator[Written]:
    """Yield the added lines of a unified diff (``Objects.diff``), with their files."""
    path, old, new = "", 0, 0
    for line in diff.split("\n"):
        if old > 0 or new > 0:  # inside a hunk, whose length its head states
            if line.startswith("+"):
                new -= 1
                yield Written(path, line[1:])
            elif line.startswith("-"):
                old -= 1
            elif not line.startswith("\\"):
                old, new = old - 1, new - 1
        elif line.startswith("+++ "):
            path = line[4:].split("\t")[0].strip('"').removeprefix("b/")
        elif head := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in head.groups())


def identity(name: str) -> str:
    """Return the canonical form of a repository's name: for a URL, host and path without scheme, user and ``.git``."""
    text = name.strip()
    if scp := re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+\.[\w-]+):(?!//)(.+)", text):
        text = f"ssh://{scp[1]}/{scp[2]}"
    if "://" in text:
        parts = urlsplit(text)
        if parts.scheme != "file":
            return f"{(parts.hostname or '').lower()}/{parts.path.strip('/').removesuffix('.git').lower()}"
        text = parts.path
    return text.rstrip("/").removesuffix("/.git")
