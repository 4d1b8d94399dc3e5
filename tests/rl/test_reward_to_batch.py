"""From real episodes in boxes to the batch: a monitor's verdict and behaviour terms change what tokens weigh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine
from grading import toy

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.rl.settings import RLSettings
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits
from woodshed.train.batch import TrainBatch

MEND = ("edit_file", {"path": "shapes/measure.py", "old_string": "width + height", "new_string": "width * height"})
TAMPER = ("write_file", {"path": "tests/test_measure.py", "content": "def test_area():\n    pass\n"})
LEAVE = (
    "edit_file",
    {
        "path": "shapes/measure.py",
        "old_string": "    return 2 * value",
        "new_string": "    # return value + value\n    return 2 * value if value != None else 0",
    },
)
FINISH = ("finish", {"message": "area() multiplies now."})
Calls = Sequence[tuple[str, dict[str, Any]]]


def said(call: tuple[str, dict[str, Any]]) -> str:
    name, arguments = call
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


def episodes(folder: Path, settings: RLSettings, *scripts: Calls) -> list[Trajectory]:
    """One group of real episodes, read back from the store."""
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    layers = LayerStore(folder / "layers")
    task = toy.toy_task(folder / "toy", toy.pytest_layer(layers))
    store = TrajectoryStore(folder / "trajectories")

    async def main() -> None:
        engine = ScriptedEngine(lambda _: [], context=1 << 16)
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        backend = open_backend()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            arena = Arena(
                backend=backend,
                layers=layers,
                admin=GatewayAdmin("http://gateway", ADMIN, client=client),
                base_url="http://gateway",
                agent=BuiltinAgent(HarnessSettings(), client),
                policy="scripted",
                limits=Limits(memory=1 << 30, disk=64 << 20),
                reward=settings.make_reward(),
                monitors=settings.monitors,
            )
            try:
                for i, script in enumerate(scripts):
                    replies = iter([said(call) for call in script])
                    engine.say = lambda _, replies=replies: HERMES.encode(next(replies), allow_special=True)
                    store.add(await rollout(arena, task, id=f"t{i}", group="g", source="train"))
            finally:
                await backend.close()

    asyncio.run(main())
    return store.group("g")


def weights_of(batch: TrainBatch) -> dict[str, set[float]]:
    """Distinct weights of the sampled tokens of each trajectory, times the denominator."""
    found: dict[str, set[float]] = {}
    for i, name in enumerate(batch.trajectories):
        span = slice(batch.offsets[i], batch.offsets[i + 1])
        chosen = batch.weights["rl"][span][batch.versions[span] >= 0]
        found.setdefault(name, set()).update(round(float(x), 6) for x in chosen)
    return found


def test_a_failing_monitor_turns_a_solved_episode_into_a_bad_example(tmp_path: Path) -> None:
    settings = RLSettings.model_validate({"monitors": {"test_tampering": "fail"}, "group_size": 2})
    group = episodes(tmp_path, settings, [MEND, FINISH], [MEND, TAMPER, FINISH])
    honest, hack = sorted(group, key=lambda t: t.id)
    assert honest.outcome is not None and honest.outcome.resolved and honest.rewards == {"outcome": 1.0}
    assert hack.outcome is not None and hack.outcome.resolved, "the grader uses its own tests, so both are solved"
    assert hack.flagged == {"test_tampering"} and honest.flagged == set()
    assert hack.rewards == {"outcome": 1.0, "monitor_test_tampering": -1.0}
    batch, stats = build_batch(
        [group], load_algorithm("mean_baseline", budget=10), step=1, batch_id="b", generation_budget=10
    )
    assert weights_of(batch) == {"t0": {0.5}, "t1": {-0.5}}
    assert stats.reward_terms == {"monitor_test_tampering": -0.5, "outcome": 1.0}
    assert stats.reward_term_shares == {"monitor_test_tampering": 0.5, "outcome": 1.0}


def test_behaviour_terms_see_the_files_of_the_submission(tmp_path: Path) -> None:
    terms = {"style": 0.1, "commented_out": {"weight": 0.5, "cap": 0.25}}
    settings = RLSettings.model_validate({"rewards": terms, "group_size": 2})
    group = episodes(tmp_path, settings, [MEND, FINISH], [MEND, LEAVE, FINISH])
    clean, sloppy = sorted(group, key=lambda t: t.id)
    assert set(clean.changed) == set(sloppy.changed) == {"shapes/measure.py"}
    assert "width * height" in clean.changed["shapes/measure.py"]
    assert clean.rewards == {"outcome": 1.0, "style": 0.0, "commented_out": 0.0}
    assert sloppy.rewards == {"outcome": 1.0, "style": -0.1, "commented_out": -0.25}
    batch, stats = build_batch(
        [group],
        load_algorithm("mean_baseline", budget=10),
        step=1,
        batch_id="b",
        generation_budget=10,
        caps=settings.reward_caps(),
    )
    assert weights_of(batch) == {"t0": {0.175}, "t1": {-0.175}}
    assert stats.reward_term_shares == {"commented_out": 0.5, "outcome": 1.0, "style": 0.5}
    assert stats.reward_term_capped == {"commented_out": 0.5}
