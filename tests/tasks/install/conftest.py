"""A repository that needs installing, an index that has what it needs, and boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place, place_in

PLUGIN = '''"""A pytest plugin with one fixture."""

import pytest


def currency():
    return "EUR"


@pytest.fixture
def mocker():
    return {"currency": currency()}
'''
FAST = '''"""As a wheel with compiled code has it."""

import pathlib

parity = pathlib.Path(__file__).with_name("fast_native.so").read_bytes()[-1] - 48
'''
TESTS = b"""import importlib.metadata

import fast
import money_fixture
import pytest

import prices
from prices import cheapest, split, total


def test_total():
    assert total([1, 2, 3]) == money_fixture.six


def test_discount():
    assert total([50, 50], 10) == 90
    assert total([200, 100], 25) == 225 and total([8], 0) == 8 and total([8, 8], 100) == 0


@pytest.mark.parametrize("wrong", [-1, 101])
def test_wrong_discount(wrong):
    with pytest.raises(ValueError):
        total([1], wrong)


def test_cheapest():
    assert cheapest([3, 1, 2]) == (fast.parity, 1)


def test_split(mocker):
    assert split(10, 3) == [4, 3, 3] and mocker["currency"] == "EUR"
    assert split(17, 5) == [4, 4, 3, 3, 3]
    assert split(9, 4) == [3, 2, 2, 2]
    assert split(25, 7) == [4, 4, 4, 4, 3, 3, 3]


def test_own_metadata():
    assert importlib.metadata.version("price-list") == prices.VERSION == "1.2"
"""
CODE = b'import importlib.metadata\n\nVERSION = importlib.metadata.version("price-list")\n\n\n' + repos.CODE
PROJECT = {
    "src/prices/__init__.py": CODE,
    "tests/test_prices.py": TESTS,
    "pyproject.toml": b'[project]\nname = "price-list"\nversion = "1.2"\nlicense = "MIT"\n'
    b'[project.optional-dependencies]\ntest = ["fast>=1", "no-such-thing"]\n'
    b'[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "--strict-markers"\n',
    ".github/workflows/test.yml": b"jobs:\n  test:\n    steps:\n"
    b"      - run: pip install -q money-fixture==2.0 pytest\n",
    "README.md": b"Prices. Run pytest.\n",
}
"""Its tests need a compiled wheel that it states, a package that only its CI names, a plugin and its own metadata."""


def fill_index(root: Path) -> None:
    """Wheels for ``PROJECT``, and a copy of it that nobody may install."""
    import sys

    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    native = {"fast.py": FAST, "fast_native.so": "ELF?1"}
    repos.wheel(root, "fast", "1.1", native, tag=f"{version}-{version}-linux_x86_64")
    for number in ("2.0", "3.0"):
        repos.wheel(root, "money_fixture", number, {"money_fixture.py": "six = 6\n"})
    (root / "simple" / "money_fixture").rename(root / "simple" / "money-fixture")
    points = "[pytest11]\npytest_mock = pytest_mock\n"
    info = {"pytest_mock.py": PLUGIN, "pytest_mock-9.0.dist-info/entry_points.txt": points}
    repos.wheel(root, "pytest_mock", "9.0", info)
    (root / "simple" / "pytest_mock").rename(root / "simple" / "pytest-mock")
    repos.wheel(root, "price_list", "1.2", {"prices/__init__.py": repos.CODE.decode()})
    (root / "simple" / "price_list").rename(root / "simple" / "price-list")


@pytest.fixture(scope="package")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with ``repository`` in it, and its index in force."""
    with place_in(tmp_path_factory.mktemp("install")) as found:
        fill_index(found.root)
        repos.repository(found.root / "repository", PROJECT)
        yield found
