"""Services that tests need (a database, a queue), started in a box before anything untrusted runs there.

The start script is the task's, its programs come from the task's locked layers. Boxes do not keep processes in a
snapshot of files, so services are started after a fork.
"""

from __future__ import annotations

from .protocol import Backend, BoxError, BoxSpec, Sandbox, SandboxError, Snapshot

START_SECONDS = 300.0
"""Limit of a start script. Scripts end as soon as their services answer, or have ended; this is for a machine that does
not get there."""

SCRIPT = "/tmp/start.sh"
"""Where the script lies in a box; an agent may run it again."""

_LOG = "/tmp/services.log"
_SAID = 1500


class ServicesError(SandboxError):
    """The services of a task do not start in a box in which nothing untrusted ran."""


async def try_services(box: Sandbox, start: str, *, timeout: float = START_SECONDS) -> str:
    """Run a start script in the workdir of ``box``; why its services do not run, empty where they do.

    What the script starts in the background outlives it. Raises BoxError where the box itself ends.
    """
    await box.put({SCRIPT: start.encode()})
    # Into a file: a service would hold an output that the host reads open for ever.
    script = f"sh -e {SCRIPT} >{_LOG} 2>&1 </dev/null"
    done = await box.exec(f"{script} || {{ code=$?; tail -c {_SAID} {_LOG}; exit $code; }}", timeout=timeout)
    if not done.timed_out and done.returncode == 0:
        return ""
    how = f"did not end in {timeout:g} s" if done.timed_out else f"ended with {done.returncode}"
    said = done.stdout.decode("utf-8", "replace").strip()
    return f"start.sh {how}" + (f": {said}" if said else "")


async def create_box(backend: Backend, spec: BoxSpec, start: str) -> Sandbox:
    """A fresh box in which the services of ``start`` run, if it is not empty.

    Raises ServicesError where they do not, which is never the fault of what is put into the box later.
    """
    return await _started(await backend.create(spec), start)


async def fork_box(backend: Backend, snapshot: Snapshot, start: str) -> Sandbox:
    """As ``create_box``, from a snapshot."""
    (box,) = await backend.fork(snapshot)
    return await _started(box, start)


async def start_services(box: Sandbox, start: str) -> None:
    """Start what a trusted box needs. Raises ServicesError."""
    try:
        why = await try_services(box, start) if start else ""
    except BoxError as error:
        raise ServicesError(f"a box ends while its services start: {error}") from error
    if why:
        raise ServicesError(f"the services of a task do not start: {why}")


async def _started(box: Sandbox, start: str) -> Sandbox:
    try:
        await start_services(box, start)
    except BaseException:
        await box.close()
        raise
    return box
