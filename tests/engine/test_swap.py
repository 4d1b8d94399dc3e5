"""What each kv policy of a weight swap promises."""

import asyncio
import itertools
import threading

import numpy as np
import pytest
import torch

from woodshed.engine import packing
from woodshed.engine.native.kernels import Kernels
from woodshed.engine.protocol import EngineClosed, Sampling
from woodshed.policy.decoder import causal_attend

from .models import (
    DENSE,
    MOE,
    clone_state,
    decoder,
    full_logprobs,
    needs_kernels,
    prompt,
    run,
    running,
    slow,
    worst_gap,
)  # fmt: skip

TOLERANCE = 1e-4


async def swapped_in_flight(engine, state, kv: str, version: int = 5, tokens=None, session=None):
    """A completion of 40 tokens during which the weights change, with the wait of the update."""
    reached, posted = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def on_token(*_):
        loop.call_soon_threadsafe(reached.set)
        posted.wait(10)

    task = asyncio.create_task(
        engine.generate(tokens or prompt(12), Sampling(max_tokens=40), session=session, on_token=on_token)
    )
    await reached.wait()
    update = asyncio.create_task(engine.update_weights(version, state, kv=kv))
    await asyncio.sleep(0)
    posted.set()
    await update
    return await task


def test_versions_are_those_of_the_weights_that_sampled():
    async def main():
        async with running(decoder(), version=4) as engine:
            new = clone_state(decoder(seed=1))
            done = await swapped_in_flight(engine, new, "keep")
            assert len(done.versions) == 40 and done.versions == sorted(done.versions)
            assert set(done.versions) == {4, 5} and engine.version == 5
            assert engine.stats()["swaps"] == 1

    run(main())


def test_recompute_samples_from_the_new_weights_alone():
    async def main():
        old, new = decoder(), decoder(seed=1)
        async with running(decoder()) as engine:
            done = await swapped_in_flight(engine, clone_state(new), "recompute")
        cut = done.versions.index(5)
        assert 0 < cut < 40
        before = worst_gap(old, prompt(12), done.tokens[:cut], done.logprobs[:cut])
        after = worst_gap(new, prompt(12) + done.tokens[:cut], done.tokens[cut:], done.logprobs[cut:])
        assert before < TOLERANCE and after < TOLERANCE

    run(main())


def full_routes(policy, tokens):
    """int16 ``[T, L, K]`` of a full forward."""
    sink = []
    with torch.no_grad():
        policy.forward(torch.tensor([tokens]), torch.arange(len(tokens))[None], causal_attend(), route_sink=sink)
    return torch.stack(sink, -2)[0].numpy()


def test_after_recompute_routes_are_those_under_which_tokens_were_sampled():
    async def main():
        policies = [decoder(MOE, seed=seed) for seed in range(3)]
        async with running(slow(decoder(MOE))) as engine:
            count, states = itertools.count(1), [clone_state(policy) for policy in policies]
            loop, due = asyncio.get_running_loop(), {10: asyncio.Event(), 20: asyncio.Event()}

            def on_token(*_):
                if (event := due.get(next(count))) is not None:
                    loop.call_soon_threadsafe(event.set)

            ask = engine.generate(prompt(12), Sampling(max_tokens=40), on_token=on_token)
            task = asyncio.create_task(ask)
            for version, event in enumerate(due.values(), 1):
                await event.wait()
                await engine.update_weights(version, states[version], kv="recompute")
            done = await task
        sequence, got = prompt(12) + done.tokens, np.concatenate([done.prompt_routes, done.routes])
        start = 0
        for version, policy in enumerate(policies):
            # the input that yields the last token of a version is the one before it
            end = 11 + sum(v <= version for v in done.versions)
            assert start < end
            assert (got[start:end] == full_routes(policy, sequence[:end])[start:]).all()
            start = end
        assert start == 51 and (got[51] == -1).all()

    run(main())


