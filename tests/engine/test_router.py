"""Engines that die, stall, fall behind and come back, behind a router: real servers, real sockets."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import EngineClosed, EngineError, Sampling
from woodshed.engine.remote import wire
from woodshed.engine.remote.client import RemoteEngine
from woodshed.engine.routing.replica import Placement, Replica
from woodshed.engine.routing.router import Router
from woodshed.engine.settings import EngineSettings

from .models import MOE, clone_state, decoder, prompt, run, worst_gap
from .served import KEY, QUICK, Served, routed, serving

TOLERANCE = 1e-4
LONG = Sampling(max_tokens=120, seed=3)


def busy(*served: Served) -> Served:
    """The one that works."""
    return next(s for s in served if s.engine.stats()["running"])


async def interrupt(router: Router, served: tuple[Served, ...], ask: Sampling = LONG, *, after: int = 20):
    """A completion whose engine is killed after some tokens; (completion, what on_token got, who was killed)."""
    heard: list[tuple[int, float, int]] = []
    call = router.generate(prompt(12), ask, session="t.0.0", on_token=lambda *token: heard.append(token))
    task = asyncio.create_task(call)
    while len(heard) < after:
        await asyncio.sleep(0.001)
    victim = busy(*served)
    await victim.kill()
    return await task, heard, victim


@pytest.mark.parametrize("config", ["dense", "moe"])
def test_an_engine_that_dies_costs_no_token(config):
    async def main():
        make = (lambda: decoder(MOE)) if config == "moe" else decoder
        async with serving(make()) as a, serving(make()) as b, routed(a, b) as router:
            whole = await router.generate(prompt(12), LONG)
            done, heard, victim = await interrupt(router, (a, b))
            assert done.tokens == whole.tokens, "the seed's numbers go on where they were"
            assert done.stop_reason == "length" and len(done.tokens) == 120
            assert heard == list(zip(done.tokens, done.logprobs, done.versions)), "each token is told once, in order"
            assert worst_gap(make(), prompt(12), done.tokens, done.logprobs) < TOLERANCE
            if config == "moe":
                assert done.routes.shape == whole.routes.shape
                assert (done.routes == whole.routes).mean() > 0.99 and len(done.prompt_routes) == 12
            stats = router.stats()
            assert stats["moved_requests"] == 1 and stats["kept_tokens"] >= 20 and stats["engines_serving"] == 1
            (gone,) = [e for e in stats["engines"] if not e["serving"]]
            assert gone["url"] == victim.url and gone["why"] and gone["lost_requests"] == 1

    run(main())


def test_tokens_keep_the_version_and_log_probability_they_were_sampled_with():
    async def main():
        old, new = decoder(), decoder(seed=1)
        async with serving(decoder(), version=4) as a, serving(decoder(seed=1), version=5) as b, routed(a, b) as router:
            router.replicas[0].running -= 1  # the first request goes to the old weights
            done, _, _ = await interrupt(router, (a, b))
            cut = done.versions.index(5)
            assert cut >= 20 and set(done.versions[:cut]) == {4} and set(done.versions[cut:]) == {5}
            assert worst_gap(old, prompt(12), done.tokens[:cut], done.logprobs[:cut]) < TOLERANCE
            seen = prompt(12) + done.tokens[:cut]
            assert worst_gap(new, seen, done.tokens[cut:], done.logprobs[cut:]) < TOLERANCE

    run(main())


class Chain:
    """Weights by version, for ``follow`` of an engine; ``open`` lets it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.open = engine, asyncio.Event()
        self.open.set()

    async def follow(self, version: int) -> int:
        await self.open.wait()
        if version > self.engine.version:
            await self.engine.update_weights(version, clone_state(decoder(seed=version)))
        return self.engine.version


def test_an_engine_that_was_away_catches_up_before_it_serves():
    async def main():
        async with serving(version=0) as a, serving(version=0) as b:
            chains = {}
            for served in (a, b):
                await served.kill()
                chains[served] = Chain(served.engine)
                served.follow = chains[served].follow
                await served.start()
            async with routed(a, b) as router:
                while router.stats()["engines_serving"] < 2:
                    await asyncio.sleep(0.01)
                await b.kill()
                assert await router.follow(1) == 1
                chains[b].open.clear()  # it comes back, and its store is slow
                await b.start()
                for _ in range(8):
                    done = await router.generate(prompt(9), Sampling(max_tokens=4))
                    assert set(done.versions) == {1}
                assert b.engine.stats()["generated_tokens"] == 0 and router.version == 1
                (late,) = [e for e in router.stats()["engines"] if "why" in e]
                assert late["url"] == b.url
                chains[b].open.set()
                while router.stats()["engines_serving"] < 2:
                    await asyncio.sleep(0.01)
                assert b.engine.version == 1
                asks = (router.generate(prompt(9), Sampling(max_tokens=30)) for _ in range(4))
                assert all(set(done.versions) == {1} for done in await asyncio.gather(*asks))
                assert b.engine.stats()["generated_tokens"] > 0

    run(main())


