"""Requirements that the files of a project state for running and testing it. Nothing of the project is run.

``setup.py`` is read as a syntax tree, as far as requirements are literals there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from woodshed.record.python_source import parse_python
from woodshed.tasks.packages.index import PackageError

from .project import Project


@dataclass(frozen=True)
class Stated:
    """Requirements in a ``setup.py``. ``install``: lines of ``install_requires``; ``groups``: those of
    ``extras_require`` by name, and of ``tests_require`` as ``tests``."""

    install: tuple[str, ...] = ()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_setup(text: str) -> Stated:
    """Requirements in the call of ``setup``: literals, variables of the module, and sums of lists.

    Anything that is computed in another way is ignored.
    """
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError):
        return Stated()
    known: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assign(node.targets[0], _value(node.value, known), known)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _name(n.func) == "setup"]
    given = {k.arg: _value(k.value, known) for call in calls[:1] for k in call.keywords if k.arg}
    extras = given.get("extras_require")
    groups = {str(k): _lines(v) for k, v in extras.items()} if isinstance(extras, dict) else {}
    if tests := _lines(given.get("tests_require")):
        groups["tests"] = (*groups.get("tests", ()), *tests)
    return Stated(_lines(given.get("install_requires")), groups)


def _assign(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        known[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(table := _value(target.value, known), dict):
        key = _value(target.slice, known)
        if isinstance(key, str):
            table[key] = value


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """The text, list or table of an expression; None if it is not a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element, known) for element in node.elts]
    if isinstance(node, ast.Dict):
        pairs = [(_value(k, known), _value(v, known)) for k, v in zip(node.keys, node.values) if k is not None]
        return {k: v for k, v in pairs if isinstance(k, str)}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, known), _value(node.right, known)
        return [*left, *right] if isinstance(left, list) and isinstance(right, list) else left or right
    if isinstance(node, ast.Subscript):
        table, key = _value(node.value, known), _value(node.slice, known)
        return table.get(key) if isinstance(table, dict) and isinstance(key, str) else None
    return None


def _lines(value: Any) -> tuple[str, ...]:
    lines = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(line for line in lines if isinstance(line, str))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[\w.*+!-]+"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})\s*(?P<extras>\[[\w\s,.-]*\])?\s*"
    rf"(?P<version>\(?{_VERSION}(?:\s*,\s*{_VERSION})*\s*,?\s*\)?)?\s*(?P<marker>;[^\n]*)?"
)
_TEST_GROUP = re.compile(r"(?i)(.*[-_.])?(test|tests|testing|pytest|unittest)([-_.].*)?")
_TEST_FILE = re.compile(r"(?i)(.*/)?(requirements[-_./]*)?(dev[-_.]*)?tests?(ing)?([-_.]*requirements)?\.(txt|in)")
_REQUIREMENTS_FILE = re.compile(r"(?i)[^/]*requirements[^/]*\.(txt|in)|requirements/[^/]+\.(txt|in)")
# Not needed in a box: test runners, linters, documentation builders, and pytest plugins, which are never loaded there.
_NO_USE = re.compile(
    r"(?i)pytest(-.*)?|coverage|codecov|coveralls|tox(-.*)?|nox|ruff|mypy|pyright|black|flake8(-.*)?|isort|pylint|"
    r"sphinx(-.*)?|furo|mkdocs(-.*)?|pre-commit|build|twine|wheel|bumpversion|towncrier|check-manifest|interrogate"
)

# Import names that differ from the name of their distribution, and a few that tests use but projects seldom state.
_DISTRIBUTIONS = {
    "dateutil": "python-dateutil", "attr": "attrs", "bs4": "beautifulsoup4", "pkg_resources": "setuptools",
    "docutils": "docutils", "jwt": "pyjwt", "dotenv": "python-dotenv", "slugify": "python-slugify",
    "serial": "pyserial", "usb": "pyusb", "git": "gitpython", "OpenSSL": "pyopenssl", "magic": "python-magic",
    "mock": "mock", "six": "six", "typing_extensions": "typing-extensions", "hypothesis": "hypothesis",
    "freezegun": "freezegun", "pytz": "pytz", "tzdata": "tzdata", "requests_mock": "requests-mock",
    "importlib_metadata": "importlib-metadata", "importlib_resources": "importlib-resources", "toml": "toml",
    "tomli": "tomli", "tomlkit": "tomlkit", "simplejson": "simplejson", "pretend": "pretend", "trio": "trio",
    "yaml": "pyyaml", "PIL": "pillow", "numpy": "numpy", "lxml": "lxml", "sklearn": "scikit-learn",
    "Crypto": "pycryptodome", "msgpack": "msgpack", "regex": "regex", "psutil": "psutil",
}  # fmt: skip


@dataclass(frozen=True)
class Requirement:
    """One requirement. ``text``: the argument for pip; ``where``: the file and table that state it."""

    name: str
    text: str
    where: str


