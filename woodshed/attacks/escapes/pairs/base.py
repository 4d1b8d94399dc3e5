"""What an attempt against another box is, and the program that plays one side of it."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

TAKEN, STOP = "taken", "stop"
"""Files of the working folder: the attacker has taken what it can; it may end."""
_PATIENCE = 300.0


@dataclass(frozen=True)
class Pair:
    """``take`` runs in the attacker's box and says how much it got; what it holds it keeps in ``HELD``.

    ``use`` runs in the other box, alone and then beside the attacker. Its answers must be equal: what it can have of
    the same resource, or what it can see of the attacker. ``saw``, if any, tells what the attacker saw of the other.
    """

    name: str
    tries: str
    take: Callable[[], object]
    use: Callable[[], object]
    saw: Callable[[], object] | None

    @property
    def is_channel(self) -> bool:
        """Whether ``use`` looks for what the attacker says, and so differs from box to box."""
        return self.take.__module__.endswith("channels")


PAIRS: dict[str, Pair] = {}
HELD: list[object] = []
"""Keeps objects alive, with the descriptors that they own."""
libc = ctypes.CDLL(None, use_errno=True)


def pair(
    tries: str, use: Callable[[], object], saw: Callable[[], object] | None = None
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(take: Callable[[], object]) -> Callable[[], object]:
        PAIRS[take.__name__] = Pair(take.__name__, tries, take, use, saw)
        return take

    return add


def check(result: int) -> int:
    """The result of a C function. Raises OSError."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(x86_64: int, aarch64: int, *arguments: object) -> int:
    """A system call by its numbers. Raises OSError."""
    number = {"x86_64": x86_64, "aarch64": aarch64}[platform.machine()]
    return check(int(libc.syscall(ctypes.c_long(number), *arguments)))


def until_refused(take: Callable[[], object], most: int) -> str:
    """Call ``take`` until the kernel refuses; how often it did not, and what it said."""
    for count in range(most):
        try:
            HELD.append(take())
        except (OSError, MemoryError) as error:
            return f"{count}, then {type(error).__name__}: {error}"
    return f"{most}"


def in_children(count: int, work: Callable[[], object]) -> str:
    """Let ``work`` be done by as many children as can be had, which then stay."""
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
    """Play one side. ``use`` prints its answer as a JSON line, ``take`` what it saw; it leaves its own in ``TAKEN``."""
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
    """An attacker that has used up its own descriptors or space frees some."""
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
