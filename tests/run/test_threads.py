"""How many threads the programs of a run get."""

from __future__ import annotations

import os

import pytest

from woodshed.stages.servers import cores, threads_of


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
