"""Run every escape attempt in boxes of a backend, and report which succeeded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.attacks.escapes.attempts.base import Attempt
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import Backend, BoxGone, BoxSpec, Limits, Sandbox, SandboxError

from . import attempts
from .attempts import ATTEMPTS
from .bait import bait

OWN_KERNEL = frozenset({"gvisor", "microvm"})
"""Backends whose boxes have their own kernel, so that dangerous calls which it accepts do not endanger the host's."""

_LIMITS = Limits(memory=512 << 20, processes=32, cpu_seconds=20.0, disk=32 << 20)
_SECONDS = {"microvm": 60.0}
_USUAL_SECONDS = 15.0
"""Time limit of one attempt. An emulated guest is slow, and an attempt that did not finish proves nothing."""


@dataclass(frozen=True)
class Tried:
    """Result of an attempt. ``evidence`` is empty if it was refused; ``refusal`` says how."""

    name: str
    tries: str
    evidence: str
    refusal: str


async def attack(backend: Backend) -> list[Tried]:
    """Run every applicable attempt, all in one box while it lives. Raises SandboxError if no box can be created."""
    results: list[Tried] = []
    with bait() as facts:
        box = await _box(backend)
        try:
            for attempt in applicable(backend.name):
                result = await _try(box, attempt, facts, _SECONDS.get(backend.name, _USUAL_SECONDS))
                if result is None:
                    await box.close()
                    box = await _box(backend)
                    result = Tried(attempt.name, attempt.tries, "", "the box ended")
                results.append(result)
            results.append(await _kill_init(box))
        finally:
            await box.close()
    return results


def attack_backend(name: str, root: Path | None = None) -> list[Tried]:
    """Open a backend by name and ``attack`` it."""

    async def run() -> list[Tried]:
        backend = open_backend(name, root=root)
        try:
            return await attack(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def applicable(backend: str) -> list[Attempt]:
    """Return the attempts for a backend: all, or all except ``kernel`` attempts if its boxes have their own kernel."""
    return [attempt for attempt in ATTEMPTS.values() if not (attempt.kernel and backend in OWN_KERNEL)]


def program(name: str, facts: dict[str, Any]) -> str:
    """Python source that runs one attempt of the package in the working folder and prints the result."""
    return (
        f"import json, os, sys\nsys.path.insert(0, os.getcwd())\nfrom attempts.base import main\nimport attempts\n"
        f"main({name!r}, json.loads({json.dumps(facts)!r}))\n"
    )


def sources() -> dict[str, bytes]:
    """The attempts as files of a package, by path."""
    folder = Path(attempts.__file__).parent
    return {f"attempts/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}


async def _box(backend: Backend) -> Sandbox:
    return await backend.create(BoxSpec(files=sources(), limits=_LIMITS))


async def _try(box: Sandbox, attempt: Attempt, facts: dict[str, Any], seconds: float) -> Tried | None:
    """Run one attempt; return None if the box is gone afterwards."""
    try:
        done = await box.exec_python(program(attempt.name, facts), timeout=seconds)
        await box.exec("true")
    except (BoxGone, SandboxError):
        return None
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        return Tried(attempt.name, attempt.tries, said["evidence"], said["refusal"])
    except (IndexError, ValueError, KeyError):
        how = "took too long" if done.timed_out else f"ended with {done.returncode}"
        return Tried(attempt.name, attempt.tries, "", how)


async def _kill_init(box: Sandbox) -> Tried:
    """Try to kill the first process of the box. Evidence is visible only from outside: the box no longer answers."""
    tries = "kill the first process of the box"
    try:
        await box.exec("kill -9 1; kill -15 1; kill -2 1")
        alive = (await box.exec("echo alive")).stdout == b"alive\n"
    except (BoxGone, SandboxError) as error:
        return Tried("kill_init", tries, str(error), "")
    return Tried("kill_init", tries, "" if alive else "no answer", "the box still answers" if alive else "")
