"""One place to build in for all tests of this folder, and a repository with a history of merges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place, place_in
from tests.tasks.sources.test_replay import DEAREST, FIX, NEW_SPLIT, OLD_SPLIT, TEST_DEAREST
from woodshed.evaluate.builder.build import Inputs, Round, build_benchmark
from woodshed.evaluate.builder.settings import BenchmarkSettings

MERGE = "Merge pull request #7 from someone/dearest\n\nAdd dearest(), the opposite of cheapest() (with tests)\n"
REFUND = b"""

def test_refund():
    assert split(-1, 3) == [-1, 0, 0] and split(-17, 7) == [-3, -3, -3, -2, -2, -2, -2]
    assert split(-38, 5) == [-8, -8, -8, -7, -7] and split(-53, 6) == [-9, -9, -9, -9, -9, -8]
    assert split(-64, 9) == [-8, -7, -7, -7, -7, -7, -7, -7, -7] and split(-26, 4) == [-7, -7, -6, -6]
    for amount in (-17, -25, -340):
        assert split(amount, 7) == [-n for n in split(-amount, 7)]
"""
OTHER = b"from prices import total\n\n\ndef test_nothing_to_pay():\n    assert total([]) == 0\n"


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("benchmark")) as found:
        yield found


def commit(folder: Path, message: str, files: dict[str, bytes], date: str) -> str:
    """A commit of ``files`` at a date."""
    repos.write(folder, files)
    repos.git(folder, "add", "-A")
    dated(folder, date, "commit", "-q", "-m", message)
    return repos.git(folder, "rev-parse", "HEAD")


def dated(folder: Path, date: str, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_COMMITTER_DATE", f"{date}T12:00:00Z")
        patch.setenv("GIT_AUTHOR_DATE", f"{date}T12:00:00Z")
        repos.git(folder, *arguments)


@pytest.fixture(scope="package")
def history(place: Place) -> Path:
    """The project; a fix with a test (January 2026); a branch of two commits that adds a function, merged (March)."""
    folder = place.root / "prices"
    repos.write(folder, {**repos.PROJECT, "LICENSE": repos.MIT, "tests/test_more.py": OTHER})
    folder.mkdir(exist_ok=True)
    repos.git(folder, "init", "-q", "-b", "main")
    commit(folder, "one", {}, "2025-12-01")
    code, tests = repos.CODE.replace(OLD_SPLIT, NEW_SPLIT), repos.TESTS + REFUND
    commit(folder, FIX, {"src/prices/__init__.py": code, "tests/test_prices.py": tests}, "2026-01-10")
    repos.git(folder, "checkout", "-q", "-b", "dearest")
    commit(folder, "First half of it", {"src/prices/__init__.py": code + DEAREST}, "2026-03-01")
    tests = tests.replace(b"import cheapest, split", b"import cheapest, dearest, split") + TEST_DEAREST
    commit(folder, "And the tests", {"tests/test_prices.py": tests}, "2026-03-02")
    repos.git(folder, "checkout", "-q", "main")
    dated(folder, "2026-03-03", "merge", "-q", "--no-ff", "dearest", "-m", MERGE)
    return folder


@pytest.fixture(scope="package")
def settings(place: Place) -> BenchmarkSettings:
    return BenchmarkSettings(per_source=4, min_stated=0.5, catalogue=str(place.catalogue))


@pytest.fixture(scope="package")
def benchmark(place: Place, history: Path, settings: BenchmarkSettings) -> tuple[Path, Round]:
    """A benchmark of the repository; do not change it."""
    out = place.root / "bench"
    return out, place.boxes(lambda b, layers: build_benchmark(Inputs([str(history)]), settings, out, b, layers))
