"""What a gateway relies on, of every engine: in this process, behind HTTP, and several behind a router."""

import asyncio
import random

import numpy as np
import pytest
import torch
from waiting import until

from woodshed.engine.protocol import ContextLengthExceeded, EngineBusy, EngineClosed, Sampling

from .models import DENSE, MOE, decoder, prompt, run, slow, worst_gap
from .served import KINDS

TOLERANCE = 1e-4


@pytest.fixture(params=sorted(KINDS))
def opened(request):
    return KINDS[request.param]


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_turns_have_the_log_probabilities_of_a_full_forward(opened, config):
    async def episode(engine, policy, seed):
        rng = random.Random(seed)
        tokens = prompt(rng.randrange(3, 40), seed)
        seen: list[tuple[int, float, int]] = []

        def heard(*token):
            seen.append(token)

        for turn in range(3):
            done = await engine.generate(tokens, Sampling(max_tokens=9), session=f"t{seed}.0.0", on_token=heard)
            assert seen == list(zip(done.tokens, done.logprobs, done.versions)) and set(done.versions) == {4}
            assert done.cached_tokens > 0 or not turn
            assert worst_gap(policy, tokens, done.tokens, done.logprobs) < TOLERANCE
            if config is MOE:
                assert done.routes.shape == (9, 3, 2) and done.routes.dtype == np.int16
                assert len(done.prompt_routes) >= len(tokens) - done.cached_tokens
            else:
                assert done.routes is None and done.prompt_routes is None
            tokens = tokens + done.tokens + prompt(5, 100 + turn)
            seen.clear()

    async def main():
        policy = decoder(config)
        reference = decoder(config)
        async with opened(policy, version=4) as engine:
            await asyncio.gather(*(episode(engine, reference, seed) for seed in range(6)))
            assert engine.version == 4

    run(main())


def test_sampling_is_what_was_asked_for(opened):
    async def main():
        async with opened(decoder(sharpness=5.0)) as engine:
            ask = prompt(10)
            greedy = await engine.generate(ask, Sampling(max_tokens=8, temperature=0))
            assert greedy.logprobs == [0.0] * 8 and greedy.stop_reason == "length"
            narrow = await engine.generate(ask, Sampling(max_tokens=8, top_k=1))
            sure = await engine.generate(ask, Sampling(max_tokens=8, min_p=1.0))
            likely = await engine.generate(ask, Sampling(max_tokens=8, top_p=1e-6))
            assert greedy.tokens == narrow.tokens == sure.tokens == likely.tokens
            pushed = await engine.generate(ask, Sampling(max_tokens=3, logit_bias={7: 100.0}))
            assert pushed.tokens == [7, 7, 7]
            stopped = await engine.generate(ask, Sampling(max_tokens=8, temperature=0, stop_ids=(greedy.tokens[3],)))
            first = greedy.tokens.index(greedy.tokens[3])
            assert stopped.stop_reason == "stop" and stopped.tokens == greedy.tokens[: first + 1]

    run(main())


def test_a_seed_fixes_the_tokens_whatever_else_runs(opened):
    async def main():
        async with opened(decoder(sharpness=5.0)) as engine:
            ask = Sampling(max_tokens=20, seed=11)
            alone = await engine.generate(prompt(10), ask)
            crowd = [engine.generate(prompt(5 + i, seed=i), Sampling(max_tokens=25)) for i in range(6)]
            together = await asyncio.gather(engine.generate(prompt(10), ask), *crowd)
            assert together[0].tokens == alone.tokens
            head = alone.tokens[:8]
            rest = await engine.generate(prompt(10) + head, Sampling(max_tokens=12, seed=11, drawn=8))
            assert head + rest.tokens == alone.tokens, "a completion goes on as if it had not been interrupted"

    run(main())


def test_refusals_are_the_same_errors(opened):
    async def main():
        async with opened(decoder(), context=32) as engine:
            with pytest.raises(ContextLengthExceeded, match="32 tokens and the context holds 32") as full:
                await engine.generate(prompt(32), Sampling())
            assert (full.value.tokens, full.value.context) == (32, 32)
            with pytest.raises(ValueError, match=r"tokens\[2\] is 97"):
                await engine.generate([1, 2, 97], Sampling())
            with pytest.raises(ValueError, match=r"sampling\.top_p is 0"):
                await engine.generate([1], Sampling(top_p=0))
            with pytest.raises(ValueError, match="logit_bias names token 99"):
                await engine.generate([1], Sampling(logit_bias={99: 1.0}))
            done = await engine.generate(prompt(28), Sampling(max_tokens=100))
            assert len(done.tokens) == 4 and done.stop_reason == "length"

    run(main())


