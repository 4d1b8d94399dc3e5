"""Runs every attempt in boxes of a backend, and says which of them got out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.attacks.escapes.attempts.base import Attempt
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import Backend, BoxSpec, Limits, Sandbox, SandboxError

from . import attempts
from .attempts import ATTEMPTS
from .bait import bait

OWN_KERNEL = frozenset({"gvisor", "microvm"})
"""Backends whose boxes ask a kernel of their own: what that answers is not the host's to fear."""

_LIMITS = Limits(memory=512 << 20, processes=32, cpu_seconds=20.0, disk=32 << 20)
_SECONDS = {"microvm": 60.0}
_USUAL_SECONDS = 15.0
"""For one attempt; an emulated guest takes its time, and an attempt that was not over says nothing."""


@dataclass(frozen=True)
class Tried:
    """``evidence`` is empty where the attempt was refused, ``refusal`` says how."""

    name: str
    tries: str
    evidence: str
    refusal: str


async def attack(backend: Backend) -> list[Tried]:
    """Every attempt that applies, in one box as long as that lives. Raises SandboxError where none can be made."""
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
    """``attack`` on a backend of its own, by name."""

    async def run() -> list[Tried]:
        backend = open_backend(name, root=root)
        try:
            return await attack(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


def applicable(backend: str) -> list[Attempt]:
    """The attempts made on a backend: all but those at a kernel that is not the host's."""
    return [attempt for attempt in ATTEMPTS.values() if not (attempt.kernel and backend in OWN_KERNEL)]


def program(name: str, facts: dict[str, Any]) -> str:
    """Python source that makes one attempt with the package in the working folder, and prints the result."""
    return (
        f"import json, os, sys\nsys.path.insert(0, os.getcwd())\nfrom attempts.base import main\nimport attempts\n"
        f"main({name!r}, json.loads({json.dumps(facts)!r}))\n"
    )


def sources() -> dict[str, bytes]:
    """The attempts as files of a package."""
    folder = Path(attempts.__file__).parent
    return {f"attempts/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}


async def _box(backend: Backend) -> Sandbox:
    return await backend.create(BoxSpec(files=sources(), limits=_LIMITS))


async def _try(box: Sandbox, attempt: Attempt, facts: dict[str, Any], seconds: float) -> Tried | None:
    """None where the box is gone afterwards."""
    try:
        done = await box.exec_python(program(attempt.name, facts), timeout=seconds)
        await box.exec("true")
    except SandboxError:
        return None
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        return Tried(attempt.name, attempt.tries, said["evidence"], said["refusal"])
    except (IndexError, ValueError, KeyError):
        how = "took too long" if done.timed_out else f"ended with {done.returncode}"
        return Tried(attempt.name, attempt.tries, "", how)


async def _kill_init(box: Sandbox) -> Tried:
    """The one whose evidence is seen from outside: the box answers no more."""
    tries = "end the first process of the box, and its answers with it"
    try:
        await box.exec("kill -9 1; kill -15 1; kill -2 1")
        alive = (await box.exec("echo alive")).stdout == b"alive\n"
    except SandboxError as error:
        return Tried("kill_init", tries, str(error), "")
    return Tried("kill_init", tries, "" if alive else "no answer", "it lives on" if alive else "")
