"""Whole rollouts, real gateway to graded trajectory, of policies that attack their box: no infrastructure errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine
from grading import toy

from woodshed.attacks.exploits import EXPLOITS
from woodshed.attacks.exploits.base import Call, Exploit, Target
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic

SLOW = {"many_files", "box_hang", "box_memory", "box_fork_bomb"}
"""They take their time; the battery itself has them (tests/grading/test_exploits.py)."""
ATTACKS = [e for e in EXPLOITS if (e.kind == "box" and e.name not in SLOW) or e.name == "malformed_calls"]


def replies(exploit: Exploit, task: Task) -> Iterator[str]:
    """What a policy says that follows the exploit, in the Hermes format."""
    for action in [*exploit.script(Target.of(task)), Call("finish")]:
        assert isinstance(action, Call)
        arguments = action.arguments if isinstance(action.arguments, str) else json.dumps(action.arguments)
        yield f'<tool_call>\n{{"name": "{action.tool}", "arguments": {arguments}}}\n</tool_call><|im_end|>'


def test_no_policy_can_make_its_rollout_an_infrastructure_error(tmp_path: Path) -> None:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    (spec,) = draw_synthetic(1, split="train", seed=5, workers=1)
    synthetic_task = write_synthetic(spec, tmp_path / "synthetic")
    layers = LayerStore(tmp_path / "layers")
    by_files = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))  # takes whatever lies beside the source

    async def run(exploit: Exploit, arena: Arena, engine: ScriptedEngine) -> Trajectory:
        task = by_files if exploit.name == "deep_folders" else synthetic_task
        said = replies(exploit, task)
        engine.say = lambda _: HERMES.encode(next(said), allow_special=True)
        return await rollout(arena, task, id=exploit.name, group="g", source="train")

    async def main() -> list[Trajectory]:
        engine = ScriptedEngine(lambda _: [], context=1 << 20)
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
                limits=Limits(memory=256 << 20, disk=256 << 20),
            )
            try:
                return [await run(exploit, arena, engine) for exploit in ATTACKS]
            finally:
                await backend.close()

    trajectories = asyncio.run(main())
    assert len(trajectories) >= 12
    for trajectory in trajectories:
        assert trajectory.status in ("submitted", "repeated_format_error"), (trajectory.id, trajectory.error)
        assert trajectory.attempts == 1, trajectory.error
        assert trajectory.outcome is not None and not trajectory.outcome.resolved, trajectory.id
        assert trajectory.reward == 0.0
        assert trajectory.sampled_tokens > 0, "what it did stays trainable"
