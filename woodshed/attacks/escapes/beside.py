"""Attacks of one box on another: exhausting shared resources, and covert channels.

The other box must not notice anything, except that it gets only its share of CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from woodshed.attacks.escapes.pairs.base import STOP, TAKEN, Pair
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.guest.turns import shared_by_session
from woodshed.sandbox.host.box_supervisor import descendants
from woodshed.sandbox.protocol import Backend, BoxGone, BoxSpec, Limits, Sandbox, SandboxError

from . import pairs
from .pairs import PAIRS, processor

BACKENDS = ("namespace", "gvisor")
"""Backends that are tested. The others use the same namespaces, one kernel per box, or weaker isolation."""

_LIMITS = Limits(memory=2 << 30, processes=64, cpu_seconds=60.0, disk=64 << 20)
_SECONDS = 240.0
_LEAST_SHARE = 0.25
"""Least share of CPU time for one of two busy boxes. Half would be fair, but they do not start and end together."""

_ALWAYS_KNOWN = {
    "descriptor_locks": "descriptors without a file (eventfd, epoll) share one inode of the kernel, locks included",
}
_KNOWN_WITH_ONE_USER = {
    **_ALWAYS_KNOWN,
    "descriptors_in_flight": "counted by host user, and boxes of an ordinary user have one for all",
    "pipe_buffers": "counted by host user, and boxes of an ordinary user have one for all",
    "large_pipes": "counted by host user, and boxes of an ordinary user have one for all",
    "device_locks": "only root can make devices of their own for boxes",
    "watched_devices": "only root can make devices of their own for boxes",
}
_KNOWN_OF_GVISOR = {"processor": "this kernel shares processors between processes (sched_autogroup_enabled is not 1)"}


@dataclass(frozen=True)
class Beside:
    """Result of one attempt. ``evidence`` is empty if the other box noticed nothing; ``got`` is the attacker's report
    of what it got.

    ``known``: known reason why this resource is not isolated here, '' if none; relevant only with evidence.
    """

    name: str
    tries: str
    got: str
    evidence: str
    known: str = ""

    @property
    def disturbed(self) -> bool:
        return bool(self.evidence) and not self.known


async def beside(backend: Backend) -> list[Beside]:
    """Run every attempt of one box against another. Raises SandboxError where no box can be made."""
    results = [await _try(backend, pair) for pair in PAIRS.values()]
    results.append(await _processor(backend))
    known = _known(backend)
    return [Beside(r.name, r.tries, r.got, r.evidence, known.get(r.name, "")) for r in results]


def beside_backend(name: str, root: Path | None = None) -> list[Beside]:
    """Open a backend by name and run ``beside`` on it."""

    async def run() -> list[Beside]:
        backend = open_backend(name, root=root)
        try:
            return await beside(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def program(side: str, name: str = "") -> str:
    """Python source that plays one side of an attempt of the package in the working folder."""
    call = f"pairs.base.main({side!r}, {name!r})" if name else f"pairs.processor.{side}()"
    return f"import os, sys\nsys.path.insert(0, os.getcwd())\nimport pairs\n{call}"


def sources() -> dict[str, bytes]:
    """The attempts as files of a package, by path."""
    folder = Path(pairs.__file__).parent
    return {f"pairs/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}


def _known(backend: Backend) -> dict[str, str]:
    if backend.name == "gvisor":
        return {} if shared_by_session() else _KNOWN_OF_GVISOR
    if backend.name != "namespace":
        return {}
    return _ALWAYS_KNOWN if getattr(backend, "users", False) else _KNOWN_WITH_ONE_USER


async def _try(backend: Backend, pair: Pair) -> Beside:
    attacker, other = await _box(backend), await _box(backend)
    try:
        alone = await _use(other, pair)
        taking = asyncio.create_task(attacker.exec_python(program("take", pair.name), timeout=_SECONDS))
        got = await _taken(attacker, taking)
        evidence = []
        if not taking.done():
            try:
                now = await _use(other, pair)
                evidence += [f"{alone} became {now}"] if now != alone else []
                if not pair.is_channel:  # a channel exhausts nothing that new boxes need
                    evidence += await _serve(backend, pair, alone)
            except (SandboxError, OSError) as error:
                evidence.append(f"{type(error).__name__}: {error}")
        with contextlib.suppress(BoxGone):  # it exceeded its limits and was ended
            await _stop(attacker)
        try:
            saw = _said((await taking).stdout)
        except BoxGone:
            saw = ""
        evidence += [f"saw {saw}"] if pair.saw is not None and saw else []
        return Beside(pair.name, pair.tries, got, "; ".join(evidence)[:300])
    finally:
        await attacker.close()
        await other.close()


async def _serve(backend: Backend, pair: Pair, alone: str) -> list[str]:
    """During the attack, create, run, snapshot, fork and grade other boxes as a host does; return what went wrong."""
    wrong = []
    made = await _box(backend)
    try:
        if (await made.exec("echo made > made && cat made")).stdout != b"made\n":
            wrong.append("a command in a new box failed")
        if (now := await _use(made, pair)) != alone:
            wrong.append(f"in a new box {alone} became {now}")
        (fork,) = await backend.fork(await made.snapshot())
        try:
            if (await fork.exec("cat made")).stdout != b"made\n":
                wrong.append("a fork lacks a file")
            graded = await fork.exec_python("import unittest\nassert unittest.TestCase\nprint('passed')", timeout=60)
            if graded.stdout != b"passed\n":
                wrong.append(f"a test failed: {graded.stderr.decode(errors='replace')[-100:]}")
        finally:
            await fork.close()
    finally:
        await made.close()
    return wrong


async def _processor(backend: Any) -> Beside:
    """Attack with processes in sessions of their own, so that the kernel's grouping by session does not help.

    Shares are measured in CPU seconds, because wall time depends on the load of the machine.
    """
    tries = "run so many processes that others get no CPU time"
    # The attacker must not reach its own limit while the other still works, however busy the machine is.
    forever = replace(_LIMITS, cpu_seconds=_SECONDS * (os.cpu_count() or 1))
    attacker, other = await _box(backend, forever), await _box(backend)
    try:
        spinning = asyncio.create_task(attacker.exec_python(program("spin"), timeout=_SECONDS))
        got = await _taken(attacker, spinning)
        before = _seconds(backend.pid)
        worked = await other.exec_python(program("work"), timeout=_SECONDS)
        share = min(1.0, processor.WORK * (os.cpu_count() or 1) / (_seconds(backend.pid) - before))
        await _stop(attacker)
        await spinning
        evidence = "" if share >= _LEAST_SHARE and worked.returncode == 0 else f"a share of {share:.3f}, {worked}"
        return Beside("processor", tries, f"{got}, and left a share of {share:.2f}", evidence[:300])
    finally:
        await attacker.close()
        await other.close()


def _seconds(pid: int) -> float:
    """CPU seconds of a process and all its descendants, including children that were waited for."""
    total = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            total += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


async def _box(backend: Backend, limits: Limits = _LIMITS) -> Sandbox:
    return await backend.create(BoxSpec(files=sources(), limits=limits))


async def _use(box: Sandbox, pair: Pair) -> str:
    done = await box.exec_python(program("use", pair.name), timeout=_SECONDS)
    return _said(done.stdout) if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr[-200:]!r}"


async def _taken(box: Sandbox, taking: asyncio.Task[object]) -> str:
    try:
        while not taking.done():
            if any(name == TAKEN for name, _, _ in await box.list()):
                return (await box.read(TAKEN)).decode(errors="replace")
            await asyncio.sleep(0.05)
        return f"nothing: {taking.result()}"[:300]
    except BoxGone as error:
        return f"nothing: {error}"


async def _stop(box: Sandbox) -> None:
    """Ask the attacker to stop; kill it if it has left no space for one more file."""
    try:
        await box.write(STOP, b"")
    except OSError:
        await box.exec("kill -9 -1")


def _said(output: bytes) -> str:
    try:
        return str(json.loads(output.splitlines()[-1])["said"])
    except (IndexError, ValueError, KeyError):
        return f"no answer: {output[-200:]!r}" if output else ""
