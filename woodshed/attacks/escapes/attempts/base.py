"""Type and registry of attempts. An attempt returns evidence of its escape (any true value); an exception or a false
value means that it was refused."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Facts = dict[str, Any]
"""Facts about the bait on the host, see ``escapes.bait``."""


@dataclass(frozen=True)
class Attempt:
    """One attempt. ``kernel``: True if it makes dangerous system calls; it then applies only to the host's kernel."""

    name: str
    tries: str
    run: Callable[[Facts], object]
    kernel: bool


ATTEMPTS: dict[str, Attempt] = {}
_libc = ctypes.CDLL(None, use_errno=True)


def attempt(tries: str, *, kernel: bool = False) -> Callable[[Callable[[Facts], object]], Callable[[Facts], object]]:
    def add(run: Callable[[Facts], object]) -> Callable[[Facts], object]:
        ATTEMPTS[run.__name__] = Attempt(run.__name__, tries, run, kernel)
        return run

    return add


def syscall(x86_64: int, aarch64: int, *arguments: object) -> int:
    """Make a system call by its number on each architecture. Raises OSError."""
    number = {"x86_64": x86_64, "aarch64": aarch64}[platform.machine()]
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(option: int) -> int:
    return int(_libc.prctl(ctypes.c_int(option), *[ctypes.c_ulong(0)] * 4))


def looked_at(x86_64: int, aarch64: int, *arguments: object) -> str:
    """Return evidence that the kernel did not refuse a call outright: it succeeded, or rejected only the arguments.
    Raises OSError if it did refuse."""
    try:
        return f"answered {syscall(x86_64, aarch64, *arguments)}"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            raise
        return f"answered {errno.errorcode.get(error.errno or 0)}"


def found(text: str | bytes, facts: Facts) -> str:
    """Return the host's secret if it is in ``text``, else an empty string."""
    data = text if isinstance(text, bytes) else text.encode()
    return facts["secret"] if facts["secret"].encode() in data else ""


def main(name: str, facts: Facts) -> None:
    """Run one attempt and print its result as a JSON line."""
    try:
        got = ATTEMPTS[name].run(facts)
        out = {"evidence": str(got)[:200] if got else "", "refusal": "" if got else "nothing found"}
    except BaseException as error:
        out = {"evidence": "", "refusal": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(out))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads and children that an attempt left
