"""Services that tests need (a database, a queue), started in a box before anything untrusted runs there.

The start script comes with the task, its programs with the task's locked layers. A snapshot of files keeps no
processes, so services are started after every fork.
"""

from __future__ import annotations

from .protocol import Backend, BoxError, BoxSpec, Sandbox, SandboxError, Snapshot

START_SECONDS = 300.0
"""Time limit of a start script. Scripts end as soon as their services answer or have ended, so only a stuck machine
reaches this limit."""

SCRIPT = "/tmp/start.sh"
"""Path of the script in a box; an agent may run it again."""

_LOG = "/tmp/services.log"
_SHOWN_BYTES = 1500


class ServicesError(SandboxError):
    """The services of a task do not start in a box in which no untrusted code ran."""


async def try_services(box: Sandbox, start: str, *, timeout: float = START_SECONDS) -> str:
    """Run a start script in the workdir of ``box``; return the reason why its services do not run, '' if they do.

    Processes that the script starts in the background outlive it. Raises BoxError if the box itself ends.
    """
    await box.put({SCRIPT: start.encode()})
    # Output goes into a file: a service would hold a pipe open for ever, and the host would wait for its end.
    script = f"sh -e {SCRIPT} >{_LOG} 2>&1 </dev/null"
    done = await box.exec(f"{script} || {{ code=$?; tail -c {_SHOWN_BYTES} {_LOG}; exit $code; }}", timeout=timeout)
    if not done.timed_out and done.returncode == 0:
        return ""
    how = f"did not end in {timeout:g} s" if done.timed_out else f"ended with {done.returncode}"
    said = done.stdout.decode("utf-8", "replace").strip()
    return f"start.sh {how}" + (f": {said}" if said else "")


async def create_box(backend: Backend, spec: BoxSpec, start: str) -> Sandbox:
    """Create a box and run the start script ``start`` in it, unless that is empty.

    Raises ServicesError if the services do not start; nothing untrusted is in the box by then.
    """
    return await _started(await backend.create(spec), start)


async def fork_box(backend: Backend, snapshot: Snapshot, start: str) -> Sandbox:
    """Fork one box from a snapshot and start its services, as ``create_box`` does."""
    (box,) = await backend.fork(snapshot)
    return await _started(box, start)


async def start_services(box: Sandbox, start: str) -> None:
    """Start the services of a box in which no untrusted code ran. Raises ServicesError."""
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
