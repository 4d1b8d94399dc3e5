"""Files exist completely or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from woodshed.record.atomic import write_whole


def test_written_replaced_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_whole(path, "one")
    write_whole(path, b"two", fsync=True)
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.txt"
    write_whole(path, "old")

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["b.txt"]


def test_threads_that_write_the_same_file(tmp_path: Path) -> None:
    """Several threads fetch the same package: the file is one of theirs, whole, and nothing else is left."""
    path, contents = tmp_path / "b.bin", [bytes([i]) * 500_000 for i in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            list(threads.map(lambda data: write_whole(path, data), contents))
            assert path.read_bytes() in contents
    assert [p.name for p in tmp_path.iterdir()] == ["b.bin"]
