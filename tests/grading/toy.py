"""A repository of one bug, two tests that show it and one that does not, with the real pytest of this environment."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.sandbox.guest.template import SITE_PACKAGES
from woodshed.sandbox.layers import LayerStore

SHAPES = '''"""Shapes, measured."""


def area(width, height):
    """Area of a rectangle."""
    return width + height


def double(value):
    return 2 * value
'''
TESTS = """from shapes.measure import area, double


def test_area():
    assert area(2, 3) == 6


def test_long_area():
    assert area(10, 7) == 70
    assert area(1, 1) == 1


def test_double():
    assert double(4) == 8
"""
FAILING = ("tests/test_measure.py::test_area", "tests/test_measure.py::test_long_area")
_PYGMENTS = ("__init__.py", "_mapping.py", "diff.py", "python.py", "default.py", "terminal.py", "terminal256.py")
PASSING = ("tests/test_measure.py::test_double",)


def _unused(folder: str, names: list[str]) -> list[str]:
    """Bytecode, and most of pygments."""
    if Path(folder).name in ("lexers", "styles", "formatters"):
        return [n for n in names if n not in _PYGMENTS]
    return [n for n in names if n == "__pycache__"]


def pytest_layer(layers: LayerStore) -> str:
    """pytest and what it imports, as installed here, in a layer."""

    def fill(folder: Path) -> None:
        target = folder / SITE_PACKAGES.lstrip("/")
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            origin = Path(spec.origin)
            if origin.name == "__init__.py":
                shutil.copytree(origin.parent, target / name, ignore=_unused)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, target / origin.name)

    return layers.add("pytest", fill)


def toy_task(
    path: Path,
    layer: str,
    extra: dict[str, bytes] | None = None,
    *,
    shapes: str = SHAPES,
    tests: str = TESTS,
    fixed: str = "",
) -> Task:
    """``extra`` files are added to the workspace. ``fixed``: the solution, where it is not another operator."""
    workspace = {
        "shapes/__init__.py": b"",
        "shapes/measure.py": shapes.encode(),
        "tests/test_measure.py": tests.encode(),
        "pytest.ini": b"[pytest]\n",
    }
    return save_task(
        path,
        name="tests/toy",
        instruction="area of a rectangle is wrong",
        info=TaskInfo(
            family="package",
            grader="pytest",
            submission=("shapes/**/*.py",),
            protected=("tests/**", "pytest.ini", "**/conftest.py"),
            fail_to_pass=FAILING,
            pass_to_pass=PASSING,
            test_command="python -m pytest -q -x tests/test_measure.py",
            layers=(layer,),
            timeout_sec=60.0,
        ),
        workspace={**workspace, **(extra or {})},
        tests={
            "test.sh": b"#!/bin/sh\n",
            "workspace/tests/test_measure.py": tests.encode(),
            "workspace/pytest.ini": b"[pytest]\n",
        },
        solution={"shapes/measure.py": (fixed or shapes.replace("width + height", "width * height")).encode()},
        config={"environment": {"workdir": "/workspace", "env": {"PYTHONPATH": f"{SITE_PACKAGES}:/workspace"}}},
    )
