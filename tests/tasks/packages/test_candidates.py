"""What becomes a task, and how it is described: no box needed."""

from __future__ import annotations

import ast
import asyncio
import difflib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from woodshed.grading.results import TestResult, TestRun
from woodshed.tasks.generators.changes.candidates import candidates
from woodshed.tasks.generators.changes.partition import unplanned
from woodshed.tasks.generators.prompts.instruction import (
    bug_report,
    feature_request,
    located_bug_report,
    module_name,
    pointed_bug_report,
    signature_of,
)
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import CoveredFunction, Suite, reruns, stable_tests, unused_tests
from woodshed.tasks.packages.workspace import protected_globs, submission_globs, surroundings, workspace_of
from woodshed.tasks.settings import PackageTaskSettings

from . import tiny

FUNCTIONS = tuple(
    CoveredFunction("tinyshapes/shapes.py", name, 1, 9, 4, ("tests/test_shapes.py::test_area",))
    for name in ("area", "diagonal", "Box.size", "Box.__init__")
)
TESTS = dict.fromkeys(("tests/test_shapes.py::test_area", "tests/test_shapes.py::test_other"), 0.1)
SUITE = Suite("tinyshapes", TESTS, FUNCTIONS, {}, 1.0)
WORKSPACE = {"tinyshapes/shapes.py": tiny.SHAPES}


def test_workspace_holds_sources_tests_and_what_surrounds_them() -> None:
    kept = workspace_of(tiny.package(), tiny.FILES)
    assert set(kept) == {
        "tinyshapes/__init__.py",
        "tinyshapes/shapes.py",
        "tests/conftest.py",
        "tests/test_shapes.py",
        "tests/test_other.py",
        "pytest.ini",
        "setup.py",
        "pyproject.toml",
        "docs/index.rst",
        "README.md",
    }
    assert kept["pytest.ini"] == b"[pytest]\naddopts = -p no:cacheprovider\npythonpath = .\n"
    assert submission_globs(tiny.package()) == ("tinyshapes/**/*.py",)
    assert "**/conftest.py" in protected_globs(tiny.package())
    with pytest.raises(PackageError, match="nothing under 'tests'"):
        workspace_of(tiny.package(), {"tinyshapes/a.py": b""})


def test_a_package_called_build_is_code() -> None:
    own = {f"tinyshapes/build/{name}": b"" for name in ("__init__.py", "wheel.py", "data/a.json")}
    made = {f"tinyshapes/dist/{name}": b"" for name in ("a.py", "tinyshapes/__init__.py")}
    assert workspace_of(tiny.package(), {**tiny.FILES, **own, **made}).keys() - tiny.FILES.keys() == own.keys() | {
        "pytest.ini"
    }


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("README", True),
        ("readme.rst", True),
        ("LICENSE.txt", True),
        ("CONTRIBUTING.md", True),
        ("setup.cfg", True),
        ("requirements-dev.txt", True),
        ("docs/guide/start.md", True),
        ("doc/index.txt", True),
        (".gitignore", True),
        ("CHANGES.md", False),
        ("docs/changelog.rst", False),
        ("docs/news/3.0.rst", False),
        ("HISTORY.rst", False),
        ("docs/release-notes.md", False),
        ("docs/conf.py", False),
        ("docs/_build/index.txt", False),
        ("examples/README.md", False),
        ("uv.lock", False),
        ("noxfile.py", False),
        ("PKG-INFO", False),
    ],
)
def test_what_surrounds_the_code(name: str, kept: bool) -> None:
    assert set(surroundings({name: b"text"})) == ({name} if kept else set())


def test_surroundings_are_small_text() -> None:
    files = {f"docs/{n}.md": b"x" * (400 << 10) for n in range(9)}
    assert set(surroundings(files)) == {f"docs/{n}.md" for n in range(5)}
    assert surroundings({"README": b"\xff", "docs/a.md": b"a\0b", "docs/b.md": b"x" * (600 << 10)}) == {}
    assert surroundings({"README": b"", "setup.py": b""}, ["README"], project=False) == {}


