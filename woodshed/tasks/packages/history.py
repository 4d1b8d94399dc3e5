"""Commits from the output of ``git log``, and which of them are worth replaying. Nothing is checked out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from woodshed.tasks.settings import ReplaySettings

_NO_TASK = re.compile(
    r"(?i)^(?:merge|revert|release|bump|version|v?\d+\.\d+|wip\b|typo|update changelog|prepare|initial commit)"
)
_MERGE = re.compile(r"(?i)^merge (?:pull request|branch|remote-tracking|request|pr)\b")


@dataclass(frozen=True)
class Commit:
    """One commit. ``id`` and ``parent`` (the first one): 40 hex digits; ``files``: paths that differ from the parent;
    ``lines``: number of added plus removed lines; ``date``: of the commit, ISO 8601 in UTC; ``message``: of a merge
    request, its title and body."""

    id: str
    parent: str
    message: str
    files: tuple[str, ...]
    lines: int
    date: str = ""


_HEAD = re.compile("\x01[0-9a-f]{40,64}")
"""First field of a commit. Messages and paths may hold such bytes, too, but only NUL ends a field."""
_FORM = ("--no-renames", "--numstat", "-z", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
_FORMAT = "--format=%x01%H%x00%P%x00%cd%x00%B%x00"
LOG = ("log", "--no-merges", *_FORM, _FORMAT)
"""Arguments of git that give the output which ``parse_log`` reads; git must run with ``TZ=UTC``."""
LOG_FIRST_PARENT = ("log", "--first-parent", "--diff-merges=first-parent", *_FORM, _FORMAT)
"""Likewise for the first-parent history, in which a merge has the whole change of its branch."""


def parse_log(output: bytes) -> list[Commit]:
    """The commits of ``git log``, newest first, without roots and without binary changes."""
    found = []
    fields = iter(output.decode("utf-8", "replace").split("\0"))
    following = _next_commit(fields, [])
    while commit := following:
        parents, date, message = (next(fields, "") for _ in range(3))
        changes: list[str] = []
        following = _next_commit(fields, changes)
        stats = [line.lstrip("\n").split("\t", 2) for line in changes if line.count("\t") >= 2]
        if not parents or not stats:
            continue
        lines = sum(int(added) + int(removed) for added, removed, _ in stats if added.isdigit())
        found.append(
            Commit(
                id=commit,
                parent=parents.split()[0],
                message=merged_message(message) if " " in parents.strip() else message.strip(),
                files=tuple(path for _, _, path in stats),
                lines=lines,
                date=date,
            )
        )
    return found


def _next_commit(fields: Iterator[str], before: list[str]) -> str:
    """Return the id of the next commit, or "" at the end. Fields before it are appended to ``before``."""
    for text in fields:
        if _HEAD.fullmatch(text):
            return text[1:]
        before.append(text)
    return ""


def merged_message(message: str) -> str:
    """Return the title and body of a merged request; the message itself if it states none.

    GitHub and GitLab write the branches into the first line of a merge, and the title below it.
    """
    head, _, rest = message.strip().partition("\n")
    return rest.strip() if _MERGE.match(head) and rest.strip() else message.strip()


_TRAILER = re.compile(r"(?im)^\s*(?:[A-Z][\w-]+-by|change-id|cc|co-authored-by|reviewed-on)\s*:.*$\n?")
_REFERENCE = re.compile(
    r"\s*\(?(?<!\w)(?:(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?|see|refs?|issue|pr|gh)[\s:]*)?(?:#|gh-)\d{1,5}(?!\w)\)?|https?://\S+",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^(?:fix|feat|feature|bug|refactor|perf)(?:\([^)]*\))?!?:\s*", re.IGNORECASE)


def cleaned(message: str) -> tuple[str, str]:
    """Return (subject, body) without trailers and references to issue trackers, which cannot be followed offline."""
    text = _REFERENCE.sub("", _TRAILER.sub("", message))
    subject, _, body = text.strip().partition("\n")
    lines = [line.rstrip() for line in body.strip().splitlines()]
    return _PREFIX.sub("", subject.strip()).rstrip(" .:-"), "\n".join(lines).strip()


_EVERY = ReplaySettings()


def replayable(
    commits: Sequence[Commit], code: Sequence[str], tests: Sequence[str], settings: ReplaySettings = _EVERY
) -> list[Commit]:
    """The commits that change Python files below both ``code`` and ``tests``, have a size and date within ``settings``,
    and have a telling message. Commits that ``settings`` names need no telling message, and may be of any size."""

    def touches(commit: Commit, roots: Sequence[str], others: Sequence[str]) -> bool:
        return any(f.endswith(".py") and _below(f, roots) and not _below(f, others) for f in commit.files)

    def wanted(commit: Commit) -> bool:
        if settings.commits or commit.id in settings.without:
            return commit.id in settings.commits and commit.id not in settings.without
        telling = len(cleaned(commit.message)[0]) >= 12 and not _NO_TASK.match(commit.message)
        small = len(commit.files) <= settings.max_files and settings.min_lines <= commit.lines <= settings.max_lines
        return telling and small and commit.date >= settings.since

    return [c for c in commits if wanted(c) and touches(c, code, tests) and touches(c, tests, ())]


def _below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
