"""Two publishers of one chain: the later continues, the earlier gets an error, readers ignore fenced versions."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from s3 import S3Server

from woodshed.weights.chain import Publisher, collect_garbage, verify_chain
from woodshed.weights.errors import ChainReplaced, PublisherFenced
from woodshed.weights.fence import Head, read_writer
from woodshed.weights.follow import Follower
from woodshed.weights.manifest import read_manifest, versions, write_manifest
from woodshed.weights.store import Store, open_store

from .states import publish, raw, state_at


class Stalled:
    """A store that calls ``meanwhile`` before it writes the manifest of ``version``, like a stalled publisher."""

    def __init__(self, store: Store, version: int, meanwhile: Callable[[], None]) -> None:
        self.store, self.url, self.listing, self.get = store, store.url, store.listing, store.get
        self.delete, self.meanwhile = store.delete, meanwhile
        self.key = f"v{version:06d}/manifest.json"

    def put(self, key: str, data: bytes) -> None:
        self.store.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        if key == self.key:
            self.meanwhile()
        return self.store.create(key, data)


def takes(follower: Follower, version: int, weights: int | None = None) -> bool:
    got = follower.poll()
    return (
        got is not None and got[0] == version and raw(got[1]) == raw(state_at(version if weights is None else weights))
    )


def test_the_later_publisher_goes_on_and_the_earlier_is_told(store: Store) -> None:
    first, follower = publish(store, 2), Follower(store)
    assert takes(follower, 1)
    second = Publisher(store, 4, fsync=False)
    assert second.head == 1
    second.publish(2, state_at(2))
    with pytest.raises(PublisherFenced, match=rf"{store.url}: another publisher \(process {os.getpid()} on"):
        first.publish(2, state_at(7))
    with pytest.raises(PublisherFenced, match="version 5 of this one"):
        first.publish(5, state_at(7))
    second.publish(3, state_at(3))
    assert takes(follower, 3) and takes(Follower(store), 3) and Head(store)() == 3
    assert verify_chain(store) == [0, 1, 2, 3]
    assert {read_manifest(store, v).chain for v in versions(store)} == {read_writer(store, 1).chain}


@pytest.mark.parametrize("late", [2, 3, 9], ids=["same number", "later written", "never written"])
def test_a_manifest_that_lands_after_the_take_over_does_not_count(store: Store, late: int) -> None:
    """A publisher that stalled between its check and its write cannot be stopped; readers ignore its version."""
    publish(store, 2)
    successors: list[Publisher] = []

    def take_over() -> None:
        successors.append(Publisher(store, 4, fsync=False))
        if late == 2:
            successors[0].publish(2, state_at(2))

    follower = Follower(store)
    with pytest.raises(PublisherFenced):
        Publisher(Stalled(store, late, take_over), 4, fsync=False).publish(late, state_at(8))
    assert takes(follower, 2) if late == 2 else takes(follower, 1)
    for version in range(successors[0].head + 1, 7):  # 4 is an anchor
        successors[0].publish(version, state_at(version))
        assert takes(follower, version) and Head(store)() == version
    assert takes(Follower(store), 6) and verify_chain(store) == list(range(7))
    assert collect_garbage(store, keep_anchors=2) == [], "an anchor that does not count is not one of those kept"
    assert Publisher(store, 4, fsync=False).head == 6 and versions(store) == list(range(7))


@pytest.mark.parametrize("when", ["claimed", "listed", "recorded"])
def test_what_lands_while_another_takes_over_counts_for_all_or_for_nobody(store: Store, when: str) -> None:
    """A version that is written while the successor settles counts, also if a follower has taken it before the
    successor has recorded a head; the successor continues from it."""
    landed: list[int | None] = []

    class Slow(Stalled):
        def create(self, key: str, data: bytes) -> bool:
            made = self.store.create(key, data)
            if key == "writer/000002.json" and when == "claimed":
                self.land()
            return made

        def put(self, key: str, data: bytes) -> None:
            if when == "listed":
                self.land()
            self.store.put(key, data)
            if when == "recorded":
                self.land()

        def land(self) -> None:
            if not landed:
                write_manifest(store, pending[0])
                landed.append(follower.advance())

    publish(store, 3)
    pending = [read_manifest(store, 2)]
    store.delete("v000002/manifest.json")  # its parts are there, its manifest is under way
    follower = Follower(store)
    second = Publisher(Slow(store, 99, lambda: None), 4, fsync=False)
    assert landed == [1 if when == "recorded" else 2] and second.head == 2
    second.publish(3, state_at(3))
    assert takes(follower, 3) and takes(Follower(store), 3) and verify_chain(store) == [0, 1, 2, 3]


def test_a_chain_replaced_in_place_is_noticed(where: str) -> None:
    store = open_store(where, fsync=False)
    publisher, follower = publish(store, 6), Follower(store)
    assert takes(follower, 5)
    for key in {key.partition("/")[0] for key in store.listing()}:
        store.delete(key + "/")
    with pytest.raises(ChainReplaced, match="no longer there"):
        follower.advance()
    with pytest.raises(ChainReplaced, match="deleted or replaced while it was being written; version 6"):
        publisher.publish(6, state_at(6))
    publish(store, 3)
    with pytest.raises(ChainReplaced, match=r"version 5 came from the chain .*restart its followers"):
        follower.advance()
    assert follower.version == 5
    with pytest.raises(ChainReplaced):
        publisher.publish(6, state_at(6))
    assert takes(Follower(store), 2)
    Publisher(store, 4).publish(9, state_at(9))  # higher numbers are no better
    with pytest.raises(ChainReplaced):
        follower.advance()


def test_one_of_many_creates_an_object(store: Store) -> None:
    for key in ("writer/000001.json", "v000001/manifest.json"):
        barrier, made = threading.Barrier(6), [False] * 6

        def race(i: int, key: str = key, barrier: threading.Barrier = barrier, made: list[bool] = made) -> None:
            barrier.wait()
            made[i] = store.create(key, b"%d" % i)

        threads = [threading.Thread(target=race, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made.count(True) == 1 and store.get(key) == b"%d" % made.index(True)
        assert store.create(key, store.get(key)), "the same again, as after an answer that was lost"


def test_a_bucket_without_conditional_writes_still_has_one_publisher_after_the_other(
    s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"s3://woodshed/{tmp_path.name}"
    s3.fail("CREATE", 501)
    try:
        first = publish(url, 2)
        Publisher(url, 4).publish(2, state_at(2))
        with pytest.raises(PublisherFenced):
            first.publish(2, state_at(3))
    finally:
        s3.heal()
    assert verify_chain(url) == [0, 1, 2] and "no conditional writes" in caplog.text


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from weights.states import state_at
from woodshed.weights.chain import Publisher
from woodshed.weights.errors import PublisherFenced
publisher = Publisher(sys.argv[1], 4, fsync=False)
print("began", flush=True)
try:
    for version in range((publisher.head if publisher.head is not None else -1) + 1, 10**6):
        publisher.publish(version, state_at(version))
        print(version, flush=True)
except PublisherFenced:
    print("fenced", flush=True)
"""


def test_processes_take_over_from_the_living_and_from_the_killed(where: str) -> None:
    """Five publishers in turn, each starting while the previous one writes; every second one is killed before."""
    command = [sys.executable, "-c", PROGRAM, where, str(Path(__file__).parent.parent)]
    before: subprocess.Popen[str] | None = None
    started: list[subprocess.Popen[str]] = []
    try:
        for turn in range(5):
            now = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append(now)
            assert now.stdout is not None and now.stdout.readline() == "began\n"
            if before is not None and turn % 2:
                before.send_signal(signal.SIGKILL)
                before.wait()
            elif before is not None:
                assert before.stdout is not None and before.stdout.read().endswith("fenced\n")
                assert before.wait() == 0
            for _ in range(3):
                assert now.stdout.readline().strip().isdigit(), "it goes on where the chain ends"
            before = now
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    head = max(verify_chain(where))
    assert head >= 14 and takes(Follower(where), head)