def test_candidates_change_one_line_or_one_body_and_keep_the_format() -> None:
    kinds = set()
    for seed in range(12):
        for candidate in candidates(PackageTaskSettings(seed=seed), SUITE, WORKSPACE):
            before, after = tiny.SHAPES.decode().splitlines(), candidate.source.decode().splitlines()
            ast.parse(candidate.source)
            changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
            kinds.add(candidate.kind)
            if candidate.kind == "mutate":
                assert [c[0] for c in changes] in (["-", "+"], ["+", "-"])
                assert [n for n, (a, b) in enumerate(zip(before, after), 1) if a != b] == [candidate.line]
            else:
                assert next(c for c in changes if c[0] == "+").endswith("raise NotImplementedError")
    assert kinds == {"mutate", "delete_function"}


def test_candidates_are_deterministic_and_unique() -> None:
    settings = PackageTaskSettings(seed=3)
    first = list(candidates(settings, SUITE, WORKSPACE))
    assert first == list(candidates(settings, SUITE, WORKSPACE))
    assert len({c.key for c in first}) == len({c.slug for c in first}) == len(first) == 4
    assert [c.slug for c in first] != [c.slug for c in candidates(PackageTaskSettings(seed=4), SUITE, WORKSPACE)]


def test_what_no_test_can_do_without_is_not_deleted() -> None:
    needed = replace(FUNCTIONS[0], at_import=True)
    every = replace(FUNCTIONS[1], tests=("tests/test_shapes.py::test_area", "tests/test_shapes.py::test_size"))
    suite = replace(SUITE, tests=dict.fromkeys(every.tests, 0.1), functions=(needed, every, *FUNCTIONS[2:]))
    found = [c for seed in range(12) for c in candidates(PackageTaskSettings(seed=seed), suite, WORKSPACE)]
    of = {
        kind: {f.name for c in found if c.kind == kind for f in c.functions} for kind in ("mutate", "delete_function")
    }
    assert of == {"mutate": {f.name for f in FUNCTIONS}, "delete_function": {"Box.size", "Box.__init__"}}


def test_tasks_of_a_seed_stay_the_same() -> None:
    """The order of single changes: whoever built a folder before gets the same one again."""
    assert [c.slug for c in candidates(PackageTaskSettings(seed=3), SUITE, WORKSPACE)] == [
        "tinyshapes-diagonal-mutate-48a4e507",
        "tinyshapes-box---init-delete-8e6816d8",
        "tinyshapes-box-size-mutate-f2092861",
        "tinyshapes-area-delete-3f81f8a1",
    ]


def test_split_by_package_and_by_function() -> None:
    functions = [CoveredFunction("m.py", f"f{i}", 1, 2, 3, ()) for i in range(400)]
    settings = PackageTaskSettings(heldout_packages=("whole",), heldout_share=0.25)
    assert {unplanned(settings, "whole").of(f) for f in functions} == {"heldout"}
    share = sum(unplanned(settings, "other").of(f) == "heldout" for f in functions) / 400
    assert 0.17 < share < 0.33
    assert {unplanned(PackageTaskSettings(heldout_share=0.0), "other").of(f) for f in functions} == {"train"}


