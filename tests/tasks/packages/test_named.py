"""A request for deleted functions quotes their own docstring; a task of a user's own source can be dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.record.task import Task, TaskInfo
from woodshed.tasks.generators.packages.report import Ledger, PackageYield
from woodshed.tasks.generators.packages.work import drop
from woodshed.tasks.generators.prompts.deletions import purpose

SOURCE = '''
class Cache:
    """Keeps a limited number of entries."""

    def get(self, key):
        """Return the cached entry and mark it as used."""

    class Block:
        def close(self):
            """Forget the buffered bytes of this block."""

    def close(self):
        self.entries.clear()


def get(url):
    return fetch(url)


if True:
    def put(url):
        """Send the page to the server."""
'''


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("get", ""),
        ("Cache.get", "It is for this: return the cached entry and mark it as used. "),
        ("Cache.close", "It is for this: keeps a limited number of entries. "),
        ("put", "It is for this: send the page to the server. "),
    ],
)
def test_the_purpose_is_that_of_the_function_itself(name: str, told: str) -> None:
    assert purpose(SOURCE, name) == told


@pytest.mark.parametrize("provenance", [{}, {"generator": "mine"}])
def test_a_task_of_an_own_source_can_be_dropped(tmp_path: Path, provenance: dict[str, str]) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    info = TaskInfo(provenance=provenance)
    line = PackageYield("source")
    line.count(info.kind, True)  # as the build of an own source counts it
    line.kept = 1
    drop(Task(folder, "task", "", info, {}), "a twin", line, Ledger(tmp_path / "ledger", "1"))
    assert line.kinds == {info.kind: [1, 0]} and line.kept == 0 and not folder.exists()
