"""Arguments of pytest that a project's own configuration gives (``addopts``) and that are safe in a box.

Only what decides which tests there are is taken: markers, keywords, what is ignored or deselected, how modules are
imported. Options of plugins (``--cov``, ``-n auto``) need what is not there, and the rest is the grader's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import PurePosixPath

from woodshed.tasks.generators.packages.index import PackageError

from .project import Project

_PATHS = ("--ignore", "--ignore-glob", "--deselect")
_VALUED = ("-m", "-k", "--import-mode", *_PATHS)
_LAST_WINS = ("-m", "-k", "--import-mode")


def own_options(project: Project, markers: str = "") -> tuple[str, ...]:
    """The arguments, one after the other. ``markers``: a person's expression in place of the project's ``-m``.

    Raises PackageError for an expression that pytest could not read.
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
    """The expression over markers among ``own_options``."""
    return next((value for option, value in itertools.pairwise(options) if option == "-m"), "")


def _valued(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Known options with their values, as ``-m X``, ``-mX``, ``--ignore X`` or ``--ignore=X``."""
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
    """Whether a path is one of the project, wherever that lies."""
    place = PurePosixPath(path.partition("::")[0])
    return not place.is_absolute() and ".." not in place.parts


def _expression(text: str) -> str:
    """``text`` if it is a Boolean expression over words, as pytest has it."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    code = " ".join(w if w in ("and", "or", "not", "(", ")") else "True" for w in words)
    try:
        compile(code, "--markers", "eval")
    except SyntaxError:
        advice = "write an expression over markers, such as 'not slow and not network'"
        raise PackageError(f"--markers {text}: {advice}") from None
    return " ".join(text.split())
