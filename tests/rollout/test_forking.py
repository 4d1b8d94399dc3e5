"""A fork in real boxes: the recorded beginning is repeated exactly, and a real engine goes on from its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gateway.parts import HERMES, ScriptedEngine
from gateway.real import logprob_gap
from grading import toy
from rollouts import Call, arena, call_texts

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.record.segment import Segment
from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.task import Task
from woodshed.record.trajectory import Fork, Trajectory
from woodshed.rollout.failures import FAULT, INFRA
from woodshed.rollout.forking import FORK_OF, ForkError, ForkPoint, failed_tests, fork_point
from woodshed.rollout.rollout import rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore

FILE = "shapes/measure.py"
WRONG: Sequence[Call] = (
    ("edit_file", {"path": FILE, "old_string": "width + height", "new_string": "width - height"}),
    ("run_tests", {}),
)
READ: Call = ("read_file", {"path": FILE})
HARNESS = HarnessSettings(
    tools=("read_file", "edit_file", "undo", "run_tests", "finish"),
    limits=LimitSettings(turns=6, turn_tokens=300, sampled_tokens=2000, wall_seconds=300.0),
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, LayerStore]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    root = tmp_path_factory.mktemp("forking")
    layers = LayerStore(root / "layers")
    return toy.toy_task(root / "toy", toy.pytest_layer(layers)), layers


def scripted(*calls: Call) -> ScriptedEngine:
    said = iter(call_texts(calls))
    return ScriptedEngine(lambda _: HERMES.encode(next(said), allow_special=True), context=1 << 16)


async def episode(task: tuple[Task, LayerStore], engine: Any, id: str = "root", **rest: Any) -> Trajectory:
    async with arena(engine, task[1], HARNESS, attempts=2) as at:
        return await rollout(at, task[0], id=id, group="g", source="train", **rest)


@pytest.fixture(scope="module")
def parent(task: tuple[Task, LayerStore]) -> Trajectory:
    made = asyncio.run(episode(task, scripted(*WRONG, ("run_tests", {}), ("finish", {}))))
    assert made.status == "submitted" and [e.error for e in made.events] == [None] * 4
    return trajectory_from_bytes(trajectory_to_bytes(made))  # as a later process finds it


def test_where_it_can_be_forked(parent: Trajectory) -> None:
    assert failed_tests(parent) == [2], "the second test run follows no edit"
    point = fork_point(parent, 2)
    (segment,) = parent.segments
    assert (point.fork.parent, point.fork.replies, point.fork.segment) == ("root", 2, 0)
    assert segment.sampled[point.fork.tokens] and not segment.sampled[point.fork.tokens - 1]
    with pytest.raises(ForkError, match="at least one and not the last"):
        fork_point(parent, len(parent.replies))


def test_the_box_and_the_undo_stack_are_those_of_the_parent(task: tuple[Task, LayerStore], parent: Trajectory) -> None:
    engine = scripted(READ, ("undo", {}), READ, ("finish", {}))
    made = asyncio.run(episode(task, engine, "root.f0", fork=fork_point(parent, 2)))
    assert made.status == "submitted" and len(engine.calls) == 4, "only what is new was asked for"
    assert [e.name for e in made.events] == ["edit_file", "run_tests", "read_file", "undo", "read_file", "finish"]
    assert [(e.name, e.arguments, e.error) for e in made.events[:2]] == [
        (e.name, e.arguments, e.error) for e in parent.events[:2]
    ]
    assert "width - height" in made.events[2].result and "width + height" in made.events[4].result
    assert made.effort.turns == 6 and made.labels[FORK_OF] == "root"
    assert made.effort.sampled_tokens == sum(reply.sampled_tokens for reply in made.replies)
    assert made.replies[:2] == parent.replies[:2] and made.messages[:6] == parent.messages[:6]
    assert made.replies[2].asked_seconds >= parent.replies[2].asked_seconds > 0, "what the parent had left is left"
    again = trajectory_from_bytes(trajectory_to_bytes(made))
    assert again.fork == made.fork and again.replies == made.replies


def test_limits_count_what_was_repeated(task: tuple[Task, LayerStore], parent: Trajectory) -> None:
    made = asyncio.run(episode(task, scripted(*[READ] * 9), "root.f0", fork=fork_point(parent, 2)))
    assert made.status == "limit" and made.effort.turns == 6 and len(made.replies) == 6


def test_a_real_engine_goes_on_from_the_tokens(task: tuple[Task, LayerStore], parent: Trajectory) -> None:
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
    decoder = Decoder(config, seed=5)

    asked: list[tuple[int, int]] = []  # tokens of a prompt, and how many of them the engine had in its cache

    class Watched(LocalEngine):
        async def generate(self, tokens: Sequence[int], *arguments: Any, **named: Any) -> Completion:
            done = await super().generate(tokens, *arguments, **named)
            asked.append((len(tokens), done.cached_tokens))
            return done

    async def main() -> list[Trajectory]:
        engine = Watched(decoder)
        try:
            return [await episode(task, engine, id, fork=fork_point(parent, 2)) for id in ("root.f1", "root.f2")]
        finally:
            await engine.close()

    first, second = asyncio.run(main())
    for made in (first, second):
        assert made.status != INFRA, made.error
        assert made.fork is not None
        ours, theirs, shared = made.segments[0], parent.segments[0], made.fork.tokens
        assert np.array_equal(ours.tokens[:shared], theirs.tokens[:shared])
        assert not ours.sampled[:shared].any() and ours.sampled[shared]
        assert ours.spans[0] == theirs.spans[0] and (ours.versions[ours.sampled] == 0).all()
        assert logprob_gap(decoder, ours) < 1e-4
    (alone, nothing), (again, cached) = asked[0], asked[len(first.replies) - 2]
    assert (alone, again, nothing) == (shared, shared, 0) and cached == shared - 1, "only the last token is computed"


def test_a_fork_replays_the_experts_of_its_own_engine() -> None:
    """The weights changed after the parent was sampled; one position was not reported."""

    def segment(first: int, experts: tuple[int, int]) -> Segment:
        sampled = np.arange(6) >= first
        routes = np.tile(np.array(experts, np.int16), (6, 1, 1))
        logprobs, versions = np.where(sampled, -1, 0).astype(np.float32), np.where(sampled, 0, -1).astype(np.int32)
        return Segment(np.arange(6, dtype=np.int32), sampled, logprobs, versions, routes=routes)

    root, own = segment(2, (0, 1)), segment(4, (2, 3))
    assert own.routes is not None
    own.routes[1] = -1
    parent = Trajectory("root", "t", "g", "train", "", "", "submitted", segments=[root])
    (made,) = ForkPoint(parent, Fork("root", 1, 0, 4)).joined([own])
    assert made.routes is not None
    assert made.routes[:, 0].tolist() == [[2, 3], [0, 1], [2, 3], [2, 3], [2, 3], [2, 3]]


def test_a_fork_whose_results_differ_is_abandoned(task: tuple[Task, LayerStore], parent: Trajectory) -> None:
    point = fork_point(parent, 2)
    changed = [
        {**m, "content": "all passed"} if m["role"] == "tool" and i == len(point.replay.messages) - 1 else m
        for i, m in enumerate(parent.messages)
    ]
    engine = scripted(READ)
    other = replace(point, parent=replace(parent, messages=changed))
    made = asyncio.run(episode(task, engine, "root.f0", fork=other))
    assert made.status == INFRA and made.labels[FAULT] == "replay" and made.attempts == 1
    assert "ReplayDiverged" in made.error and "all passed" in made.error and not engine.calls
    assert made.fork == point.fork and not made.segments
