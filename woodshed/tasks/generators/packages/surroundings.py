"""What a repository has around its code and tests: README, documentation, project files. Realistic workspaces keep it.

Change logs are left out, since they tell what was fixed; everything that stays goes through the leak scan, and a file
that holds the answer of a task is missing in that task alone (``trial.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

MAX_FILE_BYTES = 512 << 10
MAX_BYTES = 2 << 20
"""Of all such files together; the first by name are taken."""

_TEXT = frozenset((".md", ".rst", ".txt"))
_PROSE = re.compile(r"(?i)(?:readme|contributing|licen[cs]e|copying|authors|security|code_of_conduct)(?:\.\w+)?")
_PROJECT = frozenset((
    "pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "MANIFEST.in", "Makefile", "mypy.ini", ".editorconfig",
    ".gitignore",
))  # fmt: skip
_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(?:txt|in)")
_LOG = re.compile(r"(?i)(?:^|[/_.-])(?:changes|changelog|history|news|release[s_-]?(?:notes)?|whatsnew|migrat\w*)\b")
_DOCS = ("docs", "doc")


def surroundings(files: Mapping[str, bytes], taken: Collection[str] = (), *, project: bool = True) -> dict[str, bytes]:
    """Those of ``files``, besides what is ``taken`` already. ``project``: project files too, those of Python."""
    found: dict[str, bytes] = {}
    total = 0
    for name, data in sorted(files.items()):
        if name in taken or not is_surrounding(name, project=project) or not is_text(data):
            continue
        if total + len(data) <= MAX_BYTES:
            found[name] = data
            total += len(data)
    return found


def is_surrounding(name: str, *, project: bool = True) -> bool:
    """Whether a file is one of the kinds that are kept beside code and tests."""
    path = PurePosixPath(name)
    if _LOG.search(name):
        return False
    if path.parts[0].lower() in _DOCS and len(path.parts) > 1:
        return path.suffix in _TEXT and not any(part.startswith((".", "_build")) for part in path.parts)
    if len(path.parts) > 1:
        return False
    named = path.name in _PROJECT or _REQUIREMENTS.fullmatch(path.name) is not None
    return _PROSE.fullmatch(path.name) is not None or (project and named)


def is_text(data: bytes) -> bool:
    """Whether a file is UTF-8 text of at most MAX_FILE_BYTES."""
    if len(data) > MAX_FILE_BYTES or b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
