"""Errors by source: what a box answers, and what this machine lacks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .protocol import BoxError, BoxGone, SandboxError

B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")


def answered(code: int, message: str, path: str | None = None) -> BoxError:
    """The error that a box reports; also a FileNotFoundError, PermissionError and so on, as its errno says."""
    kind = _kind(code)
    return kind(code, message) if path is None else kind(code, message, path)


@cache
def _kind(code: int) -> type[BoxError]:
    base = type(OSError(code, ""))
    return BoxError if base is OSError else type(f"Box{base.__name__}", (BoxError, base), {})


def is_silent(error: BoxError) -> bool:
    """Whether a box was ended because it did not answer."""
    return isinstance(error, BoxGone) and error.errno == errno.ETIMEDOUT


def in_trusted_box(error: BoxError) -> BoxError | SandboxError:
    """``error``, of a box in which no policy's code ran: silence is this machine's there, which is too busy."""
    return SandboxError(f"a box of trusted code does not answer: {error}") if is_silent(error) else error


def of_the_machine(
    make: Callable[Concatenate[B, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[B, P], Coroutine[Any, Any, T]]:
    """Convert OSErrors of ``make``, a method that makes boxes, into SandboxError.

    Nothing untrusted runs in a box that is being made, so its errors are this machine's too.
    """

    @wraps(make)
    async def made(backend: B, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await make(backend, *args, **named)
        except OSError as error:
            raise SandboxError(f"this machine makes no box: {error}") from error

    return made
