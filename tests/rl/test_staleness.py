"""The capacity rule and the age of a group, against their definitions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from gateway.parts import ScriptedEngine

from woodshed.record.segment import Segment
from woodshed.record.trajectory import Trajectory
from woodshed.rl.controller import may_dispatch, token_age
from woodshed.rl.ledger import OutOfTasks
from woodshed.rl.settings import RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .trained import DONE, by_number, trained


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("groups", [1, 5])
def test_what_is_dispatched_is_trained_within_the_bound(groups: int, staleness: int) -> None:
    """Group number n is trained in step n // groups + 1 at the earliest, by weights that old at most."""
    for version in range(5):
        allowed = 0
        while may_dispatch(allowed, version, groups, staleness):
            allowed += 1
        trained_from_version = (allowed - 1) // groups
        assert trained_from_version - version == staleness


def test_age_is_that_of_the_oldest_sampled_token() -> None:
    def trajectory(versions: list[int]) -> Trajectory:
        n = len(versions)
        sampled = np.asarray(versions) >= 0
        segment = Segment(
            tokens=np.arange(n, dtype=np.int32),
            sampled=sampled,
            logprobs=np.where(sampled, -1.0, np.nan).astype(np.float32),
            versions=np.asarray(versions, np.int32),
        )
        return Trajectory(
            id="x",
            task="t",
            group="g",
            source="train",
            harness_hash="h",
            policy="p",
            status="submitted",
            segments=[segment],
        )

    assert token_age([trajectory([-1, 3, 4]), trajectory([-1, 5])], 6) == 3
    assert token_age([trajectory([-1, 6])], 6) == 0


def test_synchronous_and_stale_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="mode 'sync' sets max_staleness to 0, and it is 1"):
        RLSettings(mode="sync", max_staleness=1)


def test_synchronous_is_without_staleness() -> None:
    """The recipe of a finished run names both settings, and is read as it was."""
    assert RLSettings().max_staleness == 1 and RLSettings(mode="async").max_staleness == 1
    made = RLSettings(mode="sync")
    assert made.max_staleness == 0 and RLSettings(**made.model_dump()) == made
    assert RLSettings(mode="sync", max_staleness=0) == made


class Behind(ScriptedEngine):
    """Samples by version 0, whatever it is told to load."""

    @property
    def version(self) -> int:
        return 0

    @version.setter
    def version(self, _: int) -> None:
        pass


def test_groups_with_too_old_tokens_are_dropped_and_counted(tmp_path: Path) -> None:
    """The first step's tokens have age 0, the second's age 1, all later ones age 2."""
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    settings = RLSettings(steps=3, groups_per_step=1, group_size=2, concurrency=2, max_staleness=0, max_token_age=1)

    async def main() -> None:
        engine = Behind(lambda _: list(DONE), context=1 << 20)
        async with trained(tmp_path, 5, engine=engine, reward=by_number(set())) as at:
            with pytest.raises(OutOfTasks, match="3 stale"):
                await at.run(settings)
            found = at.conserved()
            assert found.trained == 4 and found.dropped == {"stale": 6}

    asyncio.run(main())
