"""Rows of JSON lines survive a kill."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from limits import soft_limit

from woodshed.record.jsonl import GrowingRows, JsonLines, read_jsonl


def test_a_torn_line_is_cut_off_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    lines = JsonLines(path)
    assert lines.rows() == []
    for n in range(3):
        lines.append({"n": n, "text": "zwei\nZeilen, ü"})
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 3):
        path.write_bytes(whole[:-cut])
        assert [r["n"] for r in read_jsonl(path)] == ([0, 1] if cut > 1 else [0, 1, 2])
        again = JsonLines(path)
        again.append({"n": 9})
        assert [r["n"] for r in again.rows()] == [0, 1, 9]
    assert again.rows()[1]["text"] == "zwei\nZeilen, ü"


def test_processes_that_open_and_append_at_once_lose_no_row(tmp_path: Path) -> None:
    """As two runs that note results of the same task do."""
    path = tmp_path / "rows.jsonl"
    code = "import sys, pathlib\nfrom woodshed.record.jsonl import JsonLines\n"
    code += "for i in range(1000): JsonLines(pathlib.Path(sys.argv[1])).append({'i': i})"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert sorted(row["i"] for row in read_jsonl(path)) == sorted([*range(1000)] * 2)


def test_a_row_that_does_not_fit_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = JsonLines(path)
    lines.append({"n": 0})
    whole = path.read_bytes()
    with soft_limit(resource.RLIMIT_FSIZE, len(whole) + 5), pytest.raises(OSError, match="No space left on device"):
        lines.append({"n": 1})
    assert path.read_bytes() == whole
    lines.append({"n": 2})
    assert [row["n"] for row in lines.rows()] == [0, 2]


@pytest.mark.parametrize("tail", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_long_torn_line_is_found_from_the_end(tmp_path: Path, tail: int) -> None:
    path = tmp_path / "a.jsonl"
    whole = b'{"n": 1}\n' * 3
    path.write_bytes(whole + b"x" * tail)
    JsonLines(path)
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * tail)
    JsonLines(path)
    assert path.read_bytes() == b""


def test_a_growing_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    growing = GrowingRows(path)
    assert growing.read() == []
    whole = "".join(f'{{"n": {n}, "text": "ü"}}\n' for n in range(4)).encode()
    for end in range(len(whole) + 1):  # also between the bytes of a character
        path.write_bytes(whole[:end])
        assert [row["n"] for row in growing.read()] == list(range(whole[:end].count(b"\n")))
    path.write_bytes(whole[: len(whole) // 2])
    assert [row["n"] for row in growing.read()] == [0, 1], "a shorter file is another one"
