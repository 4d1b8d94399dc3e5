"""A real engine follows a chain: decoded beside it, paused only to swap, in whatever order it is told."""

import asyncio
import shutil
import threading
import uuid
from pathlib import Path

import pytest

from woodshed.engine.local import LocalEngine
from woodshed.engine.opening import ChainWatch
from woodshed.engine.protocol import EngineError, Sampling
from woodshed.weights.chain import Publisher
from woodshed.weights.manifest import version_key
from woodshed.weights.store import FolderStore, open_store

from .models import clone_state, decoder, full_logprobs, prompt, running

POLICIES = [decoder(seed=seed) for seed in range(4)]


@pytest.fixture(params=["folder", "s3"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "chain")
    request.getfixturevalue("s3")
    return f"s3://woodshed/{uuid.uuid4().hex}"


def watch(engine, chain: str) -> ChainWatch:
    return ChainWatch(engine, chain, poll_seconds=0.01, timeout_seconds=60)


async def samples_from(engine, version: int) -> bool:
    """Whether the engine's log-probabilities are those of a full forward of that version's policy."""
    done = await engine.generate(prompt(8), Sampling(max_tokens=4))
    reference = full_logprobs(POLICIES[version], prompt(8) + done.tokens)
    gaps = [abs(float(reference[7 + i, t]) - done.logprobs[i]) for i, t in enumerate(done.tokens)]
    return set(done.versions) == {version} and max(gaps) < 1e-4


def test_notifications_may_come_twice_in_any_order_and_early(chain: str) -> None:
    async def main() -> None:
        publisher = Publisher(chain, fsync=False)
        publisher.publish(0, clone_state(POLICIES[0]))
        async with running(decoder(seed=0)) as engine:
            watching = watch(engine, chain)
            await watching.catch_up()
            assert await samples_from(engine, 0)
            early = asyncio.create_task(watching.follow(2))  # told before there is anything to read
            publisher.publish(1, clone_state(POLICIES[1]))
            publisher.publish(2, clone_state(POLICIES[2]))
            assert await early == 2 and await samples_from(engine, 2)
            swaps = engine.stats()["swaps"]
            assert [await watching.follow(v) for v in (2, 1, 2, 0)] == [2, 2, 2, 2]
            together = await asyncio.gather(*[watching.follow(2) for _ in range(5)])
            assert together == [2] * 5 and engine.stats()["swaps"] == swaps, "nothing is applied twice"
            publisher.publish(3, clone_state(POLICIES[3]))
            answers = await asyncio.gather(*[watching.follow(v) for v in (1, 3, 3, 2)])
            assert answers[1:3] == [3, 3] and engine.version == 3
            assert engine.stats()["swaps"] == swaps + 1 and await samples_from(engine, 3)

    asyncio.run(main())


def test_requests_go_on_while_versions_arrive(chain: str) -> None:
    async def main() -> None:
        publisher = Publisher(chain, fsync=False)
        async with running(decoder(seed=0)) as engine:
            watching = asyncio.create_task(watch(engine, chain).run())
            request = asyncio.create_task(engine.generate(prompt(4), Sampling(max_tokens=200)))
            for version in (1, 2, 3):
                await asyncio.to_thread(publisher.publish, version, clone_state(POLICIES[version]))
            while engine.version < 3:
                await asyncio.sleep(0.01)
            done = await request
            watching.cancel()
            assert len(done.tokens) == 200 and done.versions == sorted(done.versions)
            assert await samples_from(engine, 3)

    asyncio.run(main())


def test_a_damaged_version_is_reported_and_serving_goes_on(chain: str) -> None:
    async def main() -> None:
        store = open_store(chain, fsync=False)
        publisher = Publisher(store, 2)
        publisher.publish(0, clone_state(POLICIES[0]))
        async with running(decoder(seed=0)) as engine:
            watching = watch(engine, chain)
            await watching.catch_up()
            publisher.publish(1, clone_state(POLICIES[1]))
            torn = version_key(1, "delta-000001-00000-00000.bin")
            store.put(torn, store.get(torn)[:100])
            await watching.catch_up()
            assert engine.version == 0 and await samples_from(engine, 0)
            with pytest.raises(
                EngineError, match=r"v000001/delta-000001-00000-00000\.bin: 100 bytes, the manifest says"
            ):
                await watching.follow(1)
            publisher.publish(2, clone_state(POLICIES[2]))
            assert await watching.follow(2) == 2 and await samples_from(engine, 2)

    asyncio.run(main())


class Gated(FolderStore):
    """A folder that answers nothing while its gate is closed; counts who stands before it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, fsync=False)
        self.gate = threading.Event()
        self.came = 0

    def get(self, key: str) -> bytes:
        if not self.gate.is_set():
            self.came += 1
            assert self.gate.wait(60)
        return super().get(key)


def test_a_version_that_was_decoded_for_nobody_is_used_by_the_next_who_asks(tmp_path: Path) -> None:
    async def main() -> None:
        store = Gated(tmp_path)
        Publisher(FolderStore(tmp_path, fsync=False)).publish(1, clone_state(POLICIES[1]))
        async with running(decoder(seed=0)) as engine:
            watching = ChainWatch(engine, store, poll_seconds=0.01, timeout_seconds=10)
            gone = asyncio.create_task(watching.follow(1))
            while not store.came:
                await asyncio.sleep(0.001)
            gone.cancel()  # as where its time is over
            with pytest.raises(asyncio.CancelledError):
                await gone
            waits = asyncio.create_task(watching.catch_up())
            await asyncio.sleep(0.05)
            assert store.came == 1, "one reads at a time"
            waits.cancel()
            store.gate.set()
            while watching.follower.version != 1:
                await asyncio.sleep(0.001)
            assert await watching.follow(1) == 1 and await samples_from(engine, 1)

    asyncio.run(main())


def test_a_version_that_the_engine_refused_is_not_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        store = FolderStore(tmp_path, fsync=False)
        publisher = Publisher(store, 1)
        strange = {name: tensor for name, tensor in clone_state(POLICIES[1]).items() if name != "model.norm.weight"}
        publisher.publish(1, strange)
        async with running(decoder(seed=0)) as engine:
            watching = ChainWatch(engine, store, poll_seconds=0.01, timeout_seconds=10)
            for _ in range(2):
                with pytest.raises(ValueError, match=r"lacks model\.norm\.weight"):
                    await watching.follow(1)
            assert engine.version == 0 and await samples_from(engine, 0)
            publisher.publish(2, clone_state(POLICIES[2]))
            assert await watching.follow(1) == 2 and await samples_from(engine, 2)

    asyncio.run(main())


def test_what_is_decoded_is_used_though_what_follows_is_damaged(tmp_path: Path) -> None:
    async def main() -> None:
        store = FolderStore(tmp_path, fsync=False)
        publisher = Publisher(store, 100)
        publisher.publish(0, clone_state(POLICIES[0]))
        publisher.publish(1, clone_state(POLICIES[1]))
        async with running(decoder(seed=0)) as engine:
            watching = ChainWatch(engine, store, poll_seconds=0.01, timeout_seconds=10)
            assert watching.follower.advance() == 1
            publisher.publish(2, clone_state(POLICIES[2]))
            torn = version_key(2, "delta-000001-00000-00000.bin")
            store.put(torn, store.get(torn)[:100])
            with pytest.raises(EngineError, match=r"v000002/delta-000001-00000-00000\.bin"):
                await watching.follow(2)
            assert engine.version == 1 and await samples_from(engine, 1)

    asyncio.run(main())


def test_an_unforeseen_error_is_shown_and_following_goes_on(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        publisher = Publisher(chain, fsync=False)
        publisher.publish(1, clone_state(POLICIES[1]))
        async with running(decoder(seed=0)) as engine:
            watching = watch(engine, chain)
            advance = watching.follower.advance

            def broken() -> None:
                raise KeyError("unforeseen")

            monkeypatch.setattr(watching.follower, "advance", broken)
            task = asyncio.create_task(watching.run())
            try:
                while not engine.stats()["weights_stale"]:
                    await asyncio.sleep(0.01)
                assert "unforeseen" in engine.stats()["weights_problem"]["reason"] and not task.done()
                monkeypatch.setattr(watching.follower, "advance", advance)
                while engine.stats()["weights_stale"]:
                    await asyncio.sleep(0.01)
                assert engine.version == 1 and await samples_from(engine, 1)
            finally:
                task.cancel()

    asyncio.run(main())


def test_a_chain_replaced_by_one_with_lower_numbers_is_shown_and_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        store = FolderStore(tmp_path / "chain", fsync=False)
        Publisher(store).publish(3, clone_state(POLICIES[3]))
        async with running(decoder(seed=0)) as engine:
            watching = watch(engine, str(tmp_path / "chain"))
            await watching.catch_up()
            (tmp_path / "chain").rename(tmp_path / "old")
            Publisher(store).publish(1, clone_state(POLICIES[1]))
            await watching.catch_up()
            assert "came from the chain" in engine.stats()["weights_problem"]["reason"]
            with pytest.raises(EngineError, match="restart its followers"):
                await watching.follow(4)
            assert engine.version == 3 and await samples_from(engine, 3)

    asyncio.run(main())


@pytest.mark.parametrize("published_again", [False, True])
def test_a_chain_that_went_back_is_shown_and_not_taken_for_the_one_before(
    tmp_path: Path, published_again: bool
) -> None:
    async def main() -> None:
        chain, backup = tmp_path / "chain", tmp_path / "backup"
        publisher = Publisher(chain, fsync=False)
        publisher.publish(0, clone_state(POLICIES[0]))
        publisher.publish(1, clone_state(POLICIES[1]))
        shutil.copytree(chain, backup)
        publisher.publish(2, clone_state(POLICIES[2]))
        async with running(decoder(seed=0)) as engine:
            watching = watch(engine, str(chain))
            await watching.catch_up()
            assert engine.version == 2 and not engine.stats()["weights_stale"]
            Publisher(chain, fsync=False)  # a trainer that was started again changes nothing
            await watching.catch_up()
            assert not engine.stats()["weights_stale"]
            shutil.rmtree(chain)
            shutil.copytree(backup, chain)
            if published_again:
                Publisher(chain, fsync=False).publish(2, clone_state(POLICIES[3]))
            await watching.catch_up()
            assert "version 2, which came from this chain" in engine.stats()["weights_problem"]["reason"]

    asyncio.run(main())


def test_a_policy_that_is_newer_than_its_chain_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = Publisher(tmp_path / "chain", fsync=False)
        publisher.publish(1, clone_state(POLICIES[1]))
        engine = LocalEngine(decoder(seed=0), version=2)
        watching = watch(engine, str(tmp_path / "chain"))
        await watching.catch_up()
        assert "version 1 is the newest, but the policy is of version 2" in engine.stats()["weights_problem"]["reason"]
        publisher.publish(3, clone_state(POLICIES[3]))
        await watching.catch_up()
        assert not engine.stats()["weights_stale"] and await samples_from(engine, 3)
        await engine.close()

    asyncio.run(main())