def test_cancelling_stops_the_work(opened):
    async def main():
        async with opened(decoder()) as engine:
            heard = []
            asked = Sampling(max_tokens=240)
            call = engine.generate(prompt(5), asked, session="t.0.0", on_token=lambda *t: heard.append(t))
            task = asyncio.create_task(call)
            await until(lambda: heard)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if hasattr(engine, "refresh"):
                while (await engine.refresh())["running"]:
                    await asyncio.sleep(0.005)
            await until(lambda: not engine.stats()["running"])
            done = await engine.generate(prompt(5), Sampling(max_tokens=5), session="t.0.0")
            assert worst_gap(decoder(), prompt(5), done.tokens, done.logprobs) < TOLERANCE

    run(main())


def test_a_listener_that_has_enough_ends_the_completion_and_loses_nothing_of_it(opened):
    async def main():
        async with opened(slow(decoder(MOE))) as engine:
            heard = []

            def enough(*token):
                heard.append(token)
                return len(heard) >= 7

            ask = Sampling(max_tokens=220)
            await engine.generate(prompt(9), Sampling(max_tokens=1), session="t.0.0")
            done = await engine.generate(prompt(12), ask, session="t.0.0", on_token=enough)
            assert done.stop_reason == "cancelled" and 7 <= len(done.tokens) < 220 and done.cached_tokens == 9
            assert heard == list(zip(done.tokens, done.logprobs, done.versions))
            assert done.routes.shape == (len(heard), 3, 2) and len(done.prompt_routes) == 3
            assert (done.prompt_routes[:, 0] >= 0).all() and (done.routes[:-1, 0] >= 0).all()
            longer = prompt(12) + done.tokens + prompt(3, seed=1)
            again = await engine.generate(longer, Sampling(max_tokens=3), session="t.0.0", on_token=lambda *_: False)
            assert len(again.tokens) == 3 and again.cached_tokens >= len(longer) - 4
            assert worst_gap(decoder(MOE), longer, again.tokens, again.logprobs) < TOLERANCE

    run(main())


def test_release_ends_what_a_session_runs(opened):
    async def main():
        async with opened(decoder()) as engine:
            heard = []
            call = engine.generate(
                prompt(5), Sampling(max_tokens=250), session="t.0.0", on_token=lambda *t: heard.append(t)
            )
            task = asyncio.create_task(call)
            await until(lambda: heard)
            engine.release("t.0.0")
            done = await task
            assert done.stop_reason in ("cancelled", "length") and len(done.tokens) == len(heard)
            engine.release("never seen")

    run(main())


def test_back_pressure_is_an_error_of_its_own(opened):
    async def main():
        async with opened(decoder(), max_running=1, max_waiting=1) as engine:
            tasks = [asyncio.create_task(engine.generate(prompt(4), Sampling(max_tokens=40))) for _ in range(12)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [r for r in results if isinstance(r, BaseException)]
            assert refused and all(isinstance(r, EngineBusy) for r in refused)
            assert "engine.max_waiting" in str(refused[0])
            assert all(len(r.tokens) == 40 for r in results if not isinstance(r, BaseException))

    run(main())


def test_a_closed_engine_says_so(opened):
    async def main():
        async with opened(decoder()) as engine:
            await engine.generate(prompt(5), Sampling(max_tokens=2))
            await engine.close()
            with pytest.raises(EngineClosed):
                await engine.generate(prompt(5), Sampling())
            engine.release("s")

    run(main())


def test_routes_come_whole():
    """Over the wire they are the numbers that the engine gave."""

    async def main():
        got = []
        for kind in ("local", "remote"):
            async with KINDS[kind](decoder(MOE)) as engine:
                got.append(await engine.generate(prompt(23), Sampling(max_tokens=9, seed=1), session="s.0"))
        assert np.array_equal(got[0].routes, got[1].routes)
        assert np.array_equal(got[0].prompt_routes, got[1].prompt_routes)
        assert got[0].tokens == got[1].tokens and got[0].logprobs == got[1].logprobs
        assert torch.tensor(got[0].routes).amax() >= 0

    run(main())