class MixedCache:
    """Independent reference for ``keep``: one token after the other, keys and values never recomputed."""

    def __init__(self) -> None:
        self.kv: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def step(self, policy, token: int, position: int) -> torch.Tensor:
        def attention_fn(layer, q, k, v):
            self.kv.setdefault(layer, []).append((k[0], v[0]))
            keys = torch.stack([k for k, _ in self.kv[layer]])
            values = torch.stack([v for _, v in self.kv[layer]])
            groups = q.shape[1] // k.shape[1]
            keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
            weights = (torch.einsum("he,the->ht", q[0], keys) * q.shape[-1] ** -0.5).softmax(-1)
            return torch.einsum("ht,the->he", weights, values)[None]

        with torch.no_grad():
            hidden = policy.forward(torch.tensor([token]), torch.tensor([position]), attention_fn)
            return policy.logits(hidden)[0].log_softmax(-1)


def test_keep_goes_on_with_the_old_keys_and_values():
    async def main():
        old, new = decoder(), decoder(seed=1)
        async with running(decoder()) as engine:
            done = await swapped_in_flight(engine, clone_state(new), "keep")
        cut, cache, sequence = done.versions.index(5), MixedCache(), prompt(12) + done.tokens
        for position, token in enumerate(sequence[:-1]):
            # the input that yields the first token of the new version is the last one sampled by the old
            policy = old if position + 1 < 12 + cut else new
            logp = cache.step(policy, token, position)
            if position >= 11:
                assert abs(float(logp[sequence[position + 1]]) - done.logprobs[position - 11]) < TOLERANCE
        # not what a full forward of the new weights would say
        assert worst_gap(new, prompt(12) + done.tokens[:cut], done.tokens[cut:], done.logprobs[cut:]) > 1e-3

    run(main())


def test_drain_never_mixes_versions():
    async def main():
        old, new = decoder(), decoder(seed=1)
        async with running(decoder()) as engine:
            long = asyncio.create_task(swapped_in_flight(engine, clone_state(new), "drain", session="a"))
            done = await long
            assert set(done.versions) == {0} and engine.version == 5
            assert worst_gap(old, prompt(12), done.tokens, done.logprobs) < TOLERANCE
            # the next turn of that session starts from nothing
            tokens = prompt(12) + done.tokens
            again = await engine.generate(tokens, Sampling(max_tokens=5), session="a")
            assert again.cached_tokens == 0 and set(again.versions) == {5}
            assert worst_gap(new, tokens, again.tokens, again.logprobs) < TOLERANCE

    run(main())


def test_requests_that_arrive_during_a_drain_wait_for_the_new_weights():
    async def main():
        async with running(decoder()) as engine:
            first = asyncio.create_task(engine.generate(prompt(12), Sampling(max_tokens=200)))
            while not engine.stats()["running"]:
                await asyncio.sleep(0)
            update = asyncio.create_task(engine.update_weights(1, clone_state(decoder(seed=1)), kv="drain"))
            await asyncio.sleep(0)
            late = await engine.generate(prompt(5), Sampling(max_tokens=3))
            assert set(late.versions) == {1} and set((await first).versions) == {0}
            await update

    run(main())


@pytest.mark.parametrize(("prefix_cache", "cached"), [("keep", 15), ("salt", 0), ("off", 0)])
def test_what_a_next_turn_reuses_after_keep(prefix_cache, cached):
    async def main():
        new = decoder(seed=1)
        async with running(decoder(), prefix_cache=prefix_cache) as engine:
            done = await engine.generate(prompt(12), Sampling(max_tokens=4), session="s")
            await engine.update_weights(1, clone_state(new), kv="keep")
            tokens = prompt(12) + done.tokens + prompt(3, seed=9)
            again = await engine.generate(tokens, Sampling(max_tokens=4), session="s")
            assert again.cached_tokens == cached
            exact = worst_gap(new, tokens, again.tokens, again.logprobs) < TOLERANCE
            assert exact == (prefix_cache != "keep")

    run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_stale_keys_do_not_spread_to_other_sessions(ended):
    async def main():
        new = decoder(seed=1)
        async with running(decoder(), share_prefix=4, **({"max_sessions": 1} if ended else {})) as engine:
            await engine.generate(prompt(30), Sampling(max_tokens=4), session="old")
            if ended:
                engine.release("old")
            await engine.update_weights(1, clone_state(new), kv="keep")
            done = await engine.generate(prompt(30), Sampling(max_tokens=4), session="new")
            assert done.cached_tokens == 0
            assert worst_gap(new, prompt(30), done.tokens, done.logprobs) < TOLERANCE
            if ended:
                engine.release("new")
            other = await engine.generate(prompt(30), Sampling(max_tokens=4), session="newer")
            assert other.cached_tokens == 29

    run(main())