def test_instructions() -> None:
    source = tiny.SHAPES.decode()
    assert signature_of(source, "area") == (
        'def area(width, height):\n    """Area of a rectangle; a negative side is an error."""'
    )
    assert signature_of(source, "Box.size").startswith("@property\ndef size(self):")
    test = "tests/test_shapes.py::test_area"
    request = feature_request(random.Random(0), "tinyshapes/shapes.py", "area", source, test)
    assert "Area of a rectangle" in request and "tests/test_shapes.py" in request and "raise ValueError" not in request
    for seed in range(9):
        observed = "assert 1 == 2\n + where 1 = f()"
        text = bug_report(random.Random(seed), "src/a/b.py", "tests/test_b.py::test_x", observed)
        assert "assert 1 == 2" in text and "a.b" in text and "test_x" in text
        text = located_bug_report(
            random.Random(seed), "src/a/b.py", "Box.size", source, "tests/test_b.py::test_x", observed
        )
        line = source[: source.index("def size")].count("\n") + 1
        assert (
            "assert 1 == 2" in text and f"src/a/b.py, line {line}" in text and "Box.size" in text and "test_x" in text
        )
        text = pointed_bug_report(
            random.Random(seed), "src/a/b.py", "Box.size", source, "tests/test_b.py::test_x", observed, line + 1
        )
        assert f"line {line + 1}:\n\n```\n{source.split(chr(10))[line]}\n```" in text and "assert 1 == 2" in text
    assert [module_name(n) for n in ("a.py", "src/a/__init__.py", "lib/a/b.py")] == ["a", "a", "a.b"]
    assert module_name("p/core/src/a/b.py", ("p/core", "p/core/src", ".")) == "a.b"
    with pytest.raises(KeyError):
        signature_of(source, "nothere")


def test_tests_that_are_not_used_are_told() -> None:
    assert unused_tests(SUITE) == []
    unstable = {"t.py::a": "skipped, then skipped: ", "t.py::b": "passed, then failed: no\n room", "t.py::c": "failed"}
    files, tests = unused_tests(replace(SUITE, unstable=unstable, problems="u.py: not the\n same file"))
    assert files == "test files that cannot be used: u.py: not the same file"
    assert tests.endswith("are not used (2), such as t.py::b: passed, then failed: no room")


def test_combine_needs_something_to_combine() -> None:
    with pytest.raises(ValueError, match="name a kind of these too"):
        PackageTaskSettings(kinds=("combine", "replay"))
    assert PackageTaskSettings(kinds=("combine", "mutate")).kinds


def test_catalogue_is_complete() -> None:
    catalogue = load_catalogue()
    assert len(catalogue.packages) >= 10
    assert set(PackageTaskSettings().heldout_packages) <= set(catalogue.packages)
    for package in catalogue.packages.values():
        assert package.licence in ("MIT", "BSD-3-Clause", "Apache-2.0")
        assert package.name not in {w.name for _, group in catalogue.wheels_of(package) for w in group}
    with pytest.raises(PackageError, match="'nothere' is not in the catalogue"):
        catalogue.select(("nothere",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[package]]\nname = 'a'\nsource = 'x'", "unknown field 'source'"),
        ("[[package]]\nname = 'a'\nsources = 'x'", "sources must be a list"),
        ("[[package]]\nname = 'a'", "missing 6 required positional arguments"),
        ("[wheels]\npytest = [{ name = 'p', version = '1', file = 'f', sha256 = 'ab' }]", "sha256 must be 64"),
        ("[[", "Invalid"),
    ],
)
def test_catalogue_errors_name_the_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(PackageError, match=message) as caught:
        load_catalogue(tmp_path / "c.toml")
    assert "c.toml" in str(caught.value)


@pytest.mark.parametrize(("seconds", "runs"), [(0.1, 3), (2.6, 2), (60.0, 1)])
def test_a_test_that_fails_now_and_then_is_not_required(seconds: float, runs: int) -> None:
    """A quick suite is run often enough to see it."""
    count = 0

    def made(flaky: str) -> TestRun:
        results = {"good": TestResult("passed", 0.01), "flaky": TestResult(flaky, 0.01)}
        return TestRun(results, complete=True, seconds=seconds)

    async def run() -> TestRun:
        nonlocal count
        count += 1
        return made("failed" if count == 3 else "passed")

    others = asyncio.run(reruns(run))
    stable, unstable = stable_tests(made("passed"), others)
    assert len(others) == count == runs and "good" in stable
    assert ("flaky" in stable) == (runs < 3)
    assert runs < 3 or unstable["flaky"].startswith("passed, then failed")
