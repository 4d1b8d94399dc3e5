"""How many threads the programs of a run get."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.stages.servers import cores, server_programs, threads_of

RECIPES = Path(__file__).parents[2] / "recipes"


def test_a_user_decides_how_many_cores_a_run_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert cores() == 3, "those of the process, not those of the machine"
    for given, expected in (("2", 2), ("8", 3), ("0", 1), ("", 3), ("4,2", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert cores() == expected, given


def test_only_what_runs_alone_waits_actively() -> None:
    assert threads_of(2)["OMP_WAIT_POLICY"] == "passive" and threads_of(2)["OMP_NUM_THREADS"] == "2"
    assert "OMP_WAIT_POLICY" not in threads_of(2, alone=True)


def test_a_large_policy_gets_the_cores_of_the_waiting_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def settings(recipe: str, *overrides: str, training: bool = True) -> tuple[int, int, str | None]:
        run = RunDirectory(tmp_path / recipe)
        run.root.mkdir(exist_ok=True)
        server_programs(
            load_recipe(RECIPES / f"{recipe}.toml", overrides), run, tmp_path, weights="weights" if training else None
        )
        given = json.loads((run.root / "server" / "server.json").read_text())
        return given["engine"]["threads"], given["lent_threads"], given["lender"]

    lock = str(RunDirectory(tmp_path / "smollm2").trainer_lock)
    assert settings("smollm2") == (4, 8, lock)
    assert settings("smollm2", "engine.threads=3") == (3, 8, None), "a user's number of threads is kept"
    assert settings("smollm2", training=False) == (8, 8, None)
    assert settings("laptop")[:2] == (1, 1), "a tiny policy leaves the cores to the boxes"
