"""Parse sources (``pypi:NAME==VERSION``, ``npm:NAME@VERSION``, a folder, a git repository) and pytest's ``addopts``.

Folders and repositories may end in ``@COMMIT``. Of a project's ``addopts``, only arguments that select tests are used:
markers, keywords, ignored and deselected paths, the import mode. Options of plugins (``--cov``, ``-n auto``) would fail
without the plugins, and the others are up to the grader.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from woodshed.tasks.packages.index import PackageError

from .project import Project

_PYPI = re.compile(r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.+!-]*)")
_NPM = re.compile(
    r"npm:((?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*)(?:==|@)(\d+\.\d+\.\d+(?:[-+][\w.+-]+)?)"
)
_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")


@dataclass(frozen=True)
class SourceSpec:
    """A parsed source. ``text``: as written; ``place``: the project, the URL or the absolute path; ``version``: of the
    project, or the commit (empty: the newest)."""

    text: str
    kind: Literal["pypi", "npm", "folder", "git"]
    place: str
    version: str = ""

    @property
    def name(self) -> str:
        """Prefix of the names of its tasks: the project's name, or the last part of the path."""
        last = self.place.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
        return source_name(last) or "source"

    @property
    def origin(self) -> str:
        """The source as the lock and the tasks record it: without user name and password."""
        if self.kind == "pypi":
            return f"pypi:{self.place}=={self.version}"
        if self.kind == "npm":
            return f"npm:{self.place}@{self.version}"
        place = re.sub(r"(?<=//)[^/@]*@", "", self.place) if "://" in self.place else self.place
        return f"{place}@{self.version}" if self.version else place


def source_name(text: str) -> str:
    """``text`` in lower case, with ``-`` for everything but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def parse_source(text: str) -> SourceSpec:
    """Parse a source. Raises PackageError, which says how a source is written."""
    if text.startswith("pypi:"):
        match = _PYPI.fullmatch(text)
        if match is None:
            raise PackageError(f"{text}: write pypi:NAME==VERSION, with the version to make tasks from")
        return SourceSpec(text, "pypi", *match.groups())
    if text.startswith("npm:"):
        match = _NPM.fullmatch(text)
        if match is None:
            raise PackageError(f"{text}: write npm:NAME@VERSION, with the whole version to make tasks from")
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
            "repository (folder and URL with @COMMIT for another than the newest), or my_module:my_source"
        )
    folder = folder.resolve()
    repository = (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())
    if commit and not repository:
        raise PackageError(f"{text}: {folder} is not a git repository, so it has no commit {commit!r}; remove the @")
    return SourceSpec(text, "git" if repository else "folder", str(folder), commit)


def distinct_names(specs: Iterable[SourceSpec], taken: Iterable[str]) -> list[str]:
    """A name for each spec, in order; names that are taken get a number."""
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


_PATHS = ("--ignore", "--ignore-glob", "--deselect")
_VALUED = ("-m", "-k", "--import-mode", *_PATHS)
_LAST_WINS = ("-m", "-k", "--import-mode")


def own_options(project: Project, markers: str = "") -> tuple[str, ...]:
    """Arguments of pytest from the project's ``addopts``; ``markers``, if given, replaces its ``-m``.

    Raises PackageError if ``markers`` is not an expression that pytest can read.
    """
    single: dict[str, str] = {}
    several: list[tuple[str, str]] = []
    for option, value in _valued(project.addopts):
        if option in _LAST_WINS:
            single[option] = value
        elif _inside(value):
            several.append((option, value))
    if markers:
        single["-m"] = _expression(markers)
    words: list[str] = []
    for option, value in [*single.items(), *several]:
        words += [f"{option}={value}"] if option.startswith("--") else [option, value]
    return tuple(words)


def marked(options: Sequence[str]) -> str:
    """The ``-m`` expression among ``own_options``."""
    return next((value for option, value in itertools.pairwise(options) if option == "-m"), "")


def _valued(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return (option, value) of known options, written ``-m X``, ``-mX``, ``--ignore X`` or ``--ignore=X``."""
    found = []
    words = iter(arguments)
    for word in words:
        if word in _VALUED:
            found.append((word, next(words, "")))
        elif word.startswith("--") and word.partition("=")[0] in _VALUED:
            found.append((word.partition("=")[0], word.partition("=")[2]))
        elif word[:2] in ("-m", "-k") and len(word) > 2:
            found.append((word[:2], word[2:]))
    return [(option, value) for option, value in found if value and "\n" not in value]


def _inside(path: str) -> bool:
    """Return whether a path is relative and stays inside the project."""
    place = PurePosixPath(path.partition("::")[0])
    return not place.is_absolute() and ".." not in place.parts


def _expression(text: str) -> str:
    """``text`` with normalised spaces; PackageError unless it is a Boolean expression over words."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    code = " ".join(w if w in ("and", "or", "not", "(", ")") else "True" for w in words)
    try:
        compile(code, "--markers", "eval")
    except SyntaxError:
        advice = "write an expression over markers, such as 'not slow and not network'"
        raise PackageError(f"--markers {text}: {advice}") from None
    return " ".join(text.split())
