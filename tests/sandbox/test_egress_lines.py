"""The egress log of a box server, which hands its lines to the clients of the boxes."""

from __future__ import annotations

import json
from pathlib import Path

from woodshed.sandbox.remote.leases import Lease
from woodshed.sandbox.remote.service import EgressLines


def test_an_emptied_log_is_followed_from_its_beginning(tmp_path: Path) -> None:
    """New lines are passed on although the file is shorter than before, and a line that was cut is left out."""
    log, lease = tmp_path / "egress.jsonl", Lease("client")

    def add(*names: str) -> None:
        with log.open("a") as file:
            file.writelines(json.dumps({"box": "box", "name": name}) + "\n" for name in names)

    def dealt() -> list[str]:
        lines.deal(lambda box: lease)
        return [line["name"] for _, line in lease.lines(0)]

    add("old")
    lines = EgressLines(log)
    add("a", "b")
    assert dealt() == ["a", "b"]
    log.write_text('in the middle of a line"}\n')
    add("c")
    assert dealt() == ["a", "b", "c"]
    log.write_text("")
    assert dealt() == ["a", "b", "c"]
    add("d")
    assert dealt() == ["a", "b", "c", "d"]
