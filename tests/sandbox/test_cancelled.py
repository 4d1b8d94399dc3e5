"""Whatever is cancelled or closed while a box is made, sealed or ended, no box and no snapshot is left over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
from pathlib import Path

import pytest
import uvloop

from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.pressure import Bounds, Load
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import BoxSpec, SandboxError


def _left(backend: NamespaceBackend) -> tuple[int, int]:
    """Return the number of boxes and of mounted snapshots of the fork server."""
    boxes = Path(f"/proc/{backend.pid}/task/{backend.pid}/children").read_text().split()
    mounts = Path(f"/proc/{backend.pid}/mountinfo").read_text().splitlines()
    return len(boxes), sum("/snaps/" in line.split()[4] for line in mounts)


async def _nothing_left(backend: NamespaceBackend) -> None:
    for _ in range(500):
        if _left(backend) == (0, 0):
            return
        await asyncio.sleep(0.02)
    assert _left(backend) == (0, 0)


def _during(backend, monkeypatch, step):
    """Return an event that is set when the backend begins a step of a snapshot; the step takes longer."""
    reached, real = asyncio.Event(), getattr(backend._spawner, step)

    async def slow(*given, **named):
        reached.set()
        await asyncio.sleep(0.05)
        return await real(*given, **named)

    monkeypatch.setattr(backend._spawner, step, slow)
    return reached


STEPS = pytest.mark.parametrize("step", ["ask", "create", "kill"])
"""The steps of a snapshot: adopt the old files, create the new processes, kill the old ones."""


@STEPS
def test_a_box_closed_during_its_snapshot_is_gone(with_backend, monkeypatch, step: str) -> None:
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"x"}))
        reached = _during(backend, monkeypatch, step)
        sealing = asyncio.create_task(box.snapshot())
        await asyncio.wait_for(reached.wait(), 60)
        await box.close()
        try:
            await backend.drop(await sealing)
        except SandboxError:
            assert step == "ask"  # the files were gone before they were taken
        await _nothing_left(backend)
        assert not backend._references and not backend._spawner._gone

    with_backend(body)


@STEPS
def test_a_cancelled_snapshot_leaves_nothing(with_backend, monkeypatch, step: str) -> None:
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"x"}))
        reached = _during(backend, monkeypatch, step)
        sealing = asyncio.create_task(box.snapshot())
        await asyncio.wait_for(reached.wait(), 60)
        sealing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sealing
        assert (await box.exec("cat a")).stdout == b"x"
        await box.close()
        await _nothing_left(backend)

    with_backend(body)


@pytest.mark.parametrize("kind", ["fs", "full"])
def test_a_cancelled_checkpoint_leaves_a_box_that_works_and_no_image(with_gvisor, monkeypatch, kind: str) -> None:
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"x"}))
        reached, ask = asyncio.Event(), backend._spawner.ask

        async def told(operation, **fields):
            answer = asyncio.create_task(ask(operation, **fields))
            await asyncio.sleep(0)  # the request is sent now
            reached.set()
            return await answer

        monkeypatch.setattr(backend._spawner, "ask", told)
        sealing = asyncio.create_task(box.snapshot(kind))
        await asyncio.wait_for(reached.wait(), 60)
        sealing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sealing
        assert (await box.exec("cat a")).stdout == b"x"
        await asyncio.gather(*box._abandoned)
        images = Path(f"/proc/{backend.pid}/root{backend._spawner.folder}/images")
        assert not backend._snapshots and not list(images.iterdir())
        await box.close()

    with_gvisor(body)


def test_a_cancelled_close_goes_on(with_backend) -> None:
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"x"}))
        await backend.drop(await box.snapshot())
        closing = asyncio.create_task(box.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await box.close()
        await _nothing_left(backend)

    with_backend(body)


def test_a_cancelled_drop_removes_every_snapshot_below_it(with_backend) -> None:
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"x"}))
        below, above = await box.snapshot(), await box.snapshot()
        await box.close()
        await backend.drop(below)
        dropping = asyncio.create_task(backend.drop(above))
        await asyncio.sleep(0)
        dropping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropping
        await _nothing_left(backend)
        assert not backend._references

    with_backend(body)


async def _cancelled_at_every_step(backend, steps: int) -> None:
    for step in range(steps):
        making = asyncio.create_task(backend.create(BoxSpec(files={"a": b"x"})))
        for _ in range(step):
            await asyncio.sleep(0)
        making.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await making).close()


def test_a_box_whose_start_is_cancelled_at_any_step_is_gone(with_backend) -> None:
    async def body(backend):
        await (await backend.create(BoxSpec())).close()
        await _cancelled_at_every_step(backend, 12)
        await _nothing_left(backend)
        assert not backend._spawner._gone

    with_backend(body)


def test_a_gvisor_box_whose_start_is_cancelled_at_any_step_is_gone(with_gvisor) -> None:
    async def body(backend):
        await (await backend.create(BoxSpec())).close()
        before = len(os.listdir("/proc/self/fd"))
        await _cancelled_at_every_step(backend, 12)
        assert not backend._spawner._gone and len(os.listdir("/proc/self/fd")) == before

    with_gvisor(body)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_pipes_of_a_cancelled_start_are_closed(run) -> None:
    async def after(step: int) -> None:
        started: list[int] = []

        async def start(source: int, sink: int) -> None:
            started.extend((os.dup(source), os.dup(sink)))
            await asyncio.sleep(0)

        opening = asyncio.create_task(Channel.open_with(start))
        for _ in range(step):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await opening)[1].close()
        await asyncio.sleep(0.01)
        for fd in started[:1]:
            os.set_blocking(fd, False)
            assert os.read(fd, 1) == b"", "the process that was started sees the end of its input"
        for fd in started:
            os.close(fd)

    async def body() -> None:
        await after(20)
        before = len(os.listdir("/proc/self/fd"))
        for step in range(12):
            await after(step)
        assert len(os.listdir("/proc/self/fd")) == before

    run(body())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_cancelled_start_closes_no_descriptor_twice(run) -> None:
    """By the time of a second close its number belongs to someone else."""

    async def body() -> None:
        for step in range(12):
            (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
            opening = asyncio.create_task(Channel.open_pipes(our_in, our_out))
            for _ in range(step % 3):
                await asyncio.sleep(0)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await opening).close()
            os.close(their_in)
            os.close(their_out)
            others = [os.pipe() for _ in range(4)]
            del opening
            gc.collect()
            await asyncio.sleep(0.01)
            for fd in itertools.chain.from_iterable(others):
                os.close(fd)  # raises OSError if it is closed already

    run(body())


def test_boxes_of_a_cancelled_fork_are_closed(with_backend) -> None:
    async def body(backend):
        pool = Pool(backend, lambda: Load(1 << 40, 1 << 40), Bounds(), max_boxes=4)
        box = await pool.create(BoxSpec(files={"a": b"x"}))
        snapshot = await box.snapshot()
        await box.close()
        backend._starting = asyncio.Semaphore(1)
        forking = asyncio.create_task(pool.fork(snapshot, 4))
        while len(backend._boxes) < 2 and not forking.done():
            await asyncio.sleep(0.001)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        assert pool.stats()["living"] == 0
        await pool.drop(snapshot)
        await _nothing_left(backend)

    with_backend(body)


def test_a_box_whose_request_is_cancelled_after_its_fork_is_closed(with_backend, monkeypatch, caplog) -> None:
    async def body(backend):
        pool = Pool(backend, lambda: Load(1 << 40, 1 << 40), Bounds(), bases=1)
        first, second = (BoxSpec(files={"a": bytes([n]) * (200 << 10)}) for n in (1, 2))
        for spec in (first, first, second):  # the second request makes a base
            await (await pool.create(spec)).close()
        reached, ask = asyncio.Event(), backend._spawner.ask

        async def slow(operation, **fields):
            if operation == "release":  # of the base that has to make room
                reached.set()
                await asyncio.sleep(0.05)
            return await ask(operation, **fields)

        monkeypatch.setattr(backend._spawner, "ask", slow)
        making, waiting = asyncio.create_task(pool.create(second)), asyncio.create_task(reached.wait())
        await asyncio.wait({making, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not making.done(), (pool.stats(), caplog.text)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert not backend._boxes and pool.stats()["living"] == 0

    with_backend(body)
