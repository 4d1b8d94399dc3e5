"""What a person writes as a source: ``pypi:NAME==VERSION``, ``npm:NAME@VERSION``, a folder, or a git repository.

The last two may end in ``@COMMIT``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from woodshed.tasks.generators.packages.index import PackageError

_PYPI = re.compile(r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.+!-]*)")
_NPM = re.compile(
    r"npm:((?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*)(?:==|@)(\d+\.\d+\.\d+(?:[-+][\w.+-]+)?)"
)
_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")


@dataclass(frozen=True)
class SourceSpec:
    """``text`` is the source as written. ``place`` is the project, the URL or the absolute path; ``version`` that of
    the project, or the commit asked for (empty: the newest)."""

    text: str
    kind: Literal["pypi", "npm", "folder", "git"]
    place: str
    version: str = ""

    @property
    def name(self) -> str:
        """Name of its tasks: the project's, or the last part of the path."""
        last = self.place.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
        return source_name(last) or "source"

    @property
    def origin(self) -> str:
        """What the lock and the tasks record: without a user name or a password."""
        if self.kind == "pypi":
            return f"pypi:{self.place}=={self.version}"
        if self.kind == "npm":
            return f"npm:{self.place}@{self.version}"
        place = re.sub(r"(?<=//)[^/@]*@", "", self.place) if "://" in self.place else self.place
        return f"{place}@{self.version}" if self.version else place


def source_name(text: str) -> str:
    """``text`` as a source is called."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def parse_source(text: str) -> SourceSpec:
    """Raises PackageError that says how a source is written."""
    if text.startswith("pypi:"):
        match = _PYPI.fullmatch(text)
        if match is None:
            raise PackageError(f"{text}: write pypi:NAME==VERSION, with the version that the tasks shall be made from")
        return SourceSpec(text, "pypi", *match.groups())
    if text.startswith("npm:"):
        match = _NPM.fullmatch(text)
        if match is None:
            raise PackageError(
                f"{text}: write npm:NAME@VERSION, with the whole version that the tasks shall be made from"
            )
        return SourceSpec(text, "npm", *match.groups())
    if _URL.fullmatch(text) and not Path(text).exists():
        head, slash, tail = text.rpartition("/")
        place, _, commit = tail.partition("@")
        return SourceSpec(text, "git", head + slash + place, commit)
    path, commit = (text, "") if Path(text).exists() else _at(text)
    folder = Path(path).expanduser()
    if not text or not folder.is_dir():
        raise PackageError(
            f"{text}: no such folder; a source is pypi:NAME==VERSION, npm:NAME@VERSION, a folder, or the URL of a git "
            "repository (folder and URL with @COMMIT, if it shall not be the newest)"
        )
    folder = folder.resolve()
    repository = (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())
    if commit and not repository:
        raise PackageError(f"{text}: {folder} is not a git repository, so it has no commit {commit!r}; leave @ away")
    return SourceSpec(text, "git" if repository else "folder", str(folder), commit)


def distinct_names(specs: Iterable[SourceSpec], taken: Iterable[str]) -> list[str]:
    """A name for each spec, in order; one that is taken gets a number."""
    used = set(taken)
    names = []
    for spec in specs:
        name, number = spec.name, 1
        while name in used:
            number += 1
            name = f"{spec.name}-{number}"
        used.add(name)
        names.append(name)
    return names


def _at(text: str) -> tuple[str, str]:
    path, _, commit = text.rpartition("@")
    return (path, commit) if path else (text, "")
