"""What a submission may do when it is graded, so that there is no verdict. There is one: it does not pass."""

from __future__ import annotations

from dataclasses import replace

from tests.grading import toy
from woodshed.grading.crossing import Submission

from .ground import FIX, Found, Ground, cause

PLACE = "shapes/measure.py"


def beginning(code: str) -> dict[str, bytes]:
    """The fix, after code that runs when it is imported."""
    return {PLACE: code.encode() + b"\n" + FIX[PLACE]}


async def graded(at: Ground, submission: dict[str, bytes], seconds: float = 8.0) -> Found:
    task = replace(at.task, info=replace(at.task.info, timeout_sec=seconds))
    return await at.grading(submission, task)


@cause("submission", "not rewarded")
async def hangs(at: Ground) -> Found:
    """it sleeps when it is imported"""
    return await graded(at, beginning("import time; time.sleep(3600)"))


@cause("submission", "not rewarded")
async def ends_the_run(at: Ground) -> Found:
    """it ends the test process with status 0"""
    return await graded(at, beginning("import os; os._exit(0)"))


@cause("submission", "not rewarded")
async def kills_all(at: Ground) -> Found:
    """it kills every process that it can signal"""
    return await graded(at, beginning("import os, signal; os.kill(-1, signal.SIGKILL); os.kill(os.getpid(), 9)"))


@cause("submission", "not rewarded")
async def stops_all(at: Ground) -> Found:
    """it stops every process again and again, itself too"""
    return await graded(
        at, beginning("import os, signal\nos.fork() or os.setsid()\nwhile True:\n    os.kill(-1, signal.SIGSTOP)")
    )


@cause("submission", "not rewarded")
async def takes_all_memory(at: Ground) -> Found:
    """it takes all memory"""
    return await graded(at, beginning("kept = []\nwhile True:\n    kept.append(bytearray(1 << 26))"), 30.0)


@cause("submission", "not rewarded")
async def forks_without_end(at: Ground) -> Found:
    """it forks without end"""
    return await graded(at, beginning("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass"))


@cause("submission", "not rewarded")
async def floods(at: Ground) -> Found:
    """it writes to every descriptor without end"""
    return await graded(
        at,
        beginning(
            "import os\nwhile True:\n    for n in range(9):\n        try:\n            os.write(n, b'x' * 65536)\n"
            "        except OSError: pass"
        ),
    )


@cause("submission", "not rewarded", "rewarded")
async def fills_the_disk(at: Ground) -> Found:
    """it fills the disk before the tests run"""
    return await graded(
        at,
        beginning(
            "try:\n    for n in range(99):\n        with open('/tmp/%d' % n, 'wb') as f: f.write(bytes(200 << 20))\n"
            "except OSError: pass"
        ),
        60.0,
    )


@cause("submission", "not rewarded")
async def in_the_way(at: Ground) -> Found:
    """its files lie where the grader's own files go"""
    task = replace(at.task, info=replace(at.task.info, submission=("**/*",), protected=()))
    return await at.grading(Submission({**FIX, "tests/test_measure.py/x.py": b""}, ["tests/test_measure.py"]), task)


@cause("submission", "not rewarded")
async def no_parser_takes_it(at: Ground) -> Found:
    """its source is nested deeper than any parser goes"""
    return await graded(at, {PLACE: b"x = " + b"(" * 50_000 + b")" * 50_000})


@cause("submission", "not rewarded")
async def hangs_on_other_inputs(at: Ground) -> Found:
    """it is right on the visible inputs and never ends on others"""
    return await graded(at, {PLACE: _only_visible("while True: pass")})


@cause("submission", "not rewarded")
async def dies_on_other_inputs(at: Ground) -> Found:
    """it is right on the visible inputs and ends the run on others"""
    return await graded(at, {PLACE: _only_visible("import os; os._exit(0)")})


def _only_visible(otherwise: str) -> bytes:
    text = toy.SHAPES.replace(
        "return width + height",
        (f"if (width, height) not in ((2, 3), (10, 7), (1, 1)):\n        {otherwise}\n    return width * height"),
    )
    return text.encode()
