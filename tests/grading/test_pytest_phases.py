"""Several runs in one box: each sees its own files, whatever bytecode lies there, and none outlives its time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from woodshed.grading.heldout import encoder
from woodshed.grading.pytest_grader import TestRun
from woodshed.grading.pytest_phases import Phase, run_phases
from woodshed.grading.telling import values_of
from woodshed.sandbox import open_backend
from woodshed.sandbox.guest.template import SITE_PACKAGES
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec
from woodshed.tasks.validate.reasons import wrong_reason

from . import toy

CODE = b"def f():\n    return 1\n"
TESTS = b"""import os
import time

from code_under_test import f


def test_one():
    assert f() == 1


def test_process():
    assert not hasattr(os, "seen")
    os.seen = True


def test_loop():
    while f() == 3:
        time.sleep(0.01)
"""
NAME, FILE = "code_under_test.py", "test_it.py"
IDS = [f"{FILE}::test_{name}" for name in ("one", "process", "loop")]


FIXTURES = b"""import pytest


@pytest.fixture
def broken():
    raise ValueError("it does not begin")


@pytest.fixture
def unfinished():
    yield 1
    raise ValueError("it does not end")


def test_begins(broken):
    pass


def test_ends(unfinished):
    pass


def test_finds(not_there):
    pass
"""


def test_errors_of_fixtures_are_told_as_briefly_as_failures(tmp_path: Path) -> None:
    (run,) = played(tmp_path, {FILE: FIXTURES}, [Phase([FILE], None)])
    texts = {test.rpartition("_")[2]: (result.status, result.text) for test, result in run.results.items()}
    assert texts["begins"] == ("error", "ValueError: it does not begin")
    assert texts["ends"] == ("error", "ValueError: it does not end")
    assert texts["finds"][0] == "error" and wrong_reason(texts["finds"][1]) == "fixture 'not_there' not found"


def test_phases(tmp_path: Path) -> None:
    files = {NAME: CODE, FILE: TESTS}
    collected, first, other, hung, failed, looped, stopped, gone, again = played(
        tmp_path,
        files,
        [
            Phase([FILE], [], bytecode=True),
            Phase([FILE], IDS),
            Phase([FILE], IDS[:2], {NAME: CODE.replace(b"1", b"2")}),
            Phase([FILE], IDS, {NAME: CODE.replace(b"1", b"3")}, timeout=1.5, test_timeout=30.0),
            Phase([FILE], IDS, {NAME: CODE.replace(b"1", b"2")}, stop_at="failure"),
            Phase([FILE], [IDS[2], IDS[1]], {NAME: CODE.replace(b"1", b"3")}, reverse=True, test_timeout=0.2),
            Phase([FILE], IDS[1:], {}, reverse=True, test_timeout=0.2, stop_at="hang"),
            Phase([FILE], IDS, delete=[NAME]),
            Phase([FILE], None, {NAME: CODE}, reverse=True),
        ],
    )
    assert collected.results == {} and collected.problems == ()
    status = [{t.rpartition("_")[2]: r.status for t, r in made.results.items()} for made in (first, other, again)]
    assert status == [
        {"one": "passed", "process": "passed", "loop": "passed"},
        {"one": "failed", "process": "passed"},
        {"loop": "passed", "process": "passed", "one": "passed"},
    ]
    assert list(again.results) == list(reversed(list(first.results))) and first.complete and other.complete
    assert not hung.complete and hung.detail == "timed out after 1.5 s"
    assert [r.status for r in failed.results.values()] == ["failed"] and not failed.complete, "nothing after it"
    assert looped.complete and [r.status for r in looped.results.values()] == ["failed", "passed"]
    assert list(stopped.results) == [IDS[2]] and not stopped.complete
    assert "TimeLimit" in looped.results[IDS[2]].text == stopped.results[IDS[2]].text
    assert gone.results == {} and "No module named 'code_under_test'" in gone.problems[0]


HASHES = b"""class Thing:
    pass


def test_text():
    woodshed_seen(hash("text"))


def test_place():
    woodshed_seen(id(Thing))


def test_value():
    woodshed_seen([1, 2])
"""


def test_only_a_fresh_interpreter_has_other_hashes_and_addresses(tmp_path: Path) -> None:
    first, second, fresh, slow = played(
        tmp_path,
        {FILE: HASHES, "test_slow.py": b"import time\ntime.sleep(60)\n"},
        [
            Phase([FILE], None, encoder=encoder()),
            Phase([FILE], None, encoder=encoder()),
            Phase([FILE], None, encoder=encoder(), fresh=True),
            Phase(["test_slow.py"], None, timeout=2.0, fresh=True),
        ],
    )
    values, again, other = (list(values_of(run).values()) for run in (first, second, fresh))
    assert first.complete and fresh.complete and values == again
    assert values[0] != other[0] and values[1] != other[1] and values[2] == other[2]
    assert not slow.complete and slow.detail == "timed out after 2 s"


def played(tmp_path: Path, files: dict[str, bytes], phases: list[Phase]) -> list[TestRun]:
    layers = LayerStore(tmp_path / "layers")
    layer = layers.path(toy.pytest_layer(layers))
    files = {**files, "pytest.ini": b"[pytest]\n"}

    async def run() -> list[TestRun]:
        backend = open_backend()
        try:
            if not backend.probe().ok:
                pytest.skip("no namespace sandbox here")
            box = await backend.create(BoxSpec(layers=(layer,), files={f"/workspace/{n}": d for n, d in files.items()}))
            return await run_phases(box, phases, path=(SITE_PACKAGES, "/workspace"))
        finally:
            await backend.close()

    return asyncio.run(run())


BUSY = b"""import os
import time


def test_waits_for_its_processor():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = []
    for _ in range(5):
        others.append(os.fork())
        if not others[-1]:
            while True:
                pass
    try:
        until = time.process_time() + 0.25
        while time.process_time() < until:
            pass
    finally:
        for other in others:
            os.kill(other, 9)
"""
"""A test that takes a quarter of a second, on a processor that five other processes want too."""


@pytest.mark.parametrize("whole", [False, True])
def test_time_without_a_processor_counts_against_no_limit(tmp_path: Path, whole: bool) -> None:
    limits = Phase([FILE], None, timeout=0.9) if whole else Phase([FILE], None, test_timeout=0.7)
    (run,) = played(tmp_path, {FILE: BUSY}, [limits])
    assert run.complete and [r.status for r in run.results.values()] == ["passed"], run
