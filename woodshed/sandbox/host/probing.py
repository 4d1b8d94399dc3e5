"""Probes a backend by using it: callable from any thread, bounded in idle time; errors become part of the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from woodshed.cluster.idle import unless_idle
from woodshed.sandbox.protocol import Backend, BoxSpec, Limits, Probe, SandboxError

B = TypeVar("B", bound=Backend)


def probe_by(make: Callable[[], B], attempt: Callable[[B], Coroutine[Any, Any, Probe]], seconds: float) -> Probe:
    """Create a backend, run ``attempt`` on it and close it; return the result, or the reason why that failed.

    ``seconds``: idle time after which the attempt counts as failed.
    """
    found: list[Probe] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_bounded(make, attempt, seconds))))
    thread.start()
    thread.join()
    return found[0]


async def _bounded(make: Callable[[], B], attempt: Callable[[B], Coroutine[Any, Any, Probe]], seconds: float) -> Probe:
    try:
        backend = make()
    except SandboxError as error:
        return Probe(False, (str(error),))
    try:
        return await unless_idle(attempt(backend), seconds)
    except TimeoutError:
        return Probe(False, (f"no result, and nothing happened for {seconds:.0f} s",))
    except (SandboxError, OSError) as error:
        return Probe(False, (str(error),))
    finally:
        await backend.close()


async def try_live_fork(backend: Backend, *, memory: int, limits_in_force: Mapping[str, str]) -> Probe:
    """Probe whether a fork of a full snapshot has the files and the background process of its parent."""
    limits = Limits(memory=memory, processes=16, cpu_seconds=5, file_size=1 << 20, disk=8 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    result = await box.exec("cat hello && (sleep 1000 > /dev/null 2>&1 & echo $! > pid)")
    if (result.returncode, result.stdout) != (0, b"written"):
        return Probe(False, (f"a command fails: {result.stderr.decode(errors='replace').strip() or result}",))
    [fork] = await backend.fork(await box.snapshot("full"))
    alive = await fork.exec("kill -0 $(cat pid)")
    if alive.returncode:
        return Probe(False, ("processes do not survive a snapshot",), frozenset({"exec"}))
    found = frozenset({"exec", "exec_python", "fs_snapshot", "full_snapshot", "fork"})
    return Probe(True, (), found, limits_in_force)
