"""Deleting old versions never takes from a follower what it needs."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.weights.chain import Publisher, collect_garbage, verify_chain
from woodshed.weights.follow import Follower
from woodshed.weights.manifest import read_manifest, versions
from woodshed.weights.store import FolderStore, Store

from .states import publish, raw, state_at


def test_what_the_last_anchors_reach_is_kept(store: Store) -> None:
    publish(store, 8, anchor_every=3)
    assert collect_garbage(store, keep_anchors=5) == []
    assert collect_garbage(store, keep_anchors=2) == [0, 1, 2]
    assert collect_garbage(store, keep_anchors=2) == []
    assert verify_chain(store) == [3, 4, 5, 6, 7]
    assert not [key for key in store.listing() if key < "v000003"]
    got = Follower(store).poll()
    assert got is not None and raw(got[1]) == raw(state_at(7))
    with pytest.raises(ValueError, match="at least 1"):
        collect_garbage(store, keep_anchors=0)


def test_an_anchor_that_cannot_be_read_does_not_count(store: Store) -> None:
    publish(store, 8, anchor_every=3)
    store.put("v000006/manifest.json", b"{")
    assert collect_garbage(store, keep_anchors=1) == [0, 1, 2]
    assert versions(store)[0] == 3


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["publish", "skip", "poll 0", "poll 1", "restart 1", "collect"]), max_size=30),
    anchor_every=st.integers(1, 5),
    keep=st.integers(1, 3),
)
def test_every_follower_reaches_the_head_whatever_happens_in_between(
    steps: list[str], anchor_every: int, keep: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(folder, fsync=False)
        publisher = Publisher(store, anchor_every, keep_anchors=keep)
        followers, at = [Follower(store), Follower(store)], 0
        publisher.publish(0, state_at(0))
        for step in steps:
            if step in ("publish", "skip"):
                at += 1 if step == "publish" else 3
                publisher.publish(at, state_at(at))
            elif step == "collect":
                collect_garbage(store, keep_anchors=keep)
            elif step == "restart 1":
                followers[1] = Follower(store)
            else:
                followers[int(step[-1])].poll()
        for follower in (*followers, Follower(store)):
            follower.advance()
            assert follower.version == at and follower.image is not None
            assert {k: p.data.tobytes() for k, p in follower.image.items()} == raw(state_at(at))
        assert verify_chain(store)[-1] == at
        anchors = [v for v in versions(store) if "full" in read_manifest(store, v).kinds]
        assert len(anchors) <= keep
