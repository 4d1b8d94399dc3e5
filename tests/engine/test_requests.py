"""Stopping, limits, seeds, cancellation, sessions, eviction, errors."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from woodshed.engine.protocol import ContextLengthExceeded, EngineBusy, EngineClosed, EngineError, Sampling

from .models import DENSE, MOE, clone_state, decoder, prompt, run, running, slow, worst_gap


def test_stop_and_length():
    async def main():
        async with running(decoder()) as engine:
            free = await engine.generate(prompt(8), Sampling(max_tokens=12, seed=3))
            assert free.stop_reason == "length" and len(free.tokens) == 12
            stop = free.tokens[5]
            first = free.tokens.index(stop)
            done = await engine.generate(prompt(8), Sampling(max_tokens=12, seed=3, stop_ids=(stop, 96)))
            assert done.stop_reason == "stop" and done.tokens == free.tokens[: first + 1]
            one = await engine.generate(prompt(8), Sampling(max_tokens=1))
            assert len(one.tokens) == 1 and one.stop_reason == "length"

    run(main())


def test_the_context_ends_a_completion_and_refuses_a_prompt():
    async def main():
        async with running(decoder(), context=32) as engine:
            done = await engine.generate(prompt(28), Sampling(max_tokens=100))
            assert len(done.tokens) == 4 and done.stop_reason == "length"
            with pytest.raises(ContextLengthExceeded, match="32 tokens and the context holds 32"):
                await engine.generate(prompt(32), Sampling())
            assert engine.stats()["prefilled_tokens"] == 28
        with pytest.raises(ValueError, match=r"engine\.context"):
            async with running(decoder(), context=512):
                pass

    run(main())


def test_a_seed_fixes_the_tokens_whatever_else_runs():
    async def main():
        async with running(decoder(sharpness=5.0)) as engine:
            ask = Sampling(max_tokens=20, seed=11)
            alone = await engine.generate(prompt(10), ask)
            crowd = [engine.generate(prompt(5 + i, seed=i), Sampling(max_tokens=25)) for i in range(10)]
            together = await asyncio.gather(engine.generate(prompt(10), ask), *crowd)
            assert together[0].tokens == alone.tokens
            other = await engine.generate(prompt(10), Sampling(max_tokens=20, seed=12))
            assert other.tokens != alone.tokens

    run(main())


def test_the_engines_own_seed():
    async def once(seed):
        async with running(decoder(sharpness=5.0), seed=seed) as engine:
            return (await engine.generate(prompt(10), Sampling(max_tokens=20))).tokens

    assert run(once(1)) == run(once(1)) != run(once(2))


def test_on_token_sees_every_token():
    async def main():
        seen = []
        async with running(decoder(), version=7) as engine:
            done = await engine.generate(prompt(5), Sampling(max_tokens=6), on_token=lambda *a: seen.append(a))
            assert seen == list(zip(done.tokens, done.logprobs, done.versions)) and done.versions == [7] * 6

    run(main())


def test_cancelling_the_task_stops_the_request():
    async def main():
        policy = decoder()
        async with running(policy) as engine:
            task = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=240), session="s"))
            while engine.stats()["generated_tokens"] < 3:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while engine.stats()["running"]:
                await asyncio.sleep(0)
            assert engine.stats()["generated_tokens"] < 240
            # what it left in the cache is sound
            done = await engine.generate(prompt(5), Sampling(max_tokens=5), session="s")
            assert done.cached_tokens == 4 and worst_gap(policy, prompt(5), done.tokens, done.logprobs) < 1e-4

    run(main())


def test_a_waiting_request_can_be_cancelled():
    async def main():
        async with running(decoder(), max_running=1) as engine:
            first = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=100)))
            second = asyncio.create_task(engine.generate(prompt(6), Sampling(max_tokens=100)))
            third = asyncio.create_task(engine.generate(prompt(7), Sampling(max_tokens=2)))
            while not engine.stats()["running"]:
                await asyncio.sleep(0)
            second.cancel()
            assert len((await third).tokens) == 2 and len((await first).tokens) == 100
            assert engine.stats()["generated_tokens"] == 102

    run(main())


def test_release_ends_a_session():
    async def main():
        async with running(decoder()) as engine:
            task = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=240), session="s"))
            while engine.stats()["generated_tokens"] < 3:
                await asyncio.sleep(0)
            engine.release("s")
            done = await task
            assert done.stop_reason == "cancelled" and 3 <= len(done.tokens) < 240
            await engine.generate(prompt(5), Sampling(max_tokens=1))
            assert engine.stats()["sessions"] == 0
            engine.release("never seen")

    run(main())


def test_a_release_ends_no_request_that_came_after_it():
    async def main():
        async with running(decoder()) as engine:
            frozen, go_on = threading.Event(), threading.Event()

            def freeze(*token):  # in the engine's thread
                frozen.set()
                go_on.wait()

            other = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=1), on_token=freeze))
            await asyncio.to_thread(frozen.wait)
            before = asyncio.create_task(engine.generate(prompt(9), Sampling(max_tokens=3), session="a.0"))
            await asyncio.sleep(0)
            engine.release("a.0")
            after = asyncio.create_task(engine.generate(prompt(9), Sampling(max_tokens=3), session="a.0"))
            await asyncio.sleep(0)
            go_on.set()
            assert [done.stop_reason for done in await asyncio.gather(other, before, after)] == [
                "length",
                "cancelled",
                "length",
            ]

    run(main())


def test_two_requests_of_one_session_at_once():
    async def main():
        policy = decoder()
        async with running(policy) as engine:
            asks = [prompt(20) + prompt(5, seed=i) for i in range(3)]
            done = await asyncio.gather(*(engine.generate(a, Sampling(max_tokens=9), session="s") for a in asks))
            for ask, one in zip(asks, done):
                assert worst_gap(policy, ask, one.tokens, one.logprobs) < 1e-4
            assert engine.stats()["sessions"] == 1

    run(main())


def test_idle_sessions_are_evicted_and_come_back_slower():
    async def main():
        policy = decoder()
        token_bytes = 2 * DENSE.num_layers * DENSE.num_kv_heads * DENSE.head_dim * 4
        budget = max(4 * 64 * token_bytes, 1 << 16)  # four rows of 64 tokens, one of 256
        async with running(policy, cache_bytes=budget, length_step=32, share_prefix=0) as engine:
            for i in range(8):
                await engine.generate(prompt(20, seed=i), Sampling(max_tokens=30), session=str(i))
            stats = engine.stats()
            assert stats["cache_bytes"] <= budget and stats["evictions"] >= 4
            kept = await engine.generate(prompt(20, seed=7), Sampling(max_tokens=30), session="7")
            assert kept.cached_tokens == 19
            lost = await engine.generate(prompt(20, seed=0), Sampling(max_tokens=30), session="0")
            assert lost.cached_tokens == 0 and worst_gap(policy, prompt(20), lost.tokens, lost.logprobs) < 1e-4
            # a long one needs the room of all, while others run
            asks = [(prompt(12, seed=i), 30) for i in range(3)] + [(prompt(150), 60)] + [(prompt(9, seed=5), 8)]
            done = await asyncio.gather(
                *(engine.generate(a, Sampling(max_tokens=n), session=f"n{i}") for i, (a, n) in enumerate(asks))
            )
            for (ask, _), one in zip(asks, done):
                assert worst_gap(policy, ask, one.tokens, one.logprobs) < 1e-4
            assert engine.stats()["cache_bytes"] <= budget
        async with running(decoder(MOE), cache_bytes=1 << 16) as engine:  # 768 bytes a token
            with pytest.raises(ValueError, match=r"engine\.cache_bytes"):
                await engine.generate(prompt(150), Sampling(max_tokens=106))

    run(main())


def test_more_than_fits_waits_in_order():
    async def main():
        order = []
        async with running(decoder(), max_running=2, max_waiting=50) as engine:

            async def ask(i):
                await engine.generate(prompt(4, seed=i), Sampling(max_tokens=6))
                order.append(i)

            await asyncio.gather(*(ask(i) for i in range(20)))
        assert sorted(order) == list(range(20)) and all(abs(i - at) <= 1 for at, i in enumerate(order))

    run(main())


def test_cancelled_requests_leave_the_queue():
    """Else a client that sends requests and leaves would fill it for everybody, as long as the batch is full."""
    over = threading.Event()

    async def main():
        async with running(slow(decoder(), 0.02, over), max_running=1, max_waiting=1, native="off") as engine:
            first = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=200)))
            while not engine.stats()["running"]:
                await asyncio.sleep(0.001)
            for _ in range(3):
                waiting = asyncio.create_task(engine.generate(prompt(6), Sampling(max_tokens=2)))
                while not engine.stats()["waiting"]:
                    await asyncio.sleep(0.001)
                waiting.cancel()
                while engine.stats()["waiting"]:
                    await asyncio.sleep(0.001)
            assert not first.done()
            over.set()
            await first

    run(main())


def test_back_pressure():
    async def main():
        async with running(decoder(), max_running=1, max_waiting=2) as engine:
            tasks = [asyncio.create_task(engine.generate(prompt(4), Sampling(max_tokens=50))) for _ in range(12)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [r for r in results if isinstance(r, EngineBusy)]
            assert 1 <= len(refused) <= 10 and "engine.max_waiting" in str(refused[0])
            assert all(len(r.tokens) == 50 for r in results if not isinstance(r, EngineBusy))

    run(main())


@pytest.mark.parametrize(
    ("tokens", "sampling", "message"),
    [
        ([], Sampling(), "at least one token"),
        ([1, 2, 97], Sampling(), r"tokens\[2\] is 97"),
        ([-1], Sampling(), r"tokens\[0\] is -1"),
        ([1], Sampling(max_tokens=0), "sampling.max_tokens is 0"),
        ([1], Sampling(temperature=-1), "sampling.temperature"),
        ([1], Sampling(temperature=float("nan")), "sampling.temperature"),
        ([1], Sampling(top_p=0), "sampling.top_p"),
        ([1], Sampling(top_k=-1), "sampling.top_k"),
        ([1], Sampling(min_p=1.5), "sampling.min_p"),
        ([1], Sampling(logit_bias={99: 1.0}), "logit_bias names token 99"),
        ([1], Sampling(logit_bias={9: float("inf")}), "logit_bias of token 9"),
    ],
)
def test_bad_requests_are_refused_by_name(tokens, sampling, message):
    async def main():
        async with running(decoder()) as engine:
            with pytest.raises(ValueError, match=message):
                await engine.generate(tokens, sampling)

    run(main())


def test_a_failing_callback_fails_its_own_request_only():
    async def main():
        def broken(*_):
            raise RuntimeError("no disk")

        async with running(decoder()) as engine:
            good = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=30)))
            with pytest.raises(EngineError, match="no disk"):
                await engine.generate(prompt(5), Sampling(max_tokens=30), on_token=broken)
            assert len((await good).tokens) == 30

    run(main())


def test_an_error_of_the_network_reaches_everybody_and_the_engine_goes_on():
    async def main():
        policy = decoder()
        async with running(policy, native="off") as engine:
            forward = policy.forward
            calls = 0

            def fails_once(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == 4:
                    raise RuntimeError("out of memory")
                return forward(*args, **kwargs)

            policy.forward = fails_once
            tasks = [engine.generate(prompt(5, seed=i), Sampling(max_tokens=9), session=str(i)) for i in range(3)]
            failed = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(f, EngineError) and "out of memory" in str(f) for f in failed)
            assert isinstance(failed[0].__cause__, RuntimeError)
            done = await engine.generate(prompt(5), Sampling(max_tokens=9), session="0")
            assert worst_gap(decoder(), prompt(5), done.tokens, done.logprobs) < 1e-4

    run(main())


@pytest.mark.parametrize("native", ["auto", "off"])
def test_logits_that_are_not_finite_fail_and_leave_no_trace(native):
    async def main():
        async with running(decoder(), native=native) as engine:
            clean, broken = clone_state(decoder()), clone_state(decoder())
            broken["model.layers.0.self_attn.v_proj.weight"].fill_(float("nan"))
            await engine.update_weights(1, broken)
            with pytest.raises(EngineError, match="not finite"):
                await engine.generate(prompt(30), Sampling(max_tokens=9), session="s")
            await engine.update_weights(2, clean)
            tasks = [engine.generate(prompt(4 + i, seed=i), Sampling(max_tokens=9)) for i in range(6)]
            for i, done in enumerate(await asyncio.gather(*tasks)):
                assert worst_gap(decoder(), prompt(4 + i, seed=i), done.tokens, done.logprobs) < 1e-4

    run(main())


def test_close_answers_everybody():
    async def main():
        async with running(decoder(), max_running=2) as engine:
            tasks = [asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=250))) for _ in range(5)]
            while not engine.stats()["running"]:
                await asyncio.sleep(0)
            await engine.close()
            assert all(isinstance(r, EngineClosed) for r in await asyncio.gather(*tasks, return_exceptions=True))
            with pytest.raises(EngineClosed):
                await engine.generate(prompt(5), Sampling())
            engine.release("s")
            assert "woodshed-engine" not in {t.name for t in threading.enumerate()}

    run(main())


def test_callers_in_several_event_loops():
    async def main():
        async with running(decoder()) as engine:
            results = {}

            def caller(i):
                results[i] = asyncio.run(engine.generate(prompt(5, seed=i), Sampling(max_tokens=8)))

            await asyncio.gather(*(asyncio.to_thread(caller, i) for i in range(4)))
            for i, done in results.items():
                assert worst_gap(decoder(), prompt(5, seed=i), done.tokens, done.logprobs) < 1e-4

    run(main())


def test_stats_count_what_was_done():
    async def main():
        async with running(decoder(), version=3) as engine:
            await asyncio.gather(*(engine.generate(prompt(10, seed=i), Sampling(max_tokens=5)) for i in range(4)))
            stats = engine.stats()
            assert stats["generated_tokens"] == 20 and stats["prefilled_tokens"] == 40 and stats["version"] == 3
            assert stats["running"] == stats["waiting"] == stats["cache_tokens"] == stats["sessions"] == 0
            assert 0 < stats["busy_seconds"] <= stats["uptime_seconds"] and 0 <= stats["idle_share"] < 1

    run(main())


def test_settings_and_protocol_import_no_torch():
    code = "import sys, woodshed.engine.settings, woodshed.engine.protocol; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
