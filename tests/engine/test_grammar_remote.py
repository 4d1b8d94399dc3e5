"""Grammars in engines of other processes: over the wire, and on where an engine dies in the middle of a completion."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import EngineError
from woodshed.engine.remote import wire
from woodshed.engine.routing.router import Router
from woodshed.engine.settings import EngineSettings
from woodshed.engine.vllm.client import VllmEngine

from .models import decoder, prompt, run, slow
from .served import Served, routed
from .test_grammar import END, GRAMMARS, LONG, sampling


def test_a_grammar_travels_and_a_request_without_one_is_as_before() -> None:
    ask = sampling(LONG, seed=3)
    data = wire.encode_ask([1, 2], ask, "s", live=True, least=0, name="n")
    assert wire.decode_ask(data).sampling == ask
    broken = data.replace(b'"grammar":"', b'"grammar":5,"x":"', 1)
    with pytest.raises(ValueError):
        wire.decode_ask(broken)


def test_a_completion_goes_on_in_its_grammar_where_its_engine_dies() -> None:
    async def main() -> None:
        alone = LocalEngine(decoder(), grammars=GRAMMARS)
        start, ask = prompt(14), sampling(LONG, seed=9)
        expected = await alone.generate(start, ask)
        await alone.close()
        assert len(expected.tokens) > 8
        async with AsyncExitStack() as stack:
            served = []
            for _ in range(2):
                policy = slow(decoder(), 0.02)
                engine = LocalEngine(policy, settings=EngineSettings(native="off"), grammars=GRAMMARS)
                stack.push_async_callback(engine.close)
                served.append(Served(engine))
                await served[-1].start()
                stack.push_async_callback(served[-1].kill)
            router = await stack.enter_async_context(routed(*served))
            assert router.grammars_refused() is None
            heard: list[int] = []
            task = asyncio.create_task(
                router.generate(start, ask, session="a.0", on_token=lambda token, *_: heard.append(token))
            )
            while len(heard) < 3:
                assert not task.done(), "it was to be killed in the middle"
                await asyncio.sleep(0.001)
            await next(s for s in served if s.engine.stats()["running"]).kill()
            done = await task
            assert done.tokens == expected.tokens and done.tokens[-1] == END and router.stats()["moved_requests"] == 1
            assert np.allclose(done.logprobs, expected.logprobs, atol=1e-4)
            with pytest.raises((ValueError, EngineError), match="uniqueItems"):
                await router.generate(start, sampling({"type": "array", "uniqueItems": True}))

    run(main())


def test_vllm_takes_none_and_neither_does_a_router_with_one() -> None:
    async def main() -> None:
        client = VllmEngine("http://127.0.0.1:9", "key", vocabulary=97)
        router = Router([client])
        assert "vLLM" in (client.grammars_refused() or "") and router.grammars_refused() == client.grammars_refused()
        await router.close()

    run(main())
