"""Damage to a chain and failures of its store, each in a folder and in a bucket."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import small_disk
from s3 import S3Server

from woodshed.weights.chain import Publisher, verify_chain
from woodshed.weights.errors import ChainError, TornVersion, WrongBase
from woodshed.weights.follow import Follower
from woodshed.weights.image import take
from woodshed.weights.manifest import versions
from woodshed.weights.store import FolderStore, Store, open_store

from .states import publish, raw, state_at

DELTA = "v000002/delta-000001-00000-00000.bin"
MANIFEST = "v000002/manifest.json"


def holds(follower: Follower, version: int) -> bool:
    got = follower.poll()
    return got is not None and got[0] == version and raw(got[1]) == raw(state_at(version))


def continued(store: Store, head: int, anchor_every: int) -> Publisher:
    """The trainer, which still has its own copy of the head, whatever happened to the chain."""
    publisher = Publisher(store, anchor_every, fsync=False)
    publisher._base = (head, take(state_at(head)))
    return publisher


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing", "swapped", "manifest"])
def test_damage_is_detected_and_stepped_around(store: Store, damage: str) -> None:
    publish(store, 4, anchor_every=8)
    follower = Follower(store)
    follower.poll(up_to=1)
    data = store.get(DELTA)
    if damage == "torn":
        store.put(DELTA, data[:-3])
    elif damage == "flipped":
        store.put(DELTA, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "missing":
        store.delete(DELTA)
    elif damage == "swapped":
        store.put(DELTA, store.get("v000001/delta-000001-00000-00000.bin"))
    else:
        store.put(MANIFEST, store.get(MANIFEST)[:40])
    for _ in range(2):
        with pytest.raises(TornVersion, match="v000002"):
            follower.poll()
    assert follower.version == 1 and raw_of(follower) == raw(state_at(1))
    with pytest.raises(ChainError):
        verify_chain(store)
    continued(store, 3, anchor_every=4).publish(4, state_at(4))
    assert holds(follower, 4)
    assert holds(Follower(store), 4)


def raw_of(follower: Follower) -> dict[str, bytes]:
    assert follower.image is not None
    return {key: piece.data.tobytes() for key, piece in follower.image.items()}


def test_wrong_base_is_refused_and_an_anchor_heals(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    publish(store, 4, anchor_every=4)
    lost = Follower(store, version=1, state=state_at(0))
    store.delete("v000000/")
    with pytest.raises(WrongBase, match="other weights"):
        lost.poll()
    assert lost.version == 1
    continued(store, 3, anchor_every=4).publish(4, state_at(4))
    assert holds(lost, 4)
    assert "other weights" in caplog.text


def test_a_version_without_manifest_is_waited_for(store: Store) -> None:
    publish(store, 3)
    manifest = store.get(MANIFEST)
    store.delete(MANIFEST)
    follower = Follower(store)
    assert holds(follower, 1) and follower.poll() is None
    store.put(MANIFEST, manifest)
    assert holds(follower, 2)


def test_interrupted_publishing_is_swept_away(store: Store) -> None:
    publish(store, 2)
    store.put("v000002/delta-000001-00000-00000.bin", b"half")
    store.put("v000002/delta-000001-00007-00000.bin", b"of a rank that is no more")
    store.put("v000009/full-000001-00000-00000.bin", b"")
    publisher = Publisher(store, 4)
    assert publisher.head == 1 and all(key < "v000002" for key in store.listing() if key.startswith("v"))
    publisher.publish(2, state_at(2))
    assert verify_chain(store) == [0, 1, 2]


def test_a_base_that_is_missing_is_reported(store: Store) -> None:
    publish(store, 5, anchor_every=8)
    store.delete("v000002/")
    with pytest.raises(ChainError, match="version 2, is missing"):
        verify_chain(store)
    follower = Follower(store)
    assert holds(follower, 1)
    with pytest.raises(WrongBase, match="v000003/: version 2, which this delta was made from, is missing"):
        follower.poll()
    assert follower.poll(up_to=2) is None
    continued(store, 4, anchor_every=5).publish(5, state_at(5))
    assert holds(follower, 5)


def test_manifests_of_others_are_refused_by_field(store: Store) -> None:
    publish(store, 3)
    manifest = json.loads(store.get(MANIFEST))
    cases = {
        "format": "woodshed-weights-9",
        "chain": 3,
        "writer": None,
        "version": 7,
        "base": 2,
        "kinds": {"delta": {"bytes": 3}},
        "digest": None,
    }
    for field, value in cases.items():
        store.put(MANIFEST, json.dumps(manifest | {field: value}).encode())
        assert holds(Follower(store), 1)
        with pytest.raises(
            TornVersion,
            match=rf"v000002/manifest\.json: .*{'is the manifest of' if field in ('version', 'base') else field}",
        ):
            verify_chain(store)


class CollectedMeanwhile:
    """A store in which the planned versions are deleted before they are read."""

    def __init__(self, store: Store, publisher: Publisher) -> None:
        self.store, self.publisher, self.url, self.fired = store, publisher, store.url, False

    def listing(self, *, after: str = "") -> list[str]:
        return self.store.listing(after=after)

    def get(self, key: str) -> bytes:
        if not self.fired and key.endswith(".bin"):
            self.fired = True
            for v in range(5, 10):
                self.publisher.publish(v, state_at(v))
        return self.store.get(key)

    def put(self, key: str, data: bytes) -> None:
        raise AssertionError("a follower never writes")

    delete = put


def test_versions_deleted_under_a_reader_are_planned_again(store: Store) -> None:
    publisher = publish(store, 5, anchor_every=2, keep_anchors=1)
    reader = CollectedMeanwhile(store, publisher)
    assert holds(Follower(reader), 9)
    assert reader.fired and versions(store) == [8, 9]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kib=1024) as made:
        yield made.place


def test_a_full_disk_leaves_the_chain_as_it_was(disk: Path) -> None:
    publisher = publish(FolderStore(disk), 2, anchor_every=100)
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes((free.f_bavail - 1) * free.f_frsize))
    with pytest.raises(OSError, match="No space left"):
        publisher.publish(2, state_at(2, scale=1.0))
    assert holds(Follower(disk), 1)
    assert not [name for _, _, names in os.walk(disk) for name in names if name.endswith(".tmp")]
    (disk / "filler").unlink()
    publisher.publish(2, state_at(2))
    assert verify_chain(disk) == [0, 1, 2] and holds(Follower(disk), 2)


@pytest.mark.parametrize("status", [507, 400])
def test_a_bucket_that_takes_no_more_leaves_the_chain_as_it_was(s3: S3Server, tmp_path: Path, status: int) -> None:
    url = f"s3://woodshed/{tmp_path.name}-{status}"
    publisher = publish(url, 2)
    s3.fail("PUT", status)
    try:
        with pytest.raises(OSError, match=rf"{url}/v000002/delta-000001-00000-00000\.bin.*{status}"):
            publisher.publish(2, state_at(2))
    finally:
        s3.heal()
    assert holds(Follower(url), 1)
    publisher.publish(2, state_at(2))
    assert verify_chain(url) == [0, 1, 2]


def test_a_bucket_that_does_not_answer_is_tried_again_later(s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://woodshed/{tmp_path.name}"
    publish(url, 3)
    follower = Follower(url)
    assert follower.advance(up_to=1) == 1
    s3.fail("GET", 400)
    try:
        with pytest.raises(OSError, match="that the server answers"):
            follower.poll()
    finally:
        s3.heal()
    assert follower.version == 1 and holds(follower, 2)


def test_what_no_second_try_helps_is_said_at_once(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChainError, match="there is no such bucket; create it"):
        open_store("s3://nobodys-bucket/run")
    for bad in ("s3://woodshed", "s3://woodshed/", "s3:///x"):
        with pytest.raises(ChainError, match="write s3://bucket/prefix"):
            open_store(bad)
    with pytest.raises(ChainError, match="a folder or s3://"):
        open_store("gs://bucket/run")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(ChainError, match=r"not allowed .*check AWS_ACCESS_KEY_ID"):
        open_store("s3://woodshed/run")