def test_a_state_that_does_not_fit_changes_nothing():
    async def main():
        policy = decoder()
        async with running(policy) as engine:
            wrong = clone_state(decoder(seed=1))
            lost = wrong.pop("model.norm.weight")
            with pytest.raises(ValueError, match=r"model\.norm\.weight"):
                await engine.update_weights(1, wrong)
            with pytest.raises(ValueError, match=r"model\.norm\.weight"):
                await engine.update_weights(1, {**wrong, "model.norm.weight": lost[:-1]})
            done = await engine.generate(prompt(6), Sampling(max_tokens=4))
            assert engine.version == 0 and done.versions == [0] * 4
            assert worst_gap(decoder(), prompt(6), done.tokens, done.logprobs) < TOLERANCE

    run(main())


def broken_half_way(monkeypatch):
    """A state that breaks while it is copied, after other tensors of it."""
    state = clone_state(decoder(seed=1))
    state["model.norm.weight"] = state["model.norm.weight"].to("meta")  # has a shape and nothing to copy
    return state


def out_of_memory_after(calls: int, monkeypatch, owner, name: str) -> None:
    real, made = getattr(owner, name), itertools.count()

    def some(*args):
        if next(made) >= calls:
            raise MemoryError("no memory for copies")
        return real(*args)

    monkeypatch.setattr(owner, name, some)


def broken_in_the_copies(monkeypatch):
    """A good state, for whose copies there is no memory."""
    monkeypatch.setattr(packing, "WORTH_BYTES", 0)
    out_of_memory_after(4 * DENSE.num_layers + 1, monkeypatch, torch.ops.mkldnn, "_reorder_linear_weight")
    return clone_state(decoder(seed=1))


def broken_in_the_kernels_copies(monkeypatch):
    out_of_memory_after(5 * DENSE.num_layers + 2, monkeypatch, Kernels, "_pack")
    return clone_state(decoder(seed=1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("broken", "native"),
    [
        (broken_half_way, "off"),
        (broken_in_the_copies, "off"),
        pytest.param(broken_half_way, "auto", marks=needs_kernels),
        pytest.param(broken_in_the_kernels_copies, "auto", marks=needs_kernels),
    ],
)
def test_nothing_is_sampled_after_a_load_that_failed_half_way(broken, native, monkeypatch):
    async def main():
        state = broken(monkeypatch)
        async with running(decoder(), max_running=1, native=native) as engine:
            asks = [asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=240))) for _ in range(2)]
            while engine.stats()["generated_tokens"] < 3:
                await asyncio.sleep(0)
            with pytest.raises(EngineClosed, match="loading version 1 failed"):
                await engine.update_weights(1, state)
            for ask in await asyncio.gather(*asks, return_exceptions=True):
                assert isinstance(ask, EngineClosed) and "loading version 1 failed" in str(ask)
            with pytest.raises(EngineClosed, match="loading version 1 failed"):
                await engine.generate(prompt(5), Sampling())
            assert engine.version == 0

    run(main())


def test_the_state_is_copied():
    async def main():
        async with running(decoder()) as engine:
            state = clone_state(decoder(seed=1))
            await engine.update_weights(1, state)
            for tensor in state.values():
                tensor.zero_()
            done = await engine.generate(prompt(6), Sampling(max_tokens=4))
            assert worst_gap(decoder(seed=1), prompt(6), done.tokens, done.logprobs) < TOLERANCE

    run(main())


def test_references_differ():
    assert (full_logprobs(decoder(DENSE), prompt(5)) - full_logprobs(decoder(DENSE, seed=1), prompt(5))).abs().max() > 1
