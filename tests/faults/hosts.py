"""What this machine may lack while policies work. It is tried again, or said; it is never a verdict."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.limits import soft_limit
from woodshed.record.fault import Fault
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rl.controller import Controller
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.rollout.failures import RunFailing
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.protocol import BoxSpec
from woodshed.tasks.validate.check import check_folders

from .ground import FIX, LIMITS, MEND, UNTRIED, Found, Ground, cause, first_process, run
from .submissions import beginning, graded

HERE = ("namespace",)


class Short:
    """The backend ``inner`` on a machine that has no descriptors left for its boxes number ``first`` to ``last``."""

    def __init__(self, inner: Any, first: int, last: int) -> None:
        self.inner, self.name, self.first, self.last, self.made = inner, inner.name, first, last, 0

    async def create(self, spec: BoxSpec) -> Any:
        self.made += 1
        short = self.first <= self.made <= self.last
        with soft_limit(resource.RLIMIT_NOFILE, 3) if short else nullcontext():
            return await self.inner.create(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def _warm(at: Ground) -> None:
    await (await at.backend.create(BoxSpec())).close()


@cause("host", "tried again, then rewarded", backends=HERE)
async def no_descriptors_for_a_box(at: Ground) -> Found:
    """there is no descriptor for the policy's box, and then there is"""
    await _warm(at)
    return await at.episode(run(MEND), backend=Short(at.backend, 1, 1))


@cause("host", "masked", backends=HERE)
async def no_descriptors_at_all(at: Ground) -> Found:
    """there is no descriptor for any box"""
    await _warm(at)
    return await at.episode(run(MEND), backend=Short(at.backend, 1, 99))


@cause("host", "tried again, then rewarded", backends=HERE)
async def no_descriptors_for_grading(at: Ground) -> Found:
    """there is no descriptor for the box that grades"""
    await _warm(at)
    return await at.episode(run(MEND), backend=Short(at.backend, 2, 2))


@cause("host", "tried again, then rewarded", backends=HERE)
async def no_descriptors_for_other_inputs(at: Ground) -> Found:
    """there is no descriptor for the box in which the submission meets other inputs"""
    await _warm(at)
    return await at.episode(run(MEND), backend=Short(at.backend, 3, 3))


@cause("host", "tried again, then rewarded", backends=HERE)
async def no_descriptors_for_the_helper(at: Ground) -> Found:
    """there is no descriptor for the helper process that makes boxes, and then there is"""
    return await at.episode(run(MEND), backend=Short(at.backend, 1, 1))


@cause("host", "masked", backends=HERE)
async def no_room_for_boxes(at: Ground) -> Found:
    """the folder for the state of boxes cannot be made"""
    backend = NamespaceBackend(Path("/proc/no/room"))
    try:
        return await at.episode(run(MEND), backend=backend)
    finally:
        await backend.close()


@cause("host", "masked")
async def services_do_not_start(at: Ground) -> Found:
    """the services that the tests of a task need do not start"""
    task = replace(at.task, info=replace(at.task.info, start="echo no memory >&2\nexit 1\n"))
    return await at.episode(run(MEND), task=task)


