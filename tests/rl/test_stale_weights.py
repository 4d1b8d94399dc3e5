"""Weights that the policy server cannot follow are shown in the run, and RL goes on when they can be followed again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from gateway.parts import ADMIN, COMPACT
from gateway.test_serve import tiny

from woodshed.engine.local import LocalEngine
from woodshed.engine.opening import ChainWatch
from woodshed.engine.settings import EngineSettings
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.policy.formats import get_format
from woodshed.policy.hf import hf_state
from woodshed.record.store import TrajectoryStore
from woodshed.rl.controller import Controller
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.weights.chain import Publisher
from woodshed.weights.fence import Head
from woodshed.weights.manifest import version_key
from woodshed.weights.store import FolderStore


def test_a_server_that_cannot_follow_is_shown_and_asked_again(tmp_path: Path) -> None:
    told: list[str] = []

    async def main() -> None:
        store = FolderStore(tmp_path / "weights", fsync=False)
        publisher = Publisher(store, 100)
        publisher.publish(0, hf_state(tiny(0)))
        engine = LocalEngine(tiny(0), settings=EngineSettings())
        chain = ChainWatch(engine, store, poll_seconds=0.01, timeout_seconds=60)
        await chain.catch_up()
        app = build_app(engine, get_format("compact"), COMPACT, admin_key=ADMIN, follow=chain.follow)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            arena: Any = SimpleNamespace(admin=GatewayAdmin("http://gateway", ADMIN, client=client), patience=60.0)
            head = Head(store)
            controller = Controller(
                arena,
                [],
                Ledger(tmp_path / "state.sqlite"),
                TrajectoryStore(tmp_path / "trajectories"),
                RLSettings(steps=0),
                batches=tmp_path / "batches",
                metrics=tmp_path / "metrics.jsonl",
                head=lambda: head() or 0,
                build=lambda groups, step: (None, {}),
                seed=0,
                notice=told.append,
            )
            publisher.publish(1, hf_state(tiny(1)))
            torn = version_key(1, "delta-000001-00000-00000.bin")
            whole = store.get(torn)
            store.put(torn, whole[:50])
            watching = asyncio.create_task(controller._watch_versions())
            try:
                while not told:
                    assert not watching.done()
                    await asyncio.sleep(0.01)
                assert "stays at version 0 of the weights, 1 is there" in told[0] and torn in told[0]
                await chain.catch_up()
                health = (await client.get("/health")).json()
                assert health["status"] == "stale" and torn in health["weights"]["reason"]
                store.put(torn, whole)
                while controller.version < 1:
                    assert not watching.done()
                    await asyncio.sleep(0.01)
            finally:
                watching.cancel()
                await engine.close()
        assert engine.version == 1

    asyncio.run(main())
