"""Read a Node project as data: its code, its tests, how they are run and what they need."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Protocol

from woodshed.grading.node.grader import framework_of
from woodshed.grading.node.syntax import SUFFIXES
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.workspace import below


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RUNNERS = {"mocha": {"mocha": ">=10.2 <13"}, "tape": {"tape": "^5.6"}, "node:test": {}}
"""Framework -> packages to install; the runner may not support the project's own version of the framework."""

_OTHER_RUNNERS = re.compile(r"\b(jest|vitest|ava|tap|jasmine|qunit|karma|lab|vows|nodeunit|uvu|bun|deno|cypress)\b")
_TEST_FOLDERS = ("test", "tests", "spec", "specs", "__tests__")
_TEST_FILE = re.compile(r"(?:.*[._-])?(?:tests?|spec)\.[cm]?js|test[-_].*\.[cm]?js")
_NOT_CODE = _words(
    "doc docs example examples bench benchmark benchmarks perf script scripts tools build dist min umd browser "
    "coverage node_modules vendor demo demos website site types typings fixtures tasks support component"
)
_NOT_FILES = re.compile(
    r".*\.config\.[cm]?js|.*\.min\.js|\..*|(gruntfile|gulpfile|makefile|rollup.*|webpack.*|karma.*|bench.*|perf.*|"
    r"example.*|cli|bin)\.[cm]?js",
    re.IGNORECASE,
)
_LOADED = re.compile(r"""(?:\brequire\s*\(|\bimport\s*\(|\bfrom\s+|\bimport\s+)\s*['"]([^'"./][^'"]*)['"]""")
_KEPT = ("name", "version", "type", "main", "module", "exports", "imports")
_PYTHON = ("pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True)
class NodeProject:
    """The files of a project with a ``package.json``; a damaged one counts as empty."""

    files: Mapping[str, bytes] = field(repr=False)

    @cached_property
    def package(self) -> dict[str, Any]:
        try:
            found = json.loads(self.files.get("package.json", b"{}").decode("utf-8-sig"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        return str(self.package.get("name") or "")

    @property
    def version(self) -> str:
        """The version in ``package.json``, else ``0.0.0``."""
        stated = self.package.get("version")
        return stated if isinstance(stated, str) and re.fullmatch(r"[0-9][A-Za-z0-9.+-]{0,60}", stated) else "0.0.0"

    @property
    def licence(self) -> str:
        """The licence in ``package.json``; empty if it states none."""
        stated = self.package.get("license") or self.package.get("licenses")
        if isinstance(stated, list):
            stated = stated[0] if stated else ""
        if isinstance(stated, dict):
            stated = stated.get("type", "")
        return stated if isinstance(stated, str) and len(stated) < 80 else ""

    def stated(self) -> dict[str, str]:
        """Dependency -> range, of all that the project states; those needed to run it take precedence."""
        found: dict[str, str] = {}
        for table in ("dependencies", "peerDependencies", "optionalDependencies", "devDependencies"):
            entries = self.package.get(table)
            for name, wanted in entries.items() if isinstance(entries, dict) else ():
                found.setdefault(str(name), str(wanted))
        return found

    def minimal_package(self) -> bytes:
        """``package.json`` with only the fields that decide how the code is loaded."""
        kept = {key: self.package[key] for key in _KEPT if key in self.package}
        return (json.dumps(kept, indent=2) + "\n").encode()


@dataclass(frozen=True)
class NodeLayout:
    """The layout of a project. ``sources``, ``tests``: as in ``Package``; ``framework``: that of most test files."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    framework: str


def is_node_project(files: Mapping[str, bytes]) -> bool:
    """Return whether the files are a Node project: they have a ``package.json`` and no project file of Python."""
    return "package.json" in files and not any(name in files for name in _PYTHON)


def find_layout(project: NodeProject, *, sources: Sequence[str] = (), tests: Sequence[str] = ()) -> NodeLayout:
    """Return the layout of a project; ``sources`` and ``tests`` from the command line are used unchanged.

    Raises PackageError if it has no tests or no code, if its tests are for another runner, or if a path holds no file.
    """
    for root in (*sources, *tests):
        if not any(below(name, root) for name in project.files):
            raise PackageError(f"{root!r} is neither a file nor a folder of the project")
    scripts = sorted(n for n in project.files if n.endswith(SUFFIXES))
    found = tuple(tests) or _tests(scripts)
    files = test_files(project.files, found)
    if not files:
        raise PackageError(
            "no tests: there is no folder called test, tests, spec or __tests__ and no file *.test.js, *.spec.js or "
            "test.js (many npm packages are published without theirs: give the git repository, or --tests PATH)"
        )
    code = tuple(sources) or _sources([s for s in scripts if not any(below(s, t) for t in found)])
    if not code:
        raise PackageError("no JavaScript besides tests was found (TypeScript is not built); give --code PATH")
    used = Counter(framework_of(data.decode("utf-8", "replace")) for data in files.values())
    framework = used.most_common(1)[0][0]
    scripted = str((project.package.get("scripts") or {}).get("test", ""))
    other = _OTHER_RUNNERS.search(scripted)
    if framework == "mocha" and "mocha" not in project.stated() and other:
        raise PackageError(f"its tests are run by {other[1]}; only mocha, tape and node:test are supported")
    return NodeLayout(code, found, framework)


def test_files(files: Mapping[str, bytes], roots: Sequence[str]) -> dict[str, bytes]:
    """The files below ``roots`` that hold tests: they load a framework, or call the functions of mocha."""
    called = re.compile(rb"(?m)\b(?:describe|suite|it|test)\s*\(")
    loads = re.compile(rb"""['"](?:tape|node:test)['"]""")
    return {
        name: data
        for name, data in sorted(files.items())
        if name.endswith(SUFFIXES)
        and any(below(name, r) for r in roots)
        and (loads.search(data) or called.search(data))
    }


test_files.__test__ = False  # type: ignore[attr-defined]


class Places(Protocol):
    """``sources`` and ``tests``: of a ``NodeLayout``, or of a ``Package``."""

    @property
    def sources(self) -> tuple[str, ...]: ...

    @property
    def tests(self) -> tuple[str, ...]: ...


def needed(project: NodeProject, layout: Places, wished: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return (packages to install: name -> range, packages that tests or code load but the project does not state)."""
    stated = {**project.stated(), **wished}
    loaded: set[str] = set()
    for name, data in project.files.items():
        if name.endswith(SUFFIXES) and any(below(name, root) for root in (*layout.sources, *layout.tests)):
            loaded |= {_package(found) for found in _LOADED.findall(data.decode("utf-8", "replace"))}
    chosen = {n: stated[n] for n in sorted(loaded | set(wished)) if n in stated and _is_range(stated[n])}
    chosen.pop(project.name, None)
    used = {framework_of(d.decode("utf-8", "replace")) for d in test_files(project.files, layout.tests).values()}
    for framework in sorted(used):
        chosen |= RUNNERS[framework]
    known = {*chosen, *stated, *_BUILTIN, project.name}
    return chosen, sorted(n for n in loaded if n not in known and not n.startswith("node:"))


_BUILTIN = _words(
    "assert async_hooks buffer child_process cluster console constants crypto dgram dns domain events fs http http2 "
    "https inspector module net os path perf_hooks process punycode querystring readline repl stream string_decoder "
    "sys timers tls tty url util v8 vm worker_threads zlib test diagnostics_channel"
)


def _package(loaded: str) -> str:
    """The package, ``@scope/name`` or ``name``, of a loaded path."""
    return "/".join(loaded.split("/")[: 2 if loaded.startswith("@") else 1])


def _is_range(wanted: str) -> bool:
    """Return whether a requirement is a range of versions, not a path, URL, workspace or alias of another package."""
    return not re.search(r"[:/]", wanted)


def _tests(scripts: Sequence[str]) -> tuple[str, ...]:
    roots: list[str] = []
    for name in sorted(scripts, key=lambda n: n.count("/")):
        parts = PurePosixPath(name).parts
        if any(part in _NOT_CODE for part in parts[:-1]):
            continue
        named = [i for i, part in enumerate(parts[:-1]) if part.lower() in _TEST_FOLDERS]
        root = "/".join(parts[: named[0] + 1]) if named else name
        if (named or _TEST_FILE.fullmatch(parts[-1])) and not any(below(root, r) for r in roots):
            roots.append(root)
    return tuple(roots)


def _sources(scripts: Sequence[str]) -> tuple[str, ...]:
    """Top-level folders with code, and top-level files."""
    roots: dict[str, None] = {}
    for name in scripts:
        parts = PurePosixPath(name).parts
        if any(p.lower() in _NOT_CODE or p.startswith(".") for p in parts[:-1]) or _NOT_FILES.fullmatch(parts[-1]):
            continue
        roots[parts[0]] = None
    return tuple(roots)