@cause("host", "raised", backends=HERE)
async def unreadable_task(at: Ground) -> Found:
    """the files of a task cannot be read for want of descriptors"""
    await _warm(at)
    create = at.backend.create

    async def last(spec: BoxSpec) -> Any:
        box = await create(spec)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        box.when_closed(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
        return box

    at.backend.create = last  # type: ignore[method-assign]
    return await at.grading(FIX)


@cause("host", "tried again, then rewarded", backends=HERE)
async def helper_killed(at: Ground) -> Found:
    """the helper process that owns all boxes is killed in the middle of an episode"""

    def kill(number: int) -> None:
        if number == 1:
            box = first_process(at.backend)
            os.kill(at.backend.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            while _lives(box):  # it ends with its helper, a moment later
                time.sleep(0.005)

    return await at.episode(run(MEND), run("true"), turn=kill)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@cause("host", "raised", backends=HERE)
async def helper_killed_in_grading(at: Ground) -> Found:
    """the helper process is killed while a submission is graded"""
    create = at.backend.create

    async def doomed(spec: BoxSpec) -> Any:
        box = await create(spec)
        os.kill(at.backend.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return box

    at.backend.create = doomed  # type: ignore[method-assign]
    return await graded(at, beginning("import time; time.sleep(5)"), 20.0)


@cause("host", "tried again, then rewarded", backends=HERE)
async def box_killed_from_outside(at: Ground) -> Found:
    """the machine ends a box that did nothing, as it does for want of memory"""
    await _warm(at)
    if not at.backend.cgroups:  # type: ignore[attr-defined]
        return Found("", UNTRIED, "boxes have no groups here, so it may have been their own memory")

    def kill(number: int) -> None:
        if number == 1:
            os.kill(first_process(at.backend), signal.SIGKILL)

    return await at.episode(run(MEND), run("true"), turn=kill)


@cause("host", "raised", backends=HERE)
async def no_processes(at: Ground) -> Found:
    """the machine has no process left for a command of a box that runs none"""
    box = await at.backend.create(BoxSpec(limits=LIMITS))
    if not at.backend.cgroups:  # type: ignore[attr-defined]
        return Found("", UNTRIED, "nothing here limits a box from outside")
    for folder in _groups_of(first_process(at.backend)):
        (folder / "pids.max").write_text("1")
    try:
        done = await box.exec(["true"], timeout=10)
    except Fault as fault:
        return Found(fault.source, "raised", str(fault))
    finally:
        await box.close()
    return Found("box", f"status {done.returncode}", done.stderr.decode())


def _groups_of(pid: int) -> list[Path]:
    """Folders of the control groups that count the processes of ``pid``."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    paths = [path for _, controllers, path in lines if controllers in ("pids", "")]
    found = [Path(root + path) for path in paths for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")]
    return [folder for folder in found if (folder / "pids.max").exists()]


@cause("host", "no verdict", backends=HERE)
async def in_a_gate(at: Ground) -> Found:
    """there is no descriptor while the gates of a task are tried"""
    await _warm(at)
    try:
        (made,) = await check_folders([at.task.path], Short(at.backend, 2, 2), at.layers)
    except Fault as fault:
        return Found(fault.source, "no verdict", str(fault))
    return Found("none", "accepted" if made.passed else "rejected", str(made))


@cause("host", "stopped", backends=HERE)
async def for_ever(at: Ground) -> Found:
    """the machine makes no box any more, while a run trains"""
    await _warm(at)
    return await training(at, backend=Short(at.backend, 1, 1 << 30))


async def training(at: Ground, **options: Any) -> Found:
    """What becomes of the rollouts of a run whose trainer waits for them."""
    settings = RLSettings(steps=1, groups_per_step=2, group_size=2, concurrency=2, attempts=1, infra_window=4)
    arena = at.arena(**{"attempts": 1, "patience": 0.2, "infra_window": 4, **options})
    tasks = [Task(at.task.path, f"t/{n}", at.task.instruction, at.task.info, at.task.config) for n in range(4)]
    ledger, store = Ledger(at.folder / "ledger"), TrajectoryStore(at.folder / "store")
    controller = Controller(
        arena,
        tasks,
        ledger,
        store,
        settings,
        batches=at.folder / "batches",
        metrics=at.folder / "metrics.jsonl",
        head=lambda: 0,
        build=_none,
        seed=0,
    )
    try:
        await controller.run()
    except RunFailing as failing:
        (source,) = controller.failures.counts
        return Found(source, "stopped", str(failing))
    finally:
        ledger.close()
        store.close()
    return Found("none", "went on")


def _none(*_: Any) -> Any:
    raise AssertionError("no batch can be made of nothing")
