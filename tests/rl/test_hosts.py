"""A whole rollout, real gateway to graded trajectory, whose box's host is killed in the middle."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine

from tests.sandbox.hosts import BoxHost
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.opening import open_pool
from woodshed.sandbox.remote.placement import Local, Placement
from woodshed.sandbox.settings import SandboxSettings
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic


def test_an_episode_on_a_host_that_dies_is_tried_again_elsewhere(tmp_path: Path) -> None:
    local = open_pool(SandboxSettings(root=None))
    if not (probe := local.probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    (spec,) = draw_synthetic(1, split="train", seed=5, workers=1)
    task = write_synthetic(spec, tmp_path / "synthetic")
    host = BoxHost(tmp_path / "host").wait()
    living: list[int] = []

    async def main() -> Trajectory:
        def say(_: object) -> list[int]:
            if host.process.poll() is None:
                living.append(host.living())
                host.process.send_signal(signal.SIGKILL)
                host.process.wait()
            call = '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call><|im_end|>'
            if len(living) == 1:
                living.append(0)
                call = call.replace('"finish", "arguments": {}', '"run_command", "arguments": {"command": "ls"}')
            return list(HERMES.encode(call, allow_special=True))

        app = build_app(ScriptedEngine(say, context=1 << 20), get_format("hermes"), HERMES, admin_key=ADMIN)
        backend = Placement([host.client(), Local(local)], "namespace")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            arena = Arena(
                backend=backend,
                layers=LayerStore(tmp_path / "layers"),
                admin=GatewayAdmin("http://gateway", ADMIN, client=client),
                base_url="http://gateway",
                agent=BuiltinAgent(HarnessSettings(), client),
                policy="scripted",
            )
            try:
                return await rollout(arena, task, id="e", group="g", source="train")
            finally:
                await backend.close()

    try:
        trajectory = asyncio.run(main())
    finally:
        host.stop(signal.SIGKILL)
    assert living[0] == 1, "the box was there when the host was killed"
    assert trajectory.status == "submitted" and trajectory.attempts == 2, trajectory.error
    assert trajectory.outcome is not None and not trajectory.outcome.resolved
