"""Errors that only a person can fix, and what is said about them."""

from __future__ import annotations

from pathlib import Path

from woodshed.stages.failures import disk_problem


def test_a_file_system_without_blocks_is_not_a_full_disk(tmp_path: Path) -> None:
    assert disk_problem(Path("/proc/nothing"), "[Errno 2] No such file or directory: '/proc/nothing'") is None
    assert "the disk is full" in str(disk_problem(tmp_path, "[Errno 28] No space left on device"))
