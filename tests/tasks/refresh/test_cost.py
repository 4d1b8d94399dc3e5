"""Processor time of a command: its own, that of its children, and that of what runs in boxes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.sandbox import open_backend
from woodshed.sandbox.protocol import BoxSpec
from woodshed.tasks.generators.packages.cost import Cost, cpu_seconds, rate

BURN = "import time\nwhile time.process_time() < 0.6: pass"  # ticks of the kernel are rounded down, in each part


def test_children_count_living_and_ended() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_seconds() - before >= 0.4
    before = cpu_seconds()
    shell = subprocess.Popen(["sh", "-c", f'{sys.executable} -c "$0"; echo; sleep 60', BURN], stdout=subprocess.PIPE)
    try:
        assert shell.stdout is not None and shell.stdout.readline() == b"\n"
        assert cpu_seconds() - before >= 0.4, "a grandchild that its living parent has waited for"
    finally:
        shell.kill()
        shell.wait()
        assert shell.stdout is not None
        shell.stdout.close()


def test_boxes_count_and_all_starts_do(tmp_path: Path) -> None:
    async def burn() -> None:
        backend = open_backend()
        try:
            box = await backend.create(BoxSpec())
            done = await box.exec(["python3", "-c", BURN])
            assert done.returncode == 0
            await box.close()
        finally:
            await backend.close()

    if not (probe := open_backend().probe()).ok:
        pytest.skip("; ".join(probe.reasons))
    cost = Cost(tmp_path)
    asyncio.run(burn())
    first = cost.note()
    assert first >= 0.4
    again = Cost(tmp_path)
    assert again.note() >= first - 0.01, "an earlier start counts"
    cost.note()
    assert Cost(tmp_path).note() < 2 * first + 1.0, "each start once, however often it was noted"


def test_in_words() -> None:
    assert rate(50, 1800.0) == "50 tasks in 0.500 core-hours: 100 tasks per core-hour"
    assert rate(0, 0.0) == "0 tasks in 0.000 core-hours: no processor time"
