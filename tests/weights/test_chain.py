import pytest
import torch

from woodshed.weights.chain import Publisher, verify_chain
from woodshed.weights.errors import ChainError, VersionConflict
from woodshed.weights.fence import Head
from woodshed.weights.follow import Follower
from woodshed.weights.manifest import read_manifest, versions
from woodshed.weights.shards import Region, Shard
from woodshed.weights.store import Store

from .states import publish, raw, state_at


def test_follower_tracks_every_version_and_newcomers_catch_up(store: Store) -> None:
    publisher, steady, head = Publisher(store, 4), Follower(store), Head(store)
    assert steady.poll() is None and head() is None
    for v in range(7):
        publisher.publish(v, state_at(v))
        for follower in (steady, Follower(store)):
            got = follower.poll()
            assert got is not None and got[0] == v and raw(got[1]) == raw(state_at(v))
        assert steady.poll() is None and head() == v
    assert verify_chain(store) == list(range(7))
    assert versions(store, above=4) == [5, 6]
    only = Follower(store).poll(up_to=5)
    assert only is not None and only[0] == 5 and raw(only[1]) == raw(state_at(5))


def test_late_joiner_starts_from_the_last_anchor(store: Store) -> None:
    publisher = publish(store, 7, anchor_every=3)
    late = Follower(store)
    assert late.poll() is not None and late.version == 6
    assert late.bytes_read == read_manifest(store, 6).kinds["full"].bytes
    publisher.publish(7, state_at(7))
    before = late.bytes_read
    late.poll()
    assert late.bytes_read - before == read_manifest(store, 7).kinds["delta"].bytes


def test_straggler_takes_the_shorter_way(store: Store) -> None:
    """Dense deltas: replaying eight of them costs more than one anchor; small ones cost less."""
    for base, scale, jumps in ((0, 1.0, True), (100, 0.0, False)):
        publisher, straggler = Publisher(store, 8), Follower(store)
        publisher.publish(base, state_at(0, scale=scale))
        straggler.poll()
        before = straggler.bytes_read
        for v in range(1, 9):
            publisher.publish(base + v, state_at(v, scale=scale))
        anchor = [v for v in versions(store, above=base) if "full" in read_manifest(store, v).kinds][-1]
        got = straggler.poll(up_to=anchor)
        assert got is not None and raw(got[1]) == raw(state_at(anchor - base, scale=scale))
        assert (straggler.bytes_read - before == read_manifest(store, anchor).kinds["full"].bytes) == jumps


def test_numbers_may_be_left_out(store: Store) -> None:
    publisher, follower = Publisher(store, 4), Follower(store)
    for v in (2, 3, 7, 9, 10):
        publisher.publish(v, state_at(v))
        if v == 3:
            follower.poll()
    manifests = {v: read_manifest(store, v) for v in versions(store)}
    assert [m.base for m in manifests.values()] == [None, 2, 3, 7, 9]
    assert [v for v, m in manifests.items() if "full" in m.kinds] == [2, 7, 9], "the first after each multiple of 4"
    got = follower.poll()
    assert got is not None and got[0] == 10 and raw(got[1]) == raw(state_at(10))
    assert verify_chain(store) == [2, 3, 7, 9, 10]


def test_publisher_continues_a_chain_and_refuses_changes(store: Store) -> None:
    publish(store, 3)
    again = Publisher(store, 4)
    assert again.head == 2
    again.publish(2, state_at(2))
    again.publish(1, state_at(1))
    with pytest.raises(VersionConflict, match="other weights"):
        again.publish(2, state_at(1))
    halves = {k: v for k, v in state_at(2).items() if k != "a.weight"}
    with pytest.raises(VersionConflict, match="other weights"):
        again.publish(2, halves)
    with pytest.raises(ChainError, match="not between 0 and"):
        again.publish(10**6, state_at(3))
    again.publish(3, state_at(3))
    got = Follower(store).poll()
    assert got is not None and got[0] == 3 and raw(got[1]) == raw(state_at(3))


def test_equal_weights_in_other_pieces_are_the_same_version(store: Store) -> None:
    publish(store, 3)
    weights = state_at(2)["a.weight"]
    shard = Shard(weights[8:], Region((64, 32), (8, 0), (56, 32)))
    rest = {k: v for k, v in state_at(2).items() if k != "a.weight"}
    Publisher(store).publish(2, rest | {"a.weight": shard})
    changed = Shard(weights[8:] + 1, shard.region)
    with pytest.raises(VersionConflict, match="other weights"):
        Publisher(store).publish(2, rest | {"a.weight": changed})


def test_weights_in_memory_save_the_anchor(store: Store) -> None:
    publish(store, 3, anchor_every=25)
    follower = Follower(store, version=1, state=state_at(1))
    got = follower.poll()
    assert got is not None and got[0] == 2 and raw(got[1]) == raw(state_at(2))
    assert follower.bytes_read == read_manifest(store, 2).kinds["delta"].bytes


def test_many_parts_are_fetched_in_order(store: Store) -> None:
    publisher = Publisher(store, 4, part_bytes=3000)
    for v in range(3):
        publisher.publish(v, state_at(v))
    assert len(read_manifest(store, 2).kinds["delta"].parts) >= 3
    for ahead in (1, 8):
        got = Follower(store, ahead=ahead).poll()
        assert got is not None and got[0] == 2 and raw(got[1]) == raw(state_at(2))


def test_changed_tensor_set(store: Store) -> None:
    publisher = Publisher(store)
    publisher.publish(0, {"a": torch.ones(3), "gone": torch.ones(2)})
    publisher.publish(1, {"a": torch.ones(4), "new": torch.arange(3)})
    got = Follower(store).poll()
    assert got is not None and set(got[1]) == {"a", "new"}
    assert got[1]["a"].shape == (4,) and got[1]["new"].tolist() == [0, 1, 2]


def test_a_tensor_with_a_hole_is_an_error(store: Store) -> None:
    Publisher(store).publish(0, {"a": Shard(torch.ones(2), Region((5,), (0,), (2,)))})
    with pytest.raises(ChainError, match="hold 2 of 5 elements"):
        Follower(store).poll()
    with pytest.raises(ChainError, match="hold 2 of 5 elements"):
        verify_chain(store)