def canonical(name: str) -> str:
    """The name by which package indexes know a project (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(line: str, where: str) -> Requirement | None:
    """Parse one line; None unless it is a plain requirement, so that options, paths and URLs never reach pip."""
    line = line.partition(" #")[0].strip()
    match = _REQUIREMENT.fullmatch(line)
    return Requirement(canonical(match["name"]), line, where) if match else None


def wished(texts: Sequence[str]) -> list[Requirement]:
    """The requirements of ``--needs``. Raises PackageError for a text that is not a requirement."""
    found = []
    for text in texts:
        requirement = parse_requirement(text, "--needs")
        if requirement is None:
            raise PackageError(f"--needs {text}: write a package as in a requirements file, such as pytz>=2024")
        found.append(requirement)
    return found


def needed(project: Project, name: str) -> list[Requirement]:
    """Requirements for running and testing the project, without its own ``name`` and tools that a box does not need."""
    stated = [*_runtime(project), *(r for group, r in _groups(project) if _TEST_GROUP.fullmatch(group))]
    return _useful(stated, name)


def optional(project: Project, name: str) -> dict[str, Requirement]:
    """Canonical name -> requirement, of all groups that the project states (other extras, development files)."""
    return {r.name: r for r in _useful([r for _, r in _groups(project)], name)}


def everything(project: Project) -> list[Requirement]:
    """All requirements that the project states, tools and its own name included."""
    return [*_runtime(project), *(r for _, r in _groups(project))]


def distribution_of(module: str, stated: dict[str, Requirement]) -> Requirement | None:
    """The requirement for ``import module``: one that the project states, else from a short list of known names.

    Other modules give None. Their distribution is not guessed, because whoever owns that name on an index would control
    the task.
    """
    for name in possible_names(module):
        if name in stated:
            return stated[name]
    known = _DISTRIBUTIONS.get(module)
    return Requirement(canonical(known), known, "known import name") if known else None


def possible_names(module: str) -> list[str]:
    """Canonical names of distributions that may provide ``import module``, the likeliest first."""
    names = [canonical(module), canonical(_DISTRIBUTIONS.get(module, module))]
    return list(dict.fromkeys([*names, *(f"python-{n}" for n in names), *(f"py{n}" for n in names)]))


def missing_modules(text: str) -> list[str]:
    """Top-level names of the modules that a run of pytest could not import, in order."""
    found = re.findall(r"(?:No module named|cannot import name '\w+' from) '([\w.]+)'", text)
    return list(dict.fromkeys(name.partition(".")[0] for name in found))


def _useful(stated: Iterable[Requirement], name: str) -> list[Requirement]:
    kept: dict[str, Requirement] = {}
    for requirement in stated:
        if requirement.name != canonical(name) and not _NO_USE.fullmatch(requirement.name):
            kept.setdefault(requirement.name, requirement)
    return list(kept.values())


def _runtime(project: Project) -> list[Requirement]:
    lines = [(str(line), "pyproject.toml [project]") for line in _list(project.table("project").get("dependencies"))]
    lines += [
        (line, "setup.cfg") for line in project.section("setup.cfg", "options").get("install_requires", "").splitlines()
    ]
    lines += [(line, "setup.py install_requires") for line in read_setup(project.text("setup.py")).install]
    lines += [(line, "PKG-INFO") for line in project.metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    lines += [(line, "requirements.txt") for line in project.text("requirements.txt").splitlines()]
    poetry = project.table("tool", "poetry", "dependencies")
    lines += [(name, "pyproject.toml [tool.poetry]") for name in poetry if name.lower() != "python"]
    return _parsed(lines)


def _groups(project: Project) -> list[tuple[str, Requirement]]:
    """Return (name of the group or of its file, requirement) of each requirement in a group."""
    found: list[tuple[str, str, str]] = []
    for table in (project.table("project", "optional-dependencies"), project.table("dependency-groups")):
        for group, lines in table.items():
            found += [(group, str(line), f"pyproject.toml group {group}") for line in _list(lines)]
    for group, entries in project.table("tool", "poetry", "group").items():
        names = entries.get("dependencies", {}) if isinstance(entries, dict) else {}
        found += [(group, str(n), f"pyproject.toml poetry group {group}") for n in names]
    for group, text in project.section("setup.cfg", "options.extras_require").items():
        found += [(group, line, f"setup.cfg extra {group}") for line in text.splitlines()]
    for line in project.section("setup.cfg", "options").get("tests_require", "").splitlines():
        found.append(("tests", line, "setup.cfg tests_require"))
    for group, texts in read_setup(project.text("setup.py")).groups.items():
        found += [(group, line, f"setup.py extra {group}") for line in texts]
    for line in project.section("tox.ini", "testenv").get("deps", "").splitlines():
        found.append(("tests", line.rpartition(": ")[2], "tox.ini [testenv]"))
    for line in project.metadata.get_all("Requires-Dist", []):
        head, _, marker = line.partition(";")
        extra = re.search(r"""extra == ['"]([^'"]+)['"]""", marker)
        if extra:
            found.append((extra[1], head, f"PKG-INFO extra {extra[1]}"))
    for name in sorted(project.files):
        if _REQUIREMENTS_FILE.fullmatch(name) or (_TEST_FILE.fullmatch(name) and name.count("/") < 2):
            group = "tests" if _TEST_FILE.fullmatch(name) else PurePosixPath(name).stem
            found += [(group, line, name) for line in project.text(name).splitlines()]
    return [(group, r) for group, line, where in found if (r := parse_requirement(line, where))]


def _parsed(lines: list[tuple[str, str]]) -> list[Requirement]:
    return [r for line, where in lines if (r := parse_requirement(line, where))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
