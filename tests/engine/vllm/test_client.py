"""The client of vLLM against a server that stands in for it: what goes over the wire, and what becomes of it."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest

from tests.engine.models import DENSE, MOE, decoder, prompt, run, slow, worst_gap
from tests.engine.served import KEY, QUICK
from woodshed.engine.protocol import (
    ContextLengthExceeded,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineLost,
    EngineUnfit,
    Sampling,
)
from woodshed.engine.routing.router import Router
from woodshed.engine.settings import EngineSettings
from woodshed.engine.vllm.client import VllmEngine
from woodshed.gateway.serve import _peer
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.state import hf_state
from woodshed.weights.chain import Publisher

from .standin import standing_in


@asynccontextmanager
async def client(standin, key=KEY, settings=None, **options):
    engine = VllmEngine(standin.url, key, vocabulary=97, settings=EngineSettings(**(settings or {})), **options)
    try:
        yield engine
    finally:
        await engine.close()


def test_tokens_logprobs_and_versions_come_whole():
    async def main():
        async with standing_in(decoder(DENSE)) as standin, client(standin, settings={"context": 64}) as engine:
            seen = []
            done = await engine.generate(prompt(10), Sampling(max_tokens=9), on_token=lambda *t: seen.append(t))
            assert seen == list(zip(done.tokens, done.logprobs, done.versions)) and len(seen) == 9
            assert set(done.versions) == {0} and done.stop_reason == "length" and done.routes is None
            assert worst_gap(decoder(DENSE), prompt(10), done.tokens, done.logprobs) < 1e-4
            cut = await engine.generate(prompt(60), Sampling(max_tokens=100))
            assert len(cut.tokens) == 4 and cut.stop_reason == "length"
            greedy = await engine.generate(prompt(5), Sampling(max_tokens=3, temperature=0))
            assert greedy.logprobs == [0.0] * 3
            pushed = Sampling(max_tokens=2, logit_bias={7: 100.0, 8: float("-inf")}, stop_ids=(7,))
            stopped = await engine.generate(prompt(5), pushed)
            assert stopped.tokens == [7] and stopped.stop_reason == "stop"
            assert standin.asked[-1]["sampling_params"]["logit_bias"]["8"] == -1e9

    run(main())


def test_routes_are_those_of_the_tokens_that_were_fed():
    async def main():
        async with standing_in(decoder(MOE)) as standin, client(standin) as engine:
            ask = Sampling(max_tokens=9, seed=1)
            done = await engine.generate(prompt(23), ask, session="t.0")
            ours = await standin.engine.generate(prompt(23), ask)
            assert done.routes.dtype == np.int16 and done.routes.shape == (9, 3, 2)
            assert (done.routes[-1] == -1).all() and np.array_equal(done.routes[:-1, 0], ours.routes[:-1, 0])
            assert len(done.prompt_routes) == 23
            await engine.generate(prompt(23) + done.tokens + [3], ask, session="t.0")
            assert standin.asked[-1]["sampling_params"]["routed_experts_prompt_start"] == 31

    run(main())


def test_weights_change_under_a_running_request(tmp_path):
    async def main():
        changed = threading.Event()
        policy = slow(decoder(DENSE), seconds=0.1, until=changed)
        async with standing_in(policy) as standin, client(standin, chain=str(tmp_path)) as engine:
            Publisher(tmp_path).publish(3, hf_state(decoder(DENSE, seed=5)))
            await engine.generate(prompt(5), Sampling(max_tokens=2))
            assert engine.version == 3, "it catches up before anything is sampled"
            calls = ["/pause?mode=keep", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]
            assert standin.calls == calls
            seen = []
            ask = Sampling(max_tokens=240)
            task = asyncio.create_task(engine.generate(prompt(5), ask, on_token=lambda *t: seen.append(t)))
            while len(seen) < 3:
                await asyncio.sleep(0.001)
            Publisher(tmp_path).publish(4, hf_state(decoder(DENSE, seed=6)))
            assert await engine.follow(4, timeout=20) == 4
            changed.set()
            done = await task
            assert seen == list(zip(done.tokens, done.logprobs, done.versions)) and len(seen) == 240
            assert done.versions == sorted(done.versions) and set(done.versions) == {3, 4}
            new = await engine.generate(prompt(5), Sampling(max_tokens=5))
            assert worst_gap(decoder(DENSE, seed=6), prompt(5), new.tokens, new.logprobs) < 1e-4
            with pytest.raises(EngineError, match=r"version 9 .* did not appear"):
                await engine.follow(9, timeout=0.2)

    run(main())


def test_weights_that_cannot_be_followed_are_shown_and_tried_again(tmp_path, monkeypatch):
    async def main():
        async with standing_in(decoder(DENSE)) as standin, client(standin, chain=str(tmp_path)) as engine:
            engine._updates._poll_seconds = 0.01
            await engine.refresh()
            look = engine._updates._server.look

            async def broken(*_):
                raise KeyError("unforeseen")

            monkeypatch.setattr(engine._updates._server, "look", broken)
            while not engine.stats()["weights_stale"]:
                await asyncio.sleep(0.01)
            assert "unforeseen" in engine.stats()["weights_problem"]["reason"]
            monkeypatch.setattr(engine._updates._server, "look", look)
            Publisher(tmp_path).publish(1, hf_state(decoder(DENSE, seed=5)))
            while engine.stats()["weights_stale"] or engine.version < 1:
                await asyncio.sleep(0.01)

    run(main())


def test_an_update_that_somebody_left_half_done_is_done_again(tmp_path):
    async def main():
        async with standing_in(decoder(DENSE)) as standin:
            standin.paused = True
            async with client(standin) as engine:
                with pytest.raises(EngineError, match="is paused"):
                    await engine.refresh()
            Publisher(tmp_path).publish(1, hf_state(decoder(DENSE, seed=5)))
            async with client(standin, chain=str(tmp_path)) as engine:
                assert (await engine.refresh())["version"] == 1 and not standin.paused

    run(main())


def test_cancelling_and_release_stop_the_servers_work():
    async def main():
        async with standing_in(decoder(DENSE)) as standin, client(standin) as engine:
            for leave in ("cancel", "release"):
                seen = []
                call = engine.generate(
                    prompt(5),
                    Sampling(max_tokens=250),
                    session="t.0",
                    on_token=lambda *t: seen.append(t),  # noqa: B023
                )
                task = asyncio.create_task(call)
                while not seen:
                    await asyncio.sleep(0.001)
                if leave == "cancel":
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    engine.release("t.0")
                    done = await task
                    assert done.stop_reason in ("cancelled", "length") and len(done.tokens) == len(seen)
                while (await engine.refresh())["running"]:
                    await asyncio.sleep(0.005)

    run(main())


def test_a_listener_that_has_enough_ends_the_completion():
    async def main():
        async with standing_in(slow(decoder(MOE))) as standin, client(standin) as engine:
            heard = []

            def enough(*token):
                heard.append(token)
                return len(heard) >= 7

            done = await engine.generate(prompt(5), Sampling(max_tokens=240), session="t.0", on_token=enough)
            assert done.stop_reason == "cancelled" and 7 <= len(done.tokens) < 240
            assert heard == list(zip(done.tokens, done.logprobs, done.versions))
            assert (done.routes[:-1, 0] >= 0).all() and len(done.prompt_routes) == 5

    run(main())


def test_what_is_wrong_is_said():
    async def main():
        async with standing_in(decoder(DENSE)) as standin:
            async with client(standin, settings={"max_running": 1, "max_waiting": 1}) as engine:
                with pytest.raises(ContextLengthExceeded):
                    await engine.generate(prompt(256), Sampling())
                with pytest.raises(ValueError, match=r"tokens\[2\] is 97"):
                    await engine.generate([1, 2, 97], Sampling())
                with pytest.raises(EngineClosed, match="not yet 7"):
                    await engine.generate(prompt(5), Sampling(), least=7)
                tasks = [engine.generate(prompt(4), Sampling(max_tokens=20)) for _ in range(5)]
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert [type(r) for r in results].count(EngineBusy) == 3
                await engine.close()
                with pytest.raises(EngineClosed):
                    await engine.generate(prompt(5), Sampling())
            async with client(standin, key="another-key-entirely") as engine:
                with pytest.raises(EngineUnfit, match="--api-key"):
                    await engine.generate(prompt(5), Sampling())
            standin.label = "17"
            async with client(standin) as engine:
                with pytest.raises(EngineError, match="one gateway"):  # its engine samples as version 0
                    await engine.generate(prompt(5), Sampling(max_tokens=2))
            standin.config["logprobs_mode"] = "raw_logprobs"
            async with client(standin) as engine:
                with pytest.raises(EngineUnfit, match="--logprobs-mode processed_logprobs"):
                    await engine.generate(prompt(5), Sampling())
        async with client(standin) as engine:
            with pytest.raises(EngineLost):
                await engine.generate(prompt(5), Sampling())
        with pytest.raises(ValueError, match="recompute"):
            VllmEngine("http://x", KEY, vocabulary=97, settings=EngineSettings(swap="recompute"))

    run(main())


def test_a_router_takes_it_as_any_engine():
    async def main():
        async with standing_in(decoder(DENSE)) as standin:
            router = Router([VllmEngine(standin.url, KEY, vocabulary=97)], QUICK, vocabulary=97)
            try:
                await router.ready()
                done = await router.generate(prompt(8), Sampling(max_tokens=5), session="a.0.0")
                assert worst_gap(decoder(DENSE), prompt(8), done.tokens, done.logprobs) < 1e-4
                assert router.stats()["generated_tokens"] == 5
            finally:
                await router.close()

    run(main())


def test_the_gateway_takes_its_address(tmp_path):
    async def main():
        async with standing_in(decoder(DENSE)) as standin:
            settings = GatewaySettings(weights=str(tmp_path), engine=EngineSettings(context=48))
            engine = _peer(f"vllm+{standin.url}", KEY, settings, 6, 97)
            try:
                assert isinstance(engine, VllmEngine)
                stats = await engine.refresh()
                assert (stats["version"], stats["context"], stats["vocabulary"]) == (6, 48, 97)
            finally:
                await engine.close()

    run(main())
