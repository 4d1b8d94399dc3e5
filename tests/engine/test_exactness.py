"""Log-probabilities equal those of a full forward with the same weights, whatever is batched and cached."""

import asyncio
import random
import statistics
import time

import numpy as np
import pytest
import torch

from woodshed.engine.protocol import Sampling
from woodshed.policy.decoder import causal_attend

from .models import DENSE, MOE, clone_state, decoder, full_logprobs, prompt, run, running, slow, worst_gap

TOLERANCE = 1e-4


async def episode(engine, policy, seed: int, turns: int = 3) -> float:
    """A trajectory of several turns; the largest gap of its log-probabilities."""
    rng = random.Random(seed)
    tokens, worst, new_tokens = prompt(rng.randrange(3, 40), seed), 0.0, 0
    for turn in range(turns):
        done = await engine.generate(tokens, Sampling(max_tokens=rng.randrange(1, 14)), session=f"s{seed}")
        worst = max(worst, worst_gap(policy, tokens, done.tokens, done.logprobs))
        assert done.cached_tokens >= (len(tokens) - new_tokens if turn else 0)
        extra = prompt(rng.randrange(0, 20), 1000 + 7 * seed + turn)
        tokens, new_tokens = tokens + done.tokens + extra, len(extra) + 1
    return worst


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("budget", [7, 512])
def test_many_sessions_of_many_turns(config, budget):
    async def main():
        policy = decoder(config)
        async with running(policy, prefill_tokens=budget, length_step=16) as engine:
            worst = await asyncio.gather(*(episode(engine, policy, seed) for seed in range(12)))
        assert max(worst) < TOLERANCE

    run(main())


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_after_every_update(config):
    async def main():
        policy = decoder(config)
        async with running(policy) as engine:
            for version in range(1, 4):
                other = decoder(config, seed=version)
                await engine.update_weights(version, clone_state(other), kv="recompute")
                gaps = await asyncio.gather(*(episode(engine, other, seed, turns=2) for seed in range(4)))
                assert max(gaps) < TOLERANCE
                # and the two policies do differ, so that the test could fail
                done = await engine.generate(prompt(9), Sampling(max_tokens=5))
                assert worst_gap(decoder(config, seed=version - 1), prompt(9), done.tokens, done.logprobs) > 1e-2

    run(main())


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(config, dtype):
    """As near to float32 as a full forward in that format is: the cache and the batch add nothing. By the median,
    because rounding decides now and then which of two experts a token gets."""

    async def main():
        policy, halved = decoder(config), decoder(config).to(getattr(torch, dtype))
        ours, full = [], []
        async with running(decoder(config), dtype=dtype, seed=3) as engine:
            for seed in range(4):
                tokens = prompt(20, seed)
                for turn in range(3):
                    done = await engine.generate(tokens, Sampling(max_tokens=12), session=f"s{seed}")
                    ours.append(worst_gap(policy, tokens, done.tokens, done.logprobs))
                    alone = full_logprobs(halved, tokens + done.tokens)
                    at = torch.arange(len(tokens) - 1, len(tokens) + len(done.tokens) - 1)
                    chosen = alone[at, torch.tensor(done.tokens)].tolist()
                    full.append(worst_gap(policy, tokens, done.tokens, chosen))
                    tokens = tokens + done.tokens + prompt(5, seed=100 + turn)
        assert statistics.median(ours) < 2 * statistics.median(full)

    run(main())


def test_edited_history_is_recomputed_from_the_edit():
    async def main():
        policy = decoder()
        async with running(policy, share_prefix=0) as engine:
            first = prompt(30)
            await engine.generate(first, Sampling(max_tokens=6), session="s")
            edited = first[:12] + prompt(20, seed=5)
            edited[12] = (first[12] + 1) % 97
            done = await engine.generate(edited, Sampling(max_tokens=6), session="s")
            assert done.cached_tokens == 12
            assert worst_gap(policy, edited, done.tokens, done.logprobs) < TOLERANCE
            again = await engine.generate(first[:5], Sampling(max_tokens=3), session="s")
            assert again.cached_tokens == 4  # the last prompt token is always computed
            assert worst_gap(policy, first[:5], again.tokens, again.logprobs) < TOLERANCE

    run(main())


def test_a_turn_costs_its_new_tokens():
    async def main():
        async with running(decoder()) as engine:
            tokens = prompt(150)
            done = await engine.generate(tokens, Sampling(max_tokens=10), session="s")
            before = engine.stats()["prefilled_tokens"]
            longer = tokens + done.tokens + prompt(7, seed=3)
            again = await engine.generate(longer, Sampling(max_tokens=1), session="s")
            assert engine.stats()["prefilled_tokens"] - before == 8  # 7 new ones and the last sampled one
            assert again.cached_tokens == len(longer) - 8

    run(main())


def test_a_group_shares_its_prompt():
    async def main():
        policy = decoder()
        async with running(policy, share_prefix=8, prefill_tokens=16) as engine:
            shared = prompt(50)
            asks = [shared + prompt(i, seed=i) for i in range(6)]
            results = await asyncio.gather(
                *(engine.generate(t, Sampling(max_tokens=4), session=str(i)) for i, t in enumerate(asks))
            )
            for ask, done in zip(asks, results):
                assert worst_gap(policy, ask, done.tokens, done.logprobs) < TOLERANCE
            # the prompt once, then each one's own tokens and less than share_prefix of the shared ones
            assert engine.stats()["prefilled_tokens"] < 50 + sum(i + 8 for i in range(1, 6))
            assert all(done.cached_tokens > 42 for done in results[1:])

    run(main())