def test_an_engine_refuses_to_sample_from_weights_that_are_too_old():
    async def main():
        async with serving(version=2) as served:
            client = RemoteEngine(served.url, KEY)
            with pytest.raises(EngineClosed, match="has version 2 of the weights, not yet 3"):
                await client.generate(prompt(5), Sampling(), least=3)
            await client.close()

    run(main())


def test_one_slow_engine_does_not_hold_up_new_weights():
    async def main():
        async with serving() as a, serving() as b:
            chains = {}
            for served in (a, b):
                await served.kill()
                chains[served] = Chain(served.engine)
                served.follow = chains[served].follow
                await served.start()
            async with routed(a, b) as router:
                chains[b].open.clear()
                assert await router.follow(1) == 1
                assert (await router.generate(prompt(5), Sampling(max_tokens=3))).versions == [1] * 3
                chains[b].open.set()
            with pytest.raises(EngineError, match="no weight chain"):
                async with serving() as alone, routed(alone) as router:
                    await router.follow(1)

    run(main())


def test_an_engine_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(wire, "STUCK_SECONDS", 0.2)

    async def main():
        policies = decoder(), decoder()
        resume = threading.Event()
        async with serving(policies[0]) as a, serving(policies[1]) as b:
            router = Router([RemoteEngine(s.url, KEY, silence_seconds=1.5) for s in (a, b)], QUICK)
            await router.ready()
            try:
                whole = await router.generate(prompt(12), LONG)
                heard = []
                call = router.generate(prompt(12), LONG, session="t.0.0", on_token=lambda *t: heard.append(t))
                task = asyncio.create_task(call)
                while len(heard) < 10:
                    await asyncio.sleep(0.001)
                stuck = busy(a, b).engine.decoder
                forward = stuck.forward

                def hang(*args, **kwargs):
                    resume.wait()
                    return forward(*args, **kwargs)

                stuck.forward = hang
                done = await task
                assert done.tokens == whole.tokens and len(heard) == 120
            finally:
                resume.set()
                await router.close()

    run(main())


def test_a_release_that_arrives_late_ends_no_later_request():
    async def main():
        async with serving(decoder()) as served:
            client = RemoteEngine(served.url, KEY)
            await client.generate(prompt(9), Sampling(max_tokens=2), session="t.0.0")
            release, late = served.engine.release, []
            served.engine.release = late.append
            client.release("t.0.0")
            later = asyncio.create_task(client.generate(prompt(9), LONG, session="t.0.0"))
            while not (late and served.engine.stats()["running"]):
                await asyncio.sleep(0.001)
            release(*late)
            assert (await later).stop_reason == "length"
            await client.close()

    run(main())


def test_requests_wait_for_an_engine_to_come_back():
    async def main():
        async with serving() as served, routed(served) as router:
            first = asyncio.create_task(router.generate(prompt(12), LONG))
            while not served.engine.stats()["generated_tokens"]:
                await asyncio.sleep(0.001)
            await served.kill()
            second = asyncio.create_task(router.generate(prompt(5), Sampling(max_tokens=3)))
            await asyncio.sleep(0.2)
            assert not first.done() and not second.done()
            await served.start()
            assert len((await first).tokens) == 120 and len((await second).tokens) == 3

    run(main())


def test_without_any_engine_the_error_says_why():
    async def main():
        async with serving() as served, routed(served, patience_seconds=0.2) as router:
            await served.kill()
            with pytest.raises(EngineClosed, match=f"no engine serves: {served.url}: "):
                await router.generate(prompt(5), Sampling(max_tokens=3))
            await served.start()

    run(main())


def test_an_engine_that_computes_wrongly_is_tried_elsewhere_once():
    async def main():
        broken = decoder()
        async with serving(broken) as a, serving() as b, routed(a, b) as router:

            def fails(*_, **__):
                raise RuntimeError("out of memory")

            broken.forward = fails
            for _ in range(6):
                done = await router.generate(prompt(9), Sampling(max_tokens=3))
                assert worst_gap(decoder(), prompt(9), done.tokens, done.logprobs) < TOLERANCE
            b.engine.decoder.forward = fails
            with pytest.raises(EngineError, match="out of memory"):
                await router.generate(prompt(9), Sampling(max_tokens=3))

    run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_stopped_within_its_server_is_away():
    async def main():
        async with serving() as a, serving() as b, routed(a, b) as router:
            state = clone_state(decoder(seed=1))
            state["model.norm.weight"] = state["model.norm.weight"].to("meta")  # breaks when it is copied
            with pytest.raises(EngineClosed):
                await a.engine.update_weights(1, state)
            while router.stats()["engines_serving"] == 2:
                await asyncio.sleep(0.01)
            (gone,) = [e for e in router.stats()["engines"] if not e["serving"]]
            assert gone["url"] == a.url and "loading version 1 failed" in gone["why"]
            done = await router.generate(prompt(5), Sampling(max_tokens=5))
            assert worst_gap(decoder(), prompt(5), done.tokens, done.logprobs) < TOLERANCE

    run(main())


