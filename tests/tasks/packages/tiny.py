"""A tiny package written for these tests, served from a file index, with the real pytest wheels of this environment."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import tarfile
import zipfile
from pathlib import Path

from woodshed.tasks.packages.catalogue import Catalogue, Package

SHAPES = b'''"""Shapes, measured."""

import math


def area(width, height):
    """Area of a rectangle; a negative side is an error."""
    if width < 0 or height < 0:   # both sides count
        raise ValueError('negative side')
    return width * height


def diagonal(width, height):
    """Length of the diagonal."""
    square = width * width + height * height
    return math.sqrt(square)


def unused(value):
    total = value + 1
    return total * 2


class Box:
    """A box of a height."""

    def __init__(self, width, height):
        self.width = width
        self.height = height

    @property
    def size(self):
        """Area and diagonal."""
        first = area(self.width, self.height)
        second = diagonal(self.width, self.height)
        return first, second
'''
TESTS = b"""import random

import pytest

from tinyshapes.shapes import Box, area, diagonal

_counter = []


def test_area():
    assert area(2, 3) == 6


def test_area_zero():
    assert area(0, 3) == 0


@pytest.mark.parametrize("bad", [(-1, 2), (1, -2)])
def test_area_negative(bad):
    with pytest.raises(ValueError):
        area(*bad)


def test_diagonal():
    assert diagonal(3, 4) == 5


def test_size():
    assert Box(3, 4).size == (12, 5)


def test_order_dependent():
    _counter.append(1)
    assert len(_counter) == 1


def test_needs_the_other_first():
    assert _counter


def test_constant():
    assert 1 + 1 == 2  # of no function's doing: a real suite has such tests too, and no task may depend on one


@pytest.mark.skip
def test_skipped():
    assert area(1, 1) == 1


def test_broken_upstream():
    assert area(1, 1) == 2
"""
README = b"""# Shapes

The diagonal is computed so:

    square = width * width + height * height
    return math.sqrt(square)
"""
FILES = {
    "tinyshapes/__init__.py": b"",
    "tinyshapes/shapes.py": SHAPES,
    "tests/conftest.py": b"import pytest\n\n\n@pytest.fixture\ndef unit():\n    return 1\n",
    "tests/test_shapes.py": TESTS,
    "tests/test_other.py": b"def test_other():\n    assert 1 + 1 == 2\n",
    "setup.py": b"raise SystemExit('setup.py was executed')\n",
    "pyproject.toml": b"[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    "CHANGELOG.md": b"- fixed: if width < 0 or height < 0\n",
    "tinyshapes.egg-info/SOURCES.txt": b"tinyshapes/shapes.py\n",
    "tinyshapes/__pycache__/shapes.cpython-311.pyc": b"\0",
    "docs/index.rst": b"docs\n",
    "README.md": README,
}


_PYGMENTS = ("__init__.py", "_mapping.py", "diff.py", "python.py", "default.py", "terminal.py", "terminal256.py")


def sdist() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(f"tinyshapes-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def package(data: bytes = b"") -> Package:
    return Package(
        name="tinyshapes",
        version="1.0",
        file="tinyshapes-1.0.tar.gz",
        sha256=hashlib.sha256(data).hexdigest(),
        licence="Apache-2.0",
        sources=("tinyshapes",),
        tests=("tests",),
    )


def catalogue(data: bytes = b"") -> Catalogue:
    return Catalogue({"tinyshapes": package(data)}, {"pytest": ()})


def local_index(root: Path) -> Path:
    """A file index under ``root`` with the tiny package and pytest as this environment has it; returns a catalogue.

    Nothing is fetched: the wheel is packed from the installed files.
    """
    wheel = root / "testing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        py = importlib.util.find_spec("py")
        assert py is not None and py.origin is not None
        archive.write(py.origin, "py.py")
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            folder = Path(spec.origin).parent
            for file in sorted(folder.rglob("*.py")):
                if file.parent.name in ("lexers", "styles", "formatters") and file.name not in _PYGMENTS:
                    continue  # most of pygments, and nothing that a test run loads
                archive.write(file, f"{name}/{file.relative_to(folder)}")
    source = root / "tinyshapes-1.0.tar.gz"
    source.write_bytes(sdist())
    for project, file in (("testing", wheel), ("tinyshapes", source)):
        page = root / "simple" / project
        page.mkdir(parents=True)
        (page / "index.html").write_text(f'<a href="../../{file.name}">{file.name}</a>')
    hashes = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (wheel, source)}
    path = root / "catalogue.toml"
    path.write_text(
        f'[wheels]\npytest = [{{ name = "testing", version = "1.0", file = "{wheel.name}", '
        f'sha256 = "{hashes[wheel.name]}" }}]\n'
        f'[[package]]\nname = "tinyshapes"\nversion = "1.0"\nfile = "{source.name}"\n'
        f'sha256 = "{hashes[source.name]}"\nlicence = "Apache-2.0"\nsources = ["tinyshapes"]\ntests = ["tests"]\n'
    )
    return path
