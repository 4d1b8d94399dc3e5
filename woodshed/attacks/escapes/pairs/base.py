"""Type and registry of attempts against another box, and the program that plays one side of an attempt."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

TAKEN, STOP = "taken", "stop"
"""Files of the working folder: the attacker writes the first when it holds all it can, and ends when the second
appears."""
_PATIENCE = 300.0


@dataclass(frozen=True)
class Pair:
    """One attempt. ``take`` runs in the attacker's box and reports how much it got; it keeps that in ``HELD``.

    ``use`` runs in the other box, first alone and then together with the attacker. It reports how much of the same
    resource it can get, or what it can see of the attacker; both reports must be equal. ``saw``, if any, reports what
    the attacker saw of the other box.
    """

    name: str
    tries: str
    take: Callable[[], object]
    use: Callable[[], object]
    saw: Callable[[], object] | None

    @property
    def is_channel(self) -> bool:
        """True for a covert channel, where ``use`` looks for a signal of the attacker and so differs between boxes."""
        return self.take.__module__.endswith("channels")


PAIRS: dict[str, Pair] = {}
HELD: list[object] = []
"""Keeps objects alive, and with them the descriptors that they own."""
libc = ctypes.CDLL(None, use_errno=True)


def pair(
    tries: str, use: Callable[[], object], saw: Callable[[], object] | None = None
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(take: Callable[[], object]) -> Callable[[], object]:
        PAIRS[take.__name__] = Pair(take.__name__, tries, take, use, saw)
        return take

    return add


def check(result: int) -> int:
    """Return the result of a C function. Raises OSError if it is negative."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(x86_64: int, aarch64: int, *arguments: object) -> int:
    """Make a system call by its number on each architecture. Raises OSError."""
    number = {"x86_64": x86_64, "aarch64": aarch64}[platform.machine()]
    return check(int(libc.syscall(ctypes.c_long(number), *arguments)))


def until_refused(take: Callable[[], object], most: int) -> str:
    """Call ``take`` until the kernel refuses, at most ``most`` times; return how often it succeeded, and the error."""
    for count in range(most):
        try:
            HELD.append(take())
        except (OSError, MemoryError) as error:
            return f"{count}, then {type(error).__name__}: {error}"
    return f"{most}"


def in_children(count: int, work: Callable[[], object]) -> str:
    """Run ``work`` in up to ``count`` child processes, which then stay; return their number and the last result."""
    ready, says = os.pipe()
    children = 0
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            try:
                said = str(work())[:200]
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"[:200]
            os.write(says, f"{said}\n".encode())
            _wait_for_stop()
            os._exit(0)
        children += 1
    lines: list[bytes] = []
    data = b""
    while data.count(b"\n") < children:
        data += os.read(ready, 4096)
    lines = data.splitlines()
    return f"{children} processes, the last: {lines[-1].decode()}" if lines else "no process"


def main(side: str, name: str) -> None:
    """Play one side. ``use`` prints its report as a JSON line; ``take`` writes its report to ``TAKEN`` and finally
    prints what it saw."""
    saw = PAIRS[name].saw
    act = PAIRS[name].take if side == "take" else PAIRS[name].use
    try:
        said = str(act())
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    if side == "take":
        leave(said)
        _wait_for_stop()
        said = str(saw()) if saw is not None else ""
    os.write(1, (json.dumps({"said": said[:400]}) + "\n").encode())
    os._exit(0)


def leave(said: str) -> None:
    """Write the attacker's report. If it has used up its own descriptors or space, free some first."""
    while True:
        try:
            with open(f"{TAKEN}.new", "w") as file:
                file.write(said[:400])
            os.rename(f"{TAKEN}.new", TAKEN)
            return
        except OSError:
            if not HELD:
                raise
            HELD.pop()


def _wait_for_stop() -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and not os.path.exists(STOP):
        time.sleep(0.05)