@pytest.mark.parametrize(
    ("settings", "open_before", "between", "cached"),
    [
        ({}, False, (), 50),
        ({}, False, (7,), 0),
        ({}, True, (7,), 50),  # the cache has more rows than sessions
        ({"max_sessions": 1}, False, (), 50),
        ({"max_sessions": 1}, False, (7,), 0),
        ({"share_prefix": 0}, False, (), 0),
        ({"share_prefix": 51}, False, (), 0),
        ({"prefix_cache": "off"}, False, (), 0),
    ],
)
def test_what_an_ended_session_computed_is_shared_until_its_row_is_taken(settings, open_before, between, cached):
    async def main():
        policy = decoder(MOE)
        async with running(policy, **settings) as engine:
            if open_before:
                await engine.generate(prompt(30, seed=8), Sampling(max_tokens=4), session="open")
            await engine.generate(prompt(50), Sampling(max_tokens=4), session="root")
            engine.release("root")
            for seed in between:
                await engine.generate(prompt(30, seed=seed), Sampling(max_tokens=4), session="other")
            tokens = prompt(50) + prompt(5, seed=9)
            for session in ("fork", "again"):
                done = await engine.generate(tokens, Sampling(max_tokens=4), session=session)
                engine.release(session)
                assert done.cached_tokens == (cached if session == "fork" or not cached else 54)
                assert len(done.prompt_routes) == 55 and (done.prompt_routes[:, 0] >= 0).all()
                assert worst_gap(policy, tokens, done.tokens, done.logprobs) < TOLERANCE
                if not cached:
                    break

    run(main())


def test_routes_are_those_of_the_tokens():
    async def main():
        policy = decoder(MOE)
        async with running(policy, prefill_tokens=5) as engine:
            tokens = prompt(23)
            done = await engine.generate(tokens, Sampling(max_tokens=9), session="s")
            longer = tokens + done.tokens + prompt(6, seed=2)
            again = await engine.generate(longer, Sampling(max_tokens=4), session="s")
        sequence = longer + again.tokens
        sink: list[torch.Tensor] = []
        with torch.no_grad():
            policy.forward(
                torch.tensor([sequence]), torch.arange(len(sequence))[None], causal_attend(), route_sink=sink
            )
        wanted = torch.stack(sink, -2)[0].numpy()
        assert done.routes.dtype == done.prompt_routes.dtype == np.int16
        assert done.routes.shape == (9, 3, 2) and done.prompt_routes.shape == (23, 3, 2)
        got = np.concatenate([done.prompt_routes, done.routes[:-1], again.prompt_routes, again.routes[:-1]])
        assert (got == wanted[:-1]).all()
        assert (done.routes[-1] == -1).all() and (again.routes[-1] == -1).all()
        assert (wanted[:, 1] == -1).all() and (wanted[:, 0] >= 0).all()

    run(main())


def test_routes_that_a_cancelled_request_computed_come_with_the_next():
    async def main():
        async with running(slow(decoder(MOE))) as engine:
            first = await engine.generate(prompt(9), Sampling(max_tokens=5, seed=1), session="s")
            tokens = prompt(9) + first.tokens + prompt(20, seed=2)
            for _ in range(2):
                task = asyncio.create_task(engine.generate(tokens, Sampling(max_tokens=150), session="s"))
                sampled = engine.stats()["generated_tokens"]
                while engine.stats()["generated_tokens"] < sampled + 3:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while engine.stats()["running"]:
                    await asyncio.sleep(0.001)
            done = await engine.generate(tokens, Sampling(max_tokens=5), session="s")
            assert done.cached_tokens == len(tokens) - 1
            assert len(done.prompt_routes) == 21, "of the last sampled token and of the 20 new ones"
            assert (done.prompt_routes[:, 0] >= 0).all()
            longer = tokens + done.tokens + prompt(3, seed=3)
            assert len((await engine.generate(longer, Sampling(max_tokens=1), session="s")).prompt_routes) == 4

    run(main())


def test_routes_of_a_completion_that_came_too_late_come_with_the_next():
    """The caller is cancelled after the engine is done, and before its event loop sees the completion."""

    async def main():
        async with running(decoder(MOE)) as engine:
            first = await engine.generate(prompt(9), Sampling(max_tokens=5, seed=1), session="s")
            tokens = prompt(9) + first.tokens + prompt(20, seed=2)
            task = asyncio.create_task(engine.generate(tokens, Sampling(max_tokens=3), session="s"))
            await asyncio.sleep(0)
            while engine.stats()["generated_tokens"] < 8 or engine.stats()["running"]:
                time.sleep(0.001)  # noqa: ASYNC251 - the loop must see nothing meanwhile
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            done = await engine.generate(tokens, Sampling(max_tokens=3), session="s")
            assert done.cached_tokens == len(tokens) - 1
            assert len(done.prompt_routes) == 21 and (done.prompt_routes[:, 0] >= 0).all()

    run(main())


def test_dense_completions_have_no_routes():
    async def main():
        async with running(decoder()) as engine:
            done = await engine.generate(prompt(4), Sampling(max_tokens=2))
            assert done.routes is None and done.prompt_routes is None

    run(main())
