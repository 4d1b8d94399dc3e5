"""Read a copy of RefactorBench: its tasks with tests and instructions, and its repositories.

Everything is read as text or data; no code of the copy is run here.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from woodshed.record.python_source import parse_python
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.repository import read_folder
from woodshed.tasks.validate.gates import is_text
from woodshed.tasks.validate.leaks import forbidden_name

NAME = "refactorbench"
STYLES = {"precise": "descriptive", "normal": "base", "terse": "lazy"}
"""RefactorBench's name of the style, by level of the instruction."""

_LAYOUT = "scripts/base_mapping.py, problems/STYLE_problems/REPOSITORY, tests/REPOSITORY and repositories/REPOSITORY"
_TEST = re.compile(r"\.\./tests/([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*\.py)")
_PROBLEM = re.compile(r"\.\./problems/base_problems/([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*\.txt)")
_UP = "../"


@dataclass(frozen=True)
class Refactoring:
    """One task. ``repository``: name of its folder; ``instructions``: text by level; ``test``: a unittest file that
    runs in a folder of the repository; ``reads``: globs of the files that the test reads, relative to the
    repository."""

    name: str
    repository: str
    instructions: Mapping[str, str]
    test: bytes
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """The text files of a repository, its licence, and a digest of them."""

    files: Mapping[str, bytes]
    licence: str
    sha256: str


def read_tasks(source: str) -> tuple[Path, list[Refactoring]]:
    """Return the folder of the copy, and its tasks sorted by repository and name. Raises PackageError, which says what
    the copy should look like."""
    folder = Path(source.partition(":")[2]).expanduser()
    if not folder.is_dir():
        raise PackageError(f"{source}: no such folder; give the copy of RefactorBench that you have")
    mapping = folder / "scripts" / "base_mapping.py"
    if not mapping.is_file():
        bare = "; this is a bare git repository: clone it" if (folder / "objects").is_dir() else ""
        raise PackageError(f"{source}: not a copy of RefactorBench; expected {_LAYOUT}{bare}")
    found = [_task(folder, mapping, test, problem) for test, problem in _mapping(mapping).items()]
    return folder, sorted(found, key=lambda task: (task.repository, task.name))


def read_workspace(folder: Path, repository: str) -> Repository:
    """Read the part of a repository that an agent gets: text files of at most 512 KiB, without caches and version
    control. Raises PackageError if the folder is missing."""
    place = folder / "repositories" / repository
    if not place.is_dir():
        raise PackageError(
            f"{place}: no such folder; the copy of RefactorBench lacks a repository that it has tasks of"
        )
    every = read_folder(place).files
    files = {name: data for name, data in every.items() if is_text(name, data) and not forbidden_name(name)}
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{len(name.encode())}:{len(data)}:".encode() + name.encode() + data)
    return Repository(files, Project(files).licence, digest.hexdigest())


def files_read(test: bytes) -> tuple[str, ...]:
    """Return globs of the files that a test names; it names them relative to a folder of the repository (``../NAME``).

    Raises SyntaxError or ValueError if the test is not Python.
    """
    tree = parse_python(test)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = sorted(text.removeprefix(_UP) for text in texts if text.startswith(_UP) and "\n" not in text)
    globs = [f"{name.rstrip('/')}/**" if _is_folder(name) else name for name in named if ".." not in name.split("/")]
    return tuple(dict.fromkeys(globs))


def _is_folder(name: str) -> bool:
    return name.endswith("/") or not PurePosixPath(name).suffix


def _mapping(path: Path) -> dict[str, str]:
    """Return the dictionary ``{TEST: PROBLEM}`` of a mapping script, which is parsed but not run."""
    try:
        body = parse_python(_text(path)).body
        values = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign)]
    except (SyntaxError, ValueError) as error:
        raise PackageError(f"{path}: not a dictionary of tests and problems ({error})") from None
    if len(values) != 1 or not isinstance(values[0], dict) or not values[0]:
        raise PackageError(f"{path}: expected one dictionary of tests and problems, and nothing else")
    return values[0]


def _task(folder: Path, mapping: Path, test: object, problem: object) -> Refactoring:
    first, second = _TEST.fullmatch(str(test)), _PROBLEM.fullmatch(str(problem))
    if first is None or second is None or first[1] != second[1]:
        raise PackageError(
            f"{mapping}: {test!r}: {problem!r}: expected ../tests/REPOSITORY/FILE.py and "
            "../problems/base_problems/REPOSITORY/FILE.txt"
        )
    repository, source = first[1], folder / "tests" / first[1] / first[2]
    texts = {
        level: _text(folder / "problems" / f"{style}_problems" / repository / second[2]).strip() + "\n"
        for level, style in STYLES.items()
    }
    code = _text(source).encode()
    try:
        reads = files_read(code)
    except (SyntaxError, ValueError) as error:
        raise PackageError(f"{source}: not Python ({error})") from None
    return Refactoring(second[2].removesuffix(".txt").removesuffix("-task"), repository, texts, code, reads)


def _text(path: Path) -> str:
    """Read a regular file as text. Raises PackageError, which names the file."""
    try:
        if path.is_symlink() or not path.is_file():
            raise PackageError(f"{path}: no such file; expected {_LAYOUT}")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{path}: cannot be read ({error})") from None
