"""Every dispatched rollout is trained or dropped for one reason, and what is lost or doubled is named."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.hosts import Short
from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.rl.conservation import ConservationError, check_conservation, read_conservation
from woodshed.rl.ledger import Ledger, LedgerError
from woodshed.rl.settings import RLSettings
from woodshed.rollout.failures import FAULT, INFRA, RunFailing
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .trained import Trained, by_number, trained

SMALL = RLSettings(steps=2, groups_per_step=2, group_size=2, concurrency=2, attempts=1, max_staleness=0)


@pytest.fixture(autouse=True)
def _boxes() -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))


async def interrupted(at: Trained, settings: RLSettings, when: Callable[[], bool]) -> None:
    """A controller that is cancelled as soon as ``when``."""
    running = asyncio.create_task(at.run(settings))
    while not when() and not running.done():
        await asyncio.sleep(0.01)
    assert not running.done(), "it ended before it could be interrupted"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def count(path: Path, query: str) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=30)) as db:
        return int(db.execute(query).fetchone()[0])


def test_rollouts_are_conserved_through_restarts(tmp_path: Path) -> None:
    """Groups of equal rewards, a failing box in the first group, interrupted twice: in flight, and between batches."""
    index = tmp_path / "store" / "index.sqlite"

    async def main() -> None:
        around = {"around": lambda backend: Short(backend, 2, 2), "reward": by_number({1})}
        async with trained(tmp_path, 6, **around) as at:
            settings = SMALL.model_copy(update={"concurrency": 1, "replacements": 0})
            for stored in (1, 5):
                await interrupted(at, settings, lambda n=stored: count(index, "SELECT COUNT(*) FROM trajectories") >= n)
                between = at.conserved(finished=False)
                assert between.undecided and between.difference == 0
                with pytest.raises(ConservationError, match=r"without a fate after the last step \(g00000"):
                    at.conserved()
            await at.run(settings)
            found = at.conserved()
            # Group 0 has lost a member, so its other one has nothing to be compared with.
            assert found.dropped["infra_error"] == 1 and found.dropped["unpaired"] == 1
            assert found.dropped["zero_advantage"] == 2, "group 1"
            shares = [line["infra_share"] for line in read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")]
            assert shares == [1 / 6, 0], "group 0 is in no batch; it was dropped while the first one was filled"
            assert found.trained == sum(at.trained) == 6 and found.dispatched == 10 + found.dropped.get("unused", 0)
            assert str(found).startswith(f"{found.dispatched} rollouts dispatched = 6 trained + 1 infra_error")

    asyncio.run(main())


def test_what_is_lost_or_doubled_is_named(tmp_path: Path) -> None:
    async def main() -> Trained:
        async with trained(tmp_path, 4, reward=by_number(set())) as at:
            await at.run(SMALL)
            return at

    at = asyncio.run(main())
    assert at.conserved().trained == 8
    path = tmp_path / "state.sqlite"
    whole = path.read_bytes()

    def after(change: str) -> None:
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as db:
            db.execute(change)
            db.commit()
        at.conserved()

    with pytest.raises(ConservationError, match="1 of 8 dispatched rollouts are neither trained nor dropped"):
        after("DELETE FROM rollouts WHERE id = 'g000001-01'")
    with pytest.raises(ConservationError, match=r"1 stored but never dispatched \(g000001-01\)"):
        after("DELETE FROM rollouts WHERE id = 'g000001-01'")
    with pytest.raises(ConservationError, match=r"-1 of 8 .*; 1 counted but not stored \(g000001-07\)"):
        after("INSERT INTO rollouts VALUES ('g000001-07', 'g000001', 'stale', NULL)")
    with pytest.raises(ConservationError, match=r"step 1: 3 rollouts .* 4 by metrics/rollouts.*; step 1: .*trainer"):
        after("UPDATE rollouts SET fate = 'stale' WHERE id = (SELECT MIN(id) FROM rollouts WHERE step = 1)")
    with pytest.raises(ConservationError, match="unknown reasons: lost"):
        after("UPDATE rollouts SET fate = 'lost' WHERE id = 'g000000-00'")


def test_a_member_that_the_host_failed_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        around = {"around": lambda backend: Short(backend, 2, 2), "reward": by_number(set())}
        async with trained(tmp_path, 4, **around) as at:
            controller = await at.run(SMALL.model_copy(update={"concurrency": 1}))
            found = at.conserved()
            assert found.dropped == {"infra_error": 1} and found.replacements == 1
            assert (found.dispatched, found.trained) == (9, 8), "no group is smaller for it"
            assert controller.failures.counts == {"host": 1}
        store = TrajectoryStore(tmp_path / "store")
        again = [t.id for t in store if "." in t.id]
        lost = [t for t in store if t.status == INFRA]
        store.close()
        assert len(again) == len(lost) == 1 and again[0] == f"{lost[0].id}.1" and lost[0].labels[FAULT] == "host"

    asyncio.run(main())


def test_replacements_are_bounded_and_a_host_that_fails_stops_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        around = {"around": lambda backend: Short(backend, 1, 1 << 30), "reward": by_number(set())}
        async with trained(tmp_path, 4, **around) as at:
            settings = SMALL.model_copy(update={"replacements": 2, "infra_window": 24, "concurrency": 1})
            with pytest.raises(RunFailing, match=r"rl\.max_infra_rate, rl\.infra_window"):
                await at.run(settings)
            found = at.conserved(finished=False)
            # 12 may fail: the first group used up both replacements of its two members, and was dropped.
            assert found.dropped["infra_error"] == 6 or found.replacements <= 8
            assert found.trained == 0 and found.difference == 0

    asyncio.run(main())


def test_replacing_again_after_a_kill_dispatches_nothing_new(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    ledger = Ledger(path)
    row = ledger.dispatch("t", 0, 0, 2)
    assert ledger.members(row.id) == ["g000000-00", "g000000-01"]
    assert ledger.replace(row.id, "g000000-01", 1) == "g000000-01.1"
    ledger.close()
    ledger = Ledger(path)
    assert ledger.replace(row.id, "g000000-01", 1) == "g000000-01.1"
    assert ledger.members(row.id) == ["g000000-00", "g000000-01"] and ledger.replacements() == 1
    found = read_conservation(path)
    assert found is not None and (found.dispatched, found.undecided, found.difference) == (3, 3, 0)
    ledger.finish(row.id, "ready")
    ledger.batch(1, [row.id])
    for _ in range(2):  # a batch that is made again has the same fates
        ledger.settle(1, {"g000000-00": "trained", "g000000-01": "infra_error", "g000000-01.1": "zero_advantage"})
    with pytest.raises(ValueError, match="g000000-05 was not dispatched for the batch of step 1"):
        ledger.settle(1, {"g000000-05": "trained"})
    ledger.finish(row.id, "stale")
    found = check_conservation(path, ["g000000-00", "g000000-01", "g000000-01.1"], [{"step": 1, "trained": 1}], [])
    assert (found.trained, found.dropped) == (1, {"infra_error": 1, "zero_advantage": 1}), "trained stays trained"
    ledger.close()


def test_a_ledger_without_fates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE groups (id TEXT)")
    assert read_conservation(path) is None
    with pytest.raises(LedgerError, match="--fresh"):
        Ledger(path)
