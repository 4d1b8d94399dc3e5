"""``woodshed benchmark accept``: which of the given files are graded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.benchmark import app
from woodshed.evaluate.builder import accepted, lock
from woodshed.record.trajectory import Outcome


def test_every_changed_file_is_graded_whatever_its_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {f"{name}/a.py": b"x = 1\n" for name in ("src/build", "src/dist/more", "env", "venv")}
    for name, data in changed.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(data)
    graded: list[Mapping[str, bytes]] = []

    async def offer(folder: Path, task: object, files: Mapping[str, bytes], *others: object) -> tuple[Outcome, str]:
        graded.append(files)
        return Outcome(resolved=True), "0123456789abcdef"

    monkeypatch.setattr(accepted, "offer", offer)
    monkeypatch.setattr(lock, "verified", lambda folder: {"task": object()})
    done = CliRunner().invoke(app, ["accept", str(tmp_path), "task", str(tmp_path)])
    assert done.exit_code == 0 and "accepted: 0123456789ab" in done.output, done.output
    assert graded == [changed]
