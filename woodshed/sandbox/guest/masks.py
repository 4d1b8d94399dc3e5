"""Finds the folders of the host that hold packages. Boxes hide them, because they may contain a task's solution.

That is more than what ``pip`` has installed: package managers ship wheels (``ensurepip``), programs bring the packages
that they use (``npm``, cloud tools, debuggers), and distributions keep modules of Node in ``share``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "games", "include", "etc", "var")
_ALWAYS = ("src", "share/python-wheels", "share/nodejs", "share/doc")  # documentation contains examples
_NAMED = {"node_modules", "site-packages", "dist-packages", "_bundled"}
_COPIES = (".whl", ".egg", ".dist-info", ".egg-info", ".pyz")
_MARKS = {"__init__.py", "package.json"}
_WITHOUT = {
    "include",
    "man",
    "info",
    "help",
    "locale",
    "zoneinfo",
    "icons",
    "fonts",
    "terminfo",
    "firmware",
    "modules",
    "perl",
    "perl5",
    "__pycache__",
}
"""Names of folders that are not searched: they hold many files but no packages."""
_STANDARD = re.compile(r"(python|pypy)\d[\d.]*t?$")
_MOST = 8
"""Maximum number of package folders masked one by one; a program that has more of them is masked as a whole."""


def installed_packages(place: str) -> list[str]:
    """List the folders below ``place`` (a ``/usr``, or an interpreter's prefix) that hold packages, sorted.

    None is inside another, and none is a link.
    """
    found = {f"{place}/{name}" for name in _ALWAYS if _is_folder(f"{place}/{name}")}
    by_program: dict[str, list[str]] = defaultdict(list)
    for program in _programs(place):
        if program in found:
            continue
        for folder in _packages(program):
            by_program[program].append(folder)
            if len(by_program[program]) > _MOST and not _is_shared(program):
                by_program[program] = [program]
                break
    if _is_folder(f"{place}/local"):
        found.update(installed_packages(f"{place}/local"))
    return sorted(found.union(*by_program.values()))


def _programs(place: str) -> Iterator[str]:
    """Yield the folders in ``lib``, ``share`` and so on below ``place``, and further folders directly below it."""
    for entry in _folders(place):
        if entry.name not in _SYSTEM and entry.name != "local":
            yield entry.path
        elif entry.name not in _WITHOUT:
            yield from (e.path for e in _folders(entry.path) if e.name not in _WITHOUT)


def _packages(program: str) -> Iterator[str]:
    """Yield the folders of packages in ``program``, topmost first, none inside another."""
    name = os.path.basename(program)
    if _STANDARD.fullmatch(name) and os.path.basename(os.path.dirname(program)).startswith("lib"):
        kinds = ("site-packages", "dist-packages", "ensurepip/_bundled")
        yield from (f"{program}/{kind}" for kind in kinds if _is_folder(f"{program}/{kind}"))
        return
    level = [program]
    while level:
        below: list[str] = []
        for folder in level:
            inside = [e for e in _folders(folder) if e.name not in _WITHOUT]
            packages = [e.path for e in inside if _is_package(e.path)]
            if packages and _is_shared(folder):
                yield from packages
                below += [e.path for e in inside if e.path not in packages]
            elif packages or os.path.basename(folder) in _NAMED or _holds(folder):
                yield folder  # the whole folder: single modules lie beside packages
            else:
                below += [e.path for e in inside]
        level = below


def _is_shared(folder: str) -> bool:
    """Return whether a folder holds the libraries of all programs (of one architecture)."""
    return "-linux-" in os.path.basename(folder)


def _is_package(folder: str) -> bool:
    return not _MARKS.isdisjoint(_names(folder))


def _holds(folder: str) -> bool:
    """Return whether a folder is a package, or holds archives or installation records of packages."""
    return any(name in _MARKS or name.endswith(_COPIES) for name in _names(folder))


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((e for e in entries if e.is_dir(follow_symlinks=False)), key=lambda e: e.name)
    except OSError:
        return []


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
