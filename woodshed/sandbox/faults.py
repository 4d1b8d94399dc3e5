"""What this machine lacks is no answer of a box."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .protocol import SandboxError

B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")


def of_the_machine(
    make: Callable[Concatenate[B, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[B, P], Coroutine[Any, Any, T]]:
    """``make``, a method of a backend that makes boxes, with SandboxError for an OSError: no descriptor, no room.

    An OSError of a box that runs is the box's own, and a submission may cause it; here nothing of one runs yet.
    """

    @wraps(make)
    async def made(backend: B, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await make(backend, *args, **named)
        except OSError as error:
            raise SandboxError(f"this machine makes no box: {error}") from error

    return made
