"""Small projects written for these tests, as folders and as git repositories."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

CODE = b'''"""Prices."""


def total(prices, discount=0):
    """Sum of the prices, less a discount of 0 to 100 percent."""
    allowed = range(101)
    percent = allowed.index(discount)  # a ValueError for any other
    whole = sum(prices)
    return whole - whole * percent / 100


def cheapest(prices):
    """The lowest price and its place."""
    best = min(prices)
    place = list(prices).index(best)
    return best, place


def split(amount, people):
    """Equal shares; the first ones pay what is left over."""
    share, rest = divmod(amount, people)
    return [share + 1] * rest + [share] * (people - rest)
'''
TESTS = b"""import pytest

from prices import cheapest, split, total


def test_total():
    assert total([1, 2, 3]) == 6
    assert total([40, 2, 300]) == 342 and total([17, 80, 4, 9]) == 110


def test_discount():
    assert total([50, 50], 10) == 90
    assert total([200, 100], 25) == 225 and total([8], 0) == 8 and total([8, 8], 100) == 0


@pytest.mark.parametrize("wrong", [-1, 101])
def test_wrong_discount(wrong):
    with pytest.raises(ValueError):
        total([1], wrong)


def test_cheapest():
    assert cheapest([3, 1, 2]) == (1, 1)
    assert cheapest([12, 40, 31, 7]) == (7, 3) and cheapest([22, 90, 35]) == (22, 0)
    assert [cheapest([n, 19, 60 - n, 35]) for n in (8, 34, 47)] == [(8, 0), (19, 1), (13, 2)]


def test_split():
    assert split(10, 3) == [4, 3, 3]
    assert split(17, 5) == [4, 4, 3, 3, 3] and split(9, 4) == [3, 2, 2, 2]
    assert split(25, 7) == [4, 4, 4, 4, 3, 3, 3]


def test_constant():
    assert 1 + 1 == 2
"""
PURE = "py3-none-any"
MIT = b"""MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software.
"""
PROJECT = {
    "src/prices/__init__.py": CODE,
    "tests/test_prices.py": TESTS,
    "pyproject.toml": b'[project]\nname = "prices"\nlicense = "MIT"\n'
    b'[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
    "README.md": b"Prices.\n",
}


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def repository(folder: Path, files: Mapping[str, bytes]) -> str:
    """A repository with one commit of ``files``; its commit."""
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", "-A", "-f", ".")
    git(folder, "commit", "-q", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


def wheel(index: Path, name: str, version: str, files: dict[str, str], *, needs: str = "", tag: str = PURE) -> None:
    """A wheel in a file index ``index/simple``."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    page = index / "simple" / name
    page.mkdir(parents=True, exist_ok=True)
    path = page / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{p.name}">{p.name}</a>\n' for p in sorted(page.glob("*.whl")))
    (page / "index.html").write_text(links)
