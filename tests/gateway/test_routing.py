"""A gateway before engines that die: its client sees latency, and the record is exact."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from tests.engine.served import KEY, QUICK, routed, serving
from woodshed.engine.local import LocalEngine
from woodshed.engine.opening import ChainWatch
from woodshed.engine.protocol import Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.serve import serve
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, hf_state, save_policy
from woodshed.weights.chain import Publisher

from .parts import ADMIN, COMPACT
from .real import logprob_gap
from .test_serve import streamed, tiny

USER = {"role": "user", "content": "fix it"}


def test_a_stream_survives_its_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(serving(tiny(0), version=3)) for _ in range(2)]
            router = await stack.enter_async_context(routed(*engines))
            app = build_app(router, get_format("compact"), COMPACT, admin_key=ADMIN, follow=router.follow)
            config = uvicorn.Config(
                app, port=0, http="httptools", lifespan="off", log_level="warning", timeout_keep_alive=75
            )
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            async with GatewayAdmin(url, ADMIN) as admin:
                key = await admin.open("t")
                async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as client:
                    endless = {str(COMPACT.special_ids["<end>"]): -100}
                    ask = {"model": "m", "messages": [USER], "stream": True, "max_tokens": 400, "logit_bias": endless}
                    call = asyncio.create_task(streamed(await client.chat.completions.create(**ask)))
                    while sum(e.engine.stats()["generated_tokens"] for e in engines) < 15:
                        assert not call.done(), "it was to be killed in the middle"
                        await asyncio.sleep(0.001)
                    await next(e for e in engines if e.engine.stats()["running"]).kill()
                    message = await call
                    metrics = (await httpx.AsyncClient().get(url + "/metrics")).text
                    assert "woodshed_engine_moved_requests 1.0" in metrics
                    assert "woodshed_engine_engines_serving 1.0" in metrics
                finished = await admin.finish("t", messages=True)
            (segment,) = finished.segments
            assert set(segment.versions[segment.sampled].tolist()) == {3} and segment.sampled.sum() == 400
            assert (finished.messages[0][-1]["content"] or "") == message["content"]
            server.should_exit = True
            await task

    asyncio.run(main())


def test_a_gateway_of_its_settings_routes(tmp_path: Path) -> None:
    """``woodshed serve --engines``: it needs the policy's tokenizer, not its weights."""

    async def main() -> None:
        policy = tiny(0)
        save_policy(Policy(policy, COMPACT, get_format("compact"), policy.config), tmp_path / "policy")
        (tmp_path / "policy" / "model.safetensors").unlink()
        for name, key in (("engines.key", KEY), ("admin.key", ADMIN)):
            (tmp_path / name).write_text(key)
        async with serving(tiny(0), version=3) as a, serving(tiny(0), version=3) as b:
            settings = GatewaySettings(
                policy=tmp_path / "policy",
                engines=(a.url, b.url),
                engine_key_file=tmp_path / "engines.key",
                admin_key_file=tmp_path / "admin.key",
                ready_file=tmp_path / "ready",
                routing=QUICK,
            )
            task = asyncio.create_task(serve(settings))
            while not (tmp_path / "ready").exists():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("swap", ["keep", "drain"])
def test_the_swap_of_the_recipe_is_the_one_that_happens(tmp_path: Path, swap: str) -> None:
    async def main() -> None:
        chain = Publisher(tmp_path, fsync=False)
        chain.publish(0, hf_state(tiny(0)))
        engine = LocalEngine(tiny(0), settings=EngineSettings(swap=swap))
        try:
            watch = ChainWatch(engine, tmp_path, poll_seconds=0.05, timeout_seconds=20)
            await watch.catch_up()
            begun, arrived = threading.Event(), threading.Event()

            def on_token(*_: object) -> None:
                begun.set()
                arrived.wait(20)

            call = asyncio.create_task(engine.generate([5] * 20, Sampling(max_tokens=20), on_token=on_token))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            chain.publish(1, hf_state(tiny(1)))
            following = asyncio.create_task(watch.follow(1))
            while not engine._commands:  # its thread is held, so what was posted stays there
                await asyncio.sleep(0.001)
            arrived.set()
            assert await following == 1
            assert set((await call).versions) == ({0, 1} if swap == "keep" else {0})
        finally:
            await engine.close()

    asyncio.run(main())


def test_log_probabilities_of_a_moved_trajectory(tmp_path: Path) -> None:
    """Turn after turn in one engine and then the other: one segment, exact."""

    async def main() -> None:
        async with serving(tiny(0)) as a, serving(tiny(0)) as b, routed(a, b) as router:
            app = build_app(router, get_format("compact"), COMPACT, admin_key=ADMIN)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
                admin = GatewayAdmin("http://gateway", ADMIN, client=http)
                headers = {"authorization": f"Bearer {await admin.open('t')}"}
                messages = [USER]
                for turn in range(4):
                    if turn == 2:
                        await max((a, b), key=lambda s: s.engine.stats()["generated_tokens"]).kill()
                    body = {"messages": messages, "max_tokens": 20}
                    answer = await http.post("/v1/chat/completions", json=body, headers=headers)
                    messages = [*messages, answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
                finished = await admin.finish("t")
            (segment,) = finished.segments
            assert finished.requests == 4 and logprob_gap(tiny(0), segment) < 1e-4
            assert min(s.engine.stats()["generated_tokens"] for s in (a, b)) > 0

    asyncio.run(main())
