"""The change of a task is the one that git finds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from woodshed.record.task import TaskInfo, save_task
from woodshed.tasks.change import change_of


def _module(functions: int, first: str = "0", last: str = "") -> bytes:
    """Return functions of which every line but one is repeated; ``first`` and ``last``: the results of two of them."""
    results = [first, *map(str, range(1, functions - 1)), last or str(functions - 1)]
    return "".join(f"@cached\ndef f(x):\n    x += 1\n    return {r}\n\n\n" for r in results).encode()


CASES = {
    "form feed": (b"a\n\x0c\nb\n", b"a\n\x0c\nc\n\x0c\nd\n"),
    "separators": ("x = '\u2028\x85'\n".encode(), "x = '\u2028\x85\x1c'\ny\n".encode()),
    "line ends alone": (b"a\r\nb\r\n", b"a\nb\n"),
    "windows": (b"a\r\nb\r\n", b"a\r\nc\r\nd\r\n"),
    "end gained": (b"a\nb", b"a\nb\n"),
    "end lost": (b"a\n", b"a"),
    "no end": (b"a\nb", b"c\nb"),
    "new": (b"", b"a\n\nb\n"),
    "blank lines": (b"a\n", b"a\n\n\n"),
    "repeated lines": (_module(80), _module(80, first="0 + 0", last="79 + 0")),
    "table": (_module(2000), _module(2000, first="0 + 0", last="1999 + 0")),  # more equal pairs than are searched
}


@pytest.mark.parametrize("case", CASES)
def test_lines_are_counted_as_git_counts_them_and_the_diff_applies(tmp_path: Path, case: str) -> None:
    start, gold = CASES[case]
    task = save_task(
        tmp_path / "task",
        name="woodshed/change",
        instruction="Change it.\n",
        info=TaskInfo(),
        workspace={"a.py": start},
        tests={"test.sh": b""},
        solution={"a.py": gold},
    )
    change = change_of(task)
    places = [tmp_path / name for name in ("before", "after")]
    for place, data in zip(places, (start, gold), strict=True):
        place.write_bytes(data)
    command = ["git", "-c", "core.autocrlf=false", "diff", "--no-index", "--numstat", *map(str, places)]
    added, removed = subprocess.run(command, capture_output=True, text=True).stdout.split()[:2]
    assert change.lines == int(added) + int(removed)
    (tmp_path / "a.py").write_bytes(start)
    patch = (change.diff + "\n").encode()
    subprocess.run(["git", "-c", "core.autocrlf=false", "apply", "-"], input=patch, cwd=tmp_path, check=True)
    assert (tmp_path / "a.py").read_bytes() == gold
