"""Forks under a real controller: decided, run, stored and counted once, through restarts and where boxes differ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gateway.parts import HERMES, ScriptedEngine
from gateway.real import logprob_gap

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ReplyUsage, ToolEvent, Trajectory
from woodshed.rl.conservation import read_conservation
from woodshed.rl.forks import ForkSettings, place
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.rollout.failures import FAULT, INFRA
from woodshed.rollout.forking import failed_tests
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .test_conservation import count, interrupted
from .trained import trained

SETTINGS = RLSettings(
    steps=2,
    groups_per_step=1,
    group_size=2,
    concurrency=1,
    attempts=2,
    max_staleness=0,
    algorithm="tree",
    forks=ForkSettings(count=2),
)
PROGRAM = "run_tests.py"
FAILS = "print('FAIL')\nraise SystemExit(1)\n"
VARIES = "import os\nprint('FAIL', os.urandom(8).hex())\nraise SystemExit(1)\n"


@pytest.fixture
def boxes() -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))


class Player:
    """Writes a test program and runs it, ``times`` times, and is done: by the number of results in the prompt."""

    def __init__(self, program: str, times: int = 1) -> None:
        self.program, self.times = program, times

    def __call__(self, prompt: list[int]) -> list[int]:
        results = HERMES.decode(prompt).count("<tool_response>")
        content = f"{self.program}# {results}\n"
        name, arguments = ("run_tests", {}) if results % 2 else ("write_file", {"path": PROGRAM, "content": content})
        if results >= 2 * self.times:
            name, arguments = "finish", {}
        call = json.dumps({"name": name, "arguments": arguments})
        return HERMES.encode(f"<tool_call>\n{call}\n</tool_call><|im_end|>", allow_special=True)


def reward(_: Task, trajectory: Trajectory, __: Outcome) -> dict[str, float]:
    """The last digit of the id, modulo 2."""
    return {"played": float(int(trajectory.id[-1]) % 2)}


def stored(folder: Path) -> dict[str, Trajectory]:
    store = TrajectoryStore(folder / "store")
    found = list(store)
    store.close()
    assert len({t.id for t in found}) == len(found), "stored twice"
    return {t.id: t for t in found}


@pytest.mark.usefixtures("boxes")
def test_forks_are_run_once_and_conserved_through_restarts(tmp_path: Path) -> None:
    index = tmp_path / "store" / "index.sqlite"

    async def main() -> None:
        async with trained(tmp_path, 4, say=Player(FAILS), reward=reward) as at:
            for done in (3, 8):  # among the forks of a group
                await interrupted(at, SETTINGS, lambda n=done: count(index, "SELECT COUNT(*) FROM trajectories") >= n)
                assert at.conserved(finished=False).undecided
            await at.run(SETTINGS)
            found = at.conserved()
            assert (found.dispatched, found.trained, found.forks, found.replacements) == (12, 12, 8, 0)
            assert str(found) == "12 rollouts dispatched, 8 as forks = 12 trained" and at.trained == [6, 6]

    asyncio.run(main())
    everyone = stored(tmp_path)
    roots = {f"g{group:06d}-{member:02d}" for group in range(2) for member in range(2)}
    assert set(everyone) == roots | {f"{root}.f{number}" for root in roots for number in range(2)}
    for id, made in everyone.items():
        if id in roots:
            assert made.fork is None
            continue
        assert made.fork is not None and made.status == "submitted"
        parent, shared = everyone[made.fork.parent], made.fork.tokens
        assert made.id.startswith(parent.id) and made.fork.replies == 2
        (ours,), (theirs,) = made.segments, parent.segments
        assert np.array_equal(ours.tokens, theirs.tokens), "the player says the same again"
        assert not ours.sampled[:shared].any() and np.array_equal(ours.sampled[shared:], theirs.sampled[shared:])
        assert [(e.name, e.result) for e in made.events] == [(e.name, e.result) for e in parent.events]
        assert made.effort.turns == parent.effort.turns == 3
    rows = [row for shard in index.parent.glob("shard-*.parquet") for row in pq.read_table(shard).to_pylist()]
    sizes = {row["id"]: len(row["record"]) for row in rows}
    assert max(sizes[id] for id in sizes.keys() - roots) < 0.2 * min(sizes[id] for id in roots), "stored once"
    lines = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")
    assert [(line["forks"], line["rollouts"], line["abandoned_forks"]) for line in lines] == [(4, 6, 0), (4, 6, 0)]


@pytest.mark.usefixtures("boxes")
def test_a_random_failed_test_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """Of the three that each root has; not all roots are forked after the same one."""
    settings = SETTINGS.model_copy(update={"forks": ForkSettings(count=1, at="random_failed_test"), "group_size": 4})
    index = tmp_path / "store" / "index.sqlite"

    async def main() -> None:
        async with trained(tmp_path, 4, say=Player(FAILS, times=3), reward=reward) as at:
            await interrupted(at, settings, lambda: count(index, "SELECT COUNT(*) FROM trajectories") >= 5)
            await at.run(settings)
            found = at.conserved()
            assert (found.dispatched, found.trained, found.forks) == (16, 12, 8)
            assert found.dropped == {"zero_advantage": 4}, "forks of roots with the same reward"

    asyncio.run(main())
    everyone = stored(tmp_path)
    forks = [t for t in everyone.values() if t.fork is not None]
    for made in forks:
        assert made.fork is not None and made.status == "submitted"
        parent = everyone[made.fork.parent]
        assert failed_tests(parent) == [2, 4, 6] and made.fork.replies == place(parent, settings.forks)
    assert len(forks) == 8 and len({t.fork.replies for t in forks if t.fork}) > 1


def test_every_failed_test_is_as_likely() -> None:
    root = Trajectory(
        "g000000-00",
        "t",
        "g000000",
        "train",
        "h",
        "p",
        "submitted",
        events=[e for turn in (1, 3, 5) for e in (event("write_file", turn), event("run_tests", turn + 1))],
        replies=[ReplyUsage(0, False, 10, 5, 0, "tool_calls")] * 7,
    )
    random, first = ForkSettings(count=1, at="random_failed_test"), ForkSettings(count=1)
    at = [place(replace(root, id=f"g{n:06d}-00"), random) for n in range(600)]
    assert set(at) == {2, 4, 6} and all(at.count(replies) > 150 for replies in (2, 4, 6))
    assert place(root, random) == place(root, random) and place(root, first) == 2
    assert place(replace(root, events=root.events[:1]), random) is None, "no test has failed"
    assert place(replace(root, replies=root.replies[:2]), random) is None, "never after the last turn"


def event(name: str, turn: int) -> ToolEvent:
    return ToolEvent(turn, name, {}, "FAIL")


class Mixed:
    """The player says the first two replies, which every fork shares; all others are sampled by a real engine.

    ``asked`` gets prompts of the real engine, each with the number of tokens that it had in its cache."""

    def __init__(self, player: Player, real: LocalEngine, asked: list[tuple[list[int], int]]) -> None:
        self.scripted, self.real, self.version = ScriptedEngine(player, context=1 << 20), real, 0
        self.scripted.version = 0
        self.asked = asked

    async def generate(self, tokens: Sequence[int], *arguments: Any, **named: Any) -> Completion:
        if HERMES.decode(tokens).count("<tool_response>") < 2:
            return await self.scripted.generate(tokens, *arguments, **named)
        done = await self.real.generate(tokens, *arguments, **named)
        self.asked.append((list(tokens), done.cached_tokens))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.usefixtures("boxes")
def test_what_a_real_engine_samples_in_forks_has_the_trainers_log_probabilities(tmp_path: Path) -> None:
    config = DecoderConfig(
        vocab_size=HERMES.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=48,
        max_positions=1 << 14,
    )
    decoder = Decoder(config, seed=7)
    harness = HarnessSettings(
        tools=("write_file", "run_tests", "finish"), limits=LimitSettings(turns=3, turn_tokens=200)
    )

    asked: list[tuple[list[int], int]] = []

    async def main() -> None:
        real = LocalEngine(decoder)
        try:
            mixed = Mixed(Player(FAILS), real, asked)
            async with trained(tmp_path, 4, engine=mixed, harness=harness, reward=reward) as at:
                await at.run(SETTINGS.model_copy(update={"concurrency": 6}))
                found = at.conserved()
                assert (found.dispatched, found.trained, found.forks) == (12, 12, 8) and at.trained == [6, 6]
        finally:
            await real.close()

    asyncio.run(main())
    forks = [t for t in stored(tmp_path).values() if t.fork is not None]
    assert len(forks) == 8 and all(t.sampled_tokens and len(t.segments) == 1 for t in forks)
    for fork in forks:
        assert fork.fork is not None
        node = fork.segments[0].tokens[: fork.fork.tokens].tolist()
        cached = [count for prompt, count in asked if prompt == node]
        # Four roots and eight forks ask with these tokens, in two groups; for the first of them nothing is known yet.
        assert len(cached) == 12 and sum(count == len(node) - 1 for count in cached) >= 10, cached
    assert len({tuple(t.segments[0].tokens.tolist()) for t in forks}) > 4, "they go on differently"
    assert max(logprob_gap(decoder, t.segments[0]) for t in forks) < 1e-4


@pytest.mark.usefixtures("boxes")
def test_forks_whose_box_does_not_repeat_the_beginning_are_abandoned(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained(tmp_path, 4, say=Player(VARIES), reward=reward) as at:
            controller = await at.run(SETTINGS)
            found = at.conserved()
            assert found.dropped == {"abandoned_fork": 8} and (found.dispatched, found.trained) == (12, 4)
            assert controller.failures.counts == {"replay": 8} and found.replacements == 0

    asyncio.run(main())
    lost = [t for t in stored(tmp_path).values() if t.status == INFRA]
    assert len(lost) == 8 and all(t.fork is not None and t.labels[FAULT] == "replay" for t in lost)
    assert {t.attempts for t in lost} == {1}, "another try would meet the same"
    lines = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")
    assert [(line["abandoned_forks"], line["infra_errors"], line["infra_share"]) for line in lines] == [(4, 0, 0)] * 2


def test_the_ledger_tells_forks_from_replacements(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    ledger = Ledger(path)
    row = ledger.dispatch("t", 0, 0, 2)
    again = ledger.replace(row.id, "g000000-01", 1)
    for _ in range(2):  # the second time as after a kill
        ledger.fork(row.id, ["g000000-00.f0", "g000000-00.f1"])
        ledger.fork(row.id, [f"{again}.f0"])
    assert (ledger.replacements(), ledger.forks()) == (1, 3)
    assert ledger.members(row.id) == ["g000000-00", "g000000-01"]
    ledger.close()
    found = read_conservation(path)
    assert found is not None and (found.dispatched, found.replacements, found.forks, found.difference) == (6, 1, 3, 0)
