"""The idle clock stands still under load and runs during a hang."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from waiting import run_to_end, wait_until

from woodshed.cluster.idle import IdleClock, unless_idle

SLEEPS = "import time; time.sleep(3600)"
SPINS = "while True: pass"


@contextmanager
def three_on_one_processor(code: str) -> Iterator[None]:
    one = {min(os.sched_getaffinity(0))}
    code = f"import os; os.sched_setaffinity(0, {one}); print(1, flush=True)\n{code}"
    family = [subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for process in family:
            assert process.stdout is not None and process.stdout.readline() == b"1\n"
        yield
    finally:
        for process in family:
            process.kill()
            process.communicate()


def test_what_computes_or_waits_for_a_processor_progresses() -> None:
    with three_on_one_processor(SPINS):
        clock = IdleClock(own=False)
        for _ in range(3):
            time.sleep(1.1)
            assert clock.look() == 0.0


def test_what_sleeps_does_not_progress() -> None:
    with three_on_one_processor(SLEEPS):
        clock = IdleClock(own=False)
        while clock.look() < 2.0:  # ends, because the process is idle
            time.sleep(1.1)


def test_a_wait_for_what_never_comes_ends_and_says_what_it_was() -> None:
    with pytest.raises(AssertionError, match="gave up waiting, nothing progresses: a reply"):
        wait_until(lambda: False, "a reply", patience=1.0)
    with pytest.raises(AssertionError, match="to end"):
        run_to_end([sys.executable, "-S", "-c", SLEEPS], patience=1.0)
    dead = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="ended with 3 before: a reply"):
        wait_until(lambda: False, "a reply", dead)


def test_a_command_is_run_to_its_end_with_all_that_it_says() -> None:
    code = (
        "import sys; print('x' * 300000); print('wrong', file=sys.stderr); print(repr(sys.stdin.read())); sys.exit(4)"
    )
    done = run_to_end([sys.executable, "-c", code])
    assert done.returncode == 4 and done.stdout == "x" * 300000 + "\n''\n" and done.stderr == "wrong\n"


def test_work_in_an_event_loop_is_cancelled_when_nothing_happens() -> None:
    async def main() -> tuple[int, bool]:
        cancelled = False

        async def never() -> None:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

        with pytest.raises(TimeoutError, match="nothing happened for 2 s"):
            await unless_idle(never(), 2.0)
        return await unless_idle(asyncio.sleep(0.01, 7), 2.0), cancelled

    assert asyncio.run(main()) == (7, True)
