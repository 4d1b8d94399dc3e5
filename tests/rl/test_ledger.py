"""The controller's memory: a prompt once, a batch all or nothing, staleness bounded; across reopening."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from woodshed.rl.conservation import check_conservation, read_conservation
from woodshed.rl.controller import may_dispatch
from woodshed.rl.growth.record import read_growth
from woodshed.rl.ledger import Ledger


def test_a_prompt_is_dispatched_once_even_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    first = Ledger(path)
    row = first.dispatch("org/a", first.next_position(), 0, 4)
    assert (row.id, row.position) == ("g000000", 0)
    first.close()
    again = Ledger(path)
    assert again.next_position() == 1
    assert [g.task for g in again.open_groups()] == ["org/a"]
    with pytest.raises(sqlite3.IntegrityError):
        again.dispatch("org/a", 1, 3, 4)


def test_batches_are_all_or_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "s")
    rows = [ledger.dispatch(f"t{n}", n, 0, 4) for n in range(3)]
    for row in rows[:2]:
        ledger.finish(row.id, "ready")
    with pytest.raises(ValueError, match="g000002 is not ready"):
        ledger.batch(1, [rows[0].id, rows[2].id])
    assert ledger.batches() == {} and len(ledger.ready_groups()) == 2
    ledger.batch(1, [rows[0].id, rows[1].id])
    with pytest.raises((ValueError, sqlite3.IntegrityError)):
        ledger.batch(2, [rows[0].id])
    assert ledger.batches() == {1: ["g000000", "g000001"]}
    ledger.finish(rows[0].id, "stale")
    assert ledger.counts() == {"batched": 2, "open": 1}, "a trained group stays trained"


def test_swept_groups_free_their_capacity(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "s")
    for n in range(4):
        ledger.dispatch(f"t{n}", n, 0, 4)
    ledger.finish("g000001", "stale")
    ledger.finish("g000002", "failed")
    assert ledger.capacity_used() == 2


def test_groups_are_told_apart_by_their_end(tmp_path: Path) -> None:
    """Groups 3, 1 and 2 finish in this order; two are batched, one is dropped as too old."""
    ledger = Ledger(tmp_path / "s")
    rows = [ledger.dispatch(f"t{n}", n, 0, 1) for n in range(5)]
    ledger.fork(rows[0].id, ["g000000-00.f0"])
    ledger.replace(rows[0].id, "g000000-00", 1)
    assert ledger.in_open_groups() == {"g000000-00", "g000000-00.1", *(f"g00000{n}-00" for n in range(1, 5))}
    for number in (3, 1, 2):
        ledger.finish(rows[number].id, "ready")
    assert [row.position for row in ledger.ready_groups()] == [1, 2, 3], "in the order of dispatch"
    ledger.finish(rows[2].id, "stale", step=1)
    assert ledger.dropped_groups(1) == [rows[2].id]
    for step, number in enumerate((3, 1), 1):
        ledger.batch(step, [rows[number].id])
    with pytest.raises(ValueError, match="g000001-00 was not dispatched for the batch of step 1"):
        ledger.settle(1, {"g000001-00": "trained"})
    ledger.finish(rows[0].id, "ready")
    for number in (0, 4):
        ledger.finish(rows[number].id, "unused")
    assert ledger.counts()["unused"] == 2
    assert [row.position for row in ledger.finished_groups()] == [3, 1, 2, 0], "group 4 was still open"


def test_the_window_begins_with_the_oldest_open_group(tmp_path: Path) -> None:
    """Group 2 stays open; groups 0 and 1 were dispatched before it, group 4 is dropped and counts for nothing."""
    path = tmp_path / "s"
    ledger = Ledger(path)
    rows = [ledger.dispatch(f"t{n}", n, 0, 1) for n in range(8)]
    for number in (7, 6, 5, 3, 1, 0):
        ledger.finish(rows[number].id, "ready")
    ledger.finish(rows[4].id, "flat", step=1)
    ledger.close()

    def considered(window: int) -> list[int]:
        return [row.position for row in Ledger(path).ready_groups(window)]

    assert considered(1) == [0, 1], "plain FIFO"
    assert considered(2) == [0, 1, 3]
    assert considered(3) == [0, 1, 3, 5]
    assert considered(100) == [0, 1, 3, 5, 6, 7], "greedy"
    Ledger(path).batch(1, [rows[0].id, rows[3].id])
    assert considered(2) == [1], "a batched group keeps its place in the window"
    assert considered(3) == [1, 5]
    Ledger(path).finish(rows[2].id, "failed", step=2)
    assert considered(1) == [1, 5, 6, 7], "nothing is open, so nothing is waited for"


@pytest.mark.parametrize(("batch", "bound"), [(1, 0), (4, 0), (4, 1), (3, 5)])
def test_capacity_bounds_staleness_exactly(batch: int, bound: int) -> None:
    """Dispatch greedily at every version: group g is trained at step g // batch, never more than ``bound`` late."""
    used, worst = 0, 0
    for version in range(20):
        while may_dispatch(used, version, batch, bound):
            worst = max(worst, used // batch - version)
            used += 1
    assert worst == bound
    assert used == (19 + bound + 1) * batch, "and the bound is used up: no rollout waits without need"


@pytest.mark.parametrize("name", ["a#b", "a?b", "50%41", "a b"])
def test_a_run_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Counts are read from the ledger of this directory; no other file is opened or made."""
    (tmp_path / name).mkdir()
    path = tmp_path / name / "state.sqlite"
    ledger = Ledger(path)
    ledger.dispatch("t", 0, 0, 4)
    found = read_conservation(path)
    assert found is not None and (found.dispatched, found.undecided) == (4, 4)
    assert check_conservation(path, (), (), (), finished=False) == found
    assert read_growth(path) is None
    assert [each.name for each in tmp_path.iterdir()] == [name]
