"""Finding out what a backend can do by doing it: within a time limit, from any thread, and never an exception."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .protocol import Backend, Probe, SandboxError

B = TypeVar("B", bound=Backend)


def probe_by(make: Callable[[], B], attempt: Callable[[B], Awaitable[Probe]], seconds: float) -> Probe:
    """What ``attempt`` says of a backend of its own, which is closed afterwards; or why there is nothing to say."""
    found: list[Probe] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_bounded(make, attempt, seconds))))
    thread.start()
    thread.join()
    return found[0]


async def _bounded(make: Callable[[], B], attempt: Callable[[B], Awaitable[Probe]], seconds: float) -> Probe:
    try:
        backend = make()
    except SandboxError as error:
        return Probe(False, (str(error),))
    try:
        return await asyncio.wait_for(attempt(backend), seconds)
    except TimeoutError:
        return Probe(False, (f"no box within {seconds:.0f} s",))
    except (SandboxError, OSError) as error:
        return Probe(False, (str(error),))
    finally:
        await backend.close()