@pytest.mark.parametrize(
    ("key", "vocabulary", "why"), [("another-key-than-that", 97, "admin key"), (KEY, 50, "97 tokens, not 50")]
)
def test_an_engine_that_does_not_fit_is_named_at_the_start(key, vocabulary, why):
    async def main():
        async with serving() as served:
            router = Router([RemoteEngine(served.url, key)], QUICK, vocabulary=vocabulary)
            with pytest.raises(ValueError, match=f"engine {served.url}: .*{why}"):
                await router.ready()
            await router.close()

    run(main())


@pytest.mark.parametrize("urls", [[], ["http://a:1", "http://a:1/"], ["a:1"]])
def test_addresses_are_checked(urls):
    async def main():
        with pytest.raises(ValueError, match="engine"):
            Router([RemoteEngine(url, KEY) for url in urls])

    run(main())


def test_turns_of_a_trajectory_find_their_prefix():
    async def main():
        async with serving() as a, serving() as b, routed(a, b) as router:

            async def episode(name: str) -> None:
                tokens = prompt(30, seed=len(name))
                for turn in range(4):
                    done = await router.generate(tokens, Sampling(max_tokens=6), session=f"{name}.0.0")
                    assert done.cached_tokens >= (len(tokens) - 5 if turn else 0)
                    tokens = tokens + done.tokens + prompt(4, seed=turn)

            await asyncio.gather(*(episode("t" * n) for n in range(1, 9)))
            assert min(s.engine.stats()["generated_tokens"] for s in (a, b)) > 0, "both engines worked"
            for n in range(1, 9):
                router.release(f"{'t' * n}.0.0")
            while a.engine.stats()["sessions"] or b.engine.stats()["sessions"]:
                await asyncio.sleep(0.01)

    run(main())


def replicas(count: int) -> tuple[list[Replica], list[list[str]]]:
    released: list[list[str]] = [[] for _ in range(count)]
    return [Replica(SimpleNamespace(release=r.append)) for r in released], released  # type: ignore[arg-type]


def test_a_trajectory_leaves_an_engine_that_is_far_busier():
    both, released = replicas(2)
    placement = Placement(spread=3)
    both[1].running = 1
    assert placement.choose(both, "t.0.0") is both[0]
    placement.settle("t.0.0", both[0])
    both[0].running = 4
    assert placement.choose(both, "t.0.0") is both[0], "its prefix is there"
    assert placement.choose(both, "t.0.1") is both[0], "so is that of its other segments"
    assert placement.choose(both, "u.0.0") is both[1] and placement.choose(both, None) is both[1]
    placement.settle("t.0.1", both[0])
    both[0].running = 5
    assert placement.choose(both, "t.0.0") is both[1]
    placement.settle("t.0.0", both[1])
    assert released[0] == ["t.0.0"], "nothing is kept where nobody comes back to; the other may be running"
    both[0].running = 1
    assert placement.choose(both, "t.0.1") is both[0] and placement.choose(both, "t.0.2") is both[1]
    assert placement.choose(both[:1], "t.0.0") is both[0], "one that is away is not asked"
    for session in ("t.0.0", "t.0.0", "t.0.1"):
        placement.release(session)
    assert released == [["t.0.0", "t.0.1"], ["t.0.0"]] and not placement._homes


def test_counters_outlive_the_engines():
    async def main():
        async with serving() as a, routed(a) as router:
            await router.generate(prompt(5), Sampling(max_tokens=7))
            while router.stats()["generated_tokens"] != 7:  # what was not asked for before it died is not known
                await asyncio.sleep(0.01)
            first = a.engine
            await a.kill()
            a.engine = LocalEngine(decoder(), settings=EngineSettings())
            await a.start()
            await router.generate(prompt(5), Sampling(max_tokens=5))
            while router.stats()["generated_tokens"] != 12:
                await asyncio.sleep(0.01)
            await first.close()

    run(main())


def test_the_stale_weights_of_one_engine_are_seen_through_the_router() -> None:
    async def main() -> None:
        async with serving(decoder()) as a, serving(decoder()) as b, routed(a, b) as router:
            b.engine.weights_problem = {"reason": "TornVersion: v000003", "since": 5.0}
            while not router.stats()["weights_stale"]:
                await asyncio.sleep(0.01)
            problem = router.stats()["weights_problem"]
            assert problem == {"reason": f"{b.url}: TornVersion: v000003", "since": 5.0}
            b.engine.weights_problem = None
            while router.stats()["weights_stale"]:
                await asyncio.sleep(0.01)
            assert router.stats()["weights_problem"] is None

    asyncio.run(main())
