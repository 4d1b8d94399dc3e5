"""Publishing in the background: training never waits, the last version arrives, memory is bounded, errors surface."""

import threading

import pytest
import torch

from woodshed.weights.background import BackgroundPublisher
from woodshed.weights.chain import Publisher, verify_chain
from woodshed.weights.errors import VersionConflict
from woodshed.weights.follow import Follower
from woodshed.weights.manifest import versions
from woodshed.weights.store import FolderStore, Store

from .states import raw, state_at


class Slow(FolderStore):
    """A store that blocks writes until the test allows them."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, fsync=False)
        self.begun, self.let, self.failure = threading.Event(), threading.Event(), ""

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("v"):
            self.begun.set()
            assert self.let.wait(60)
        if self.failure:
            raise OSError(self.failure)
        super().put(key, data)


def test_every_version_where_there_is_time(store: Store) -> None:
    publisher = BackgroundPublisher(Publisher(store, 3))
    for v in range(5):
        state = state_at(v)
        publisher.publish(v, state)
        for tensor in state.values():
            tensor.zero_() if tensor.is_floating_point() else None  # Training goes on in place.
        publisher.flush()
    publisher.close()
    assert verify_chain(store) == [0, 1, 2, 3, 4] and publisher.skipped == 0
    got = Follower(store).poll()
    assert got is not None and raw(got[1]) == raw(state_at(4))


def test_training_never_waits_and_the_newest_is_what_arrives(tmp_path) -> None:
    store = Slow(str(tmp_path))
    publisher = BackgroundPublisher(Publisher(store, 100))
    publisher.publish(0, state_at(0))
    assert store.begun.wait(60)
    for v in range(1, 20):  # Returns although nothing can be written.
        publisher.publish(v, state_at(v))
        assert len(publisher._waiting) == 1
    store.let.set()
    publisher.close()
    assert versions(store) == [0, 19] and (publisher.published, publisher.skipped) == (2, 18)
    got = Follower(store).poll()
    assert got is not None and got[0] == 19 and raw(got[1]) == raw(state_at(19))


@pytest.mark.parametrize("how", ["publish", "check", "flush", "close"])
def test_errors_come_back_to_the_trainer(tmp_path, how: str) -> None:
    store = Slow(str(tmp_path))
    store.let.set()
    publisher = BackgroundPublisher(Publisher(store))
    publisher.publish(0, state_at(0))
    publisher.flush()
    store.failure = "the disk is gone"
    publisher.publish(1, state_at(1))
    publisher._thread.join(60)
    with pytest.raises(OSError, match="the disk is gone"):
        publisher.publish(2, state_at(2)) if how == "publish" else getattr(publisher, how)()
    assert versions(store) == [0]
    store.failure = ""
    again = BackgroundPublisher(Publisher(store))
    again.publish(2, state_at(2))
    again.close()
    assert verify_chain(store) == [0, 2]


def test_a_conflict_is_not_published(tmp_path) -> None:
    store = FolderStore(tmp_path, fsync=False)
    Publisher(store).publish(3, {"w": torch.ones(2)})
    publisher = BackgroundPublisher(Publisher(store))
    publisher.publish(3, {"w": torch.zeros(2)})
    with pytest.raises(VersionConflict, match="other weights"):
        publisher.flush()
