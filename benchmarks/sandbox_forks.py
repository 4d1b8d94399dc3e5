"""The part of ``sandboxes.py`` about backends other than ``namespace``: most fork memory and files, others only
files."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from woodshed.sandbox import open_backend
from woodshed.sandbox.host.box_supervisor import descendants
from woodshed.sandbox.host.session import ShellSession
from woodshed.sandbox.protocol import BoxSpec, SandboxError

CLONES = 8


async def measure_forking(name: str, spec: BoxSpec, n: int) -> dict[str, Any]:
    """Measure the costs of a backend's boxes, with snapshots of memory if it supports them; {} if it does not work
    here."""
    try:
        backend: Any = open_backend(name)
        probe = backend.probe()
        if not probe.ok:
            return {}
    except SandboxError:
        return {}
    full = "full_snapshot" in probe.capabilities
    kind: Literal["fs", "full"] = "full" if full else "fs"
    out: dict[str, Any] = {}
    try:
        # The first box is separate: it includes the start of the box supervisor, and the first boot of a guest, from
        # which later guests are forked.
        out["first"] = await timed(1, lambda: backend.create(spec), lambda box: box.close())
        out["create"] = await timed(n, lambda: backend.create(spec), lambda box: box.close())
        box = await backend.create(spec)
        await box.exec("sleep 1000 > /dev/null 2>&1 &")
        out["exec_true"] = await timed(4 * n, lambda: box.exec(["/usr/bin/true"]))
        out["read"] = await timed(4 * n, lambda: box.read("pkg/module1.py"))
        out["exec_python_warm"] = await timed(4 * n, lambda: box.exec_python("print(1)"))
        out["snapshot"] = await timed(n, lambda: box.snapshot(kind), backend.drop)
        snapshot = await box.snapshot(kind)
        out["snapshot_bytes"] = snapshot.bytes
        out["fork"] = await timed(n, lambda: backend.fork(snapshot), lambda boxes: boxes[0].close())
        before = memory(backend.pid) if full else 0
        start = time.perf_counter()
        boxes = await backend.fork(snapshot, CLONES)
        out["fork_8_ms"] = 1000 * (time.perf_counter() - start)
        await asyncio.gather(*(each.exec("true") for each in boxes))
        out["fork_8_and_exec_ms"] = 1000 * (time.perf_counter() - start)
        if full:
            out["clone_mib"] = (memory(backend.pid) - before) / CLONES / 2**20
        await asyncio.gather(*(each.close() for each in boxes))
        if full:
            out["fork_fidelity_of_8"] = await _fidelity(backend, spec)
    finally:
        await backend.close()
    return out


async def _fidelity(backend: Any, spec: BoxSpec) -> int:
    """Return in how many of eight forks a shell with variables, a background process and unflushed files goes on
    independently of the others."""
    box = await backend.create(spec)
    shell = await ShellSession.open(box)
    await shell.send("x=40; while :; do sleep 0.1; done & background=$!; cd /tmp; echo dirty > note")
    forks = await backend.fork(await box.snapshot("full"), CLONES)

    async def goes_on(number: int, fork: Any) -> bool:
        same = shell.on(fork)
        ask = f"kill -0 $background && echo $((x += {number})) $(cat note) && echo {number} > note"
        said = await same.send(ask, timeout=600)
        again = await same.send("echo $x $(cat note)", timeout=600)
        return (said.stdout + again.stdout).decode() == f"{40 + number} dirty\n{40 + number} {number}\n"

    return sum(await asyncio.gather(*(goes_on(number, fork) for number, fork in enumerate(forks))))


def memory(pid: int) -> int:
    """Return the proportional set size, in bytes, of a process and all its descendants."""
    total = 0
    for member in (pid, *descendants(pid)):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    return total


def figures(name: str, detail: dict[str, Any]) -> dict[str, float | None]:
    """Return the headline figures of a backend; {} if it does not work here."""
    medians = {"create": "create", "exec": "exec_true", "snapshot": "snapshot", "restore": "fork"}
    if not detail:
        return {}
    found = {f"{name}_{figure}_ms": detail[key]["median"] for figure, key in medians.items()}
    clone, faithful = (detail.get(key) for key in ("clone_mib", "fork_fidelity_of_8"))
    if faithful is None:
        return found
    return found | {f"{name}_clone_mib": clone, f"{name}_fork_fidelity_of_8": faithful}


async def timed(
    n: int, action: Callable[[], Awaitable[Any]], after: Callable[[Any], Awaitable[Any]] | None = None
) -> Any:
    """Return the wall milliseconds of ``n`` runs of ``action``: median, minimum, 90th percentile. ``after`` is called
    with each result and is not timed."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        result = await action()
        times.append(1000 * (time.perf_counter() - start))
        if after is not None:
            await after(result)
    times.sort()
    return {"median": statistics.median(times), "min": times[0], "p90": times[int(0.9 * n)], "n": n}
