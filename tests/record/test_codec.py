"""A trajectory's head as bytes and back."""

from __future__ import annotations

import json

from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Trajectory


def made() -> Trajectory:
    return Trajectory(
        id="t",
        task="org/x",
        group="g",
        source="train",
        harness_hash="h",
        policy="p",
        status="submitted",
        ignored={"store": 3, "tools.web_search": 1},
    )


def test_fields_that_were_ignored_are_kept() -> None:
    assert trajectory_from_bytes(trajectory_to_bytes(made())).ignored == {"store": 3, "tools.web_search": 1}


def test_records_of_before_have_none() -> None:
    data = trajectory_to_bytes(made())
    size = int.from_bytes(data[6:14], "little")
    head = json.loads(data[14 : 14 + size])
    del head["ignored"]
    text = json.dumps(head).encode()
    old = b"".join([data[:6], len(text).to_bytes(8, "little"), text, data[14 + size :]])
    assert trajectory_from_bytes(old).ignored == {}
