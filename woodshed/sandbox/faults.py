"""Creates and converts errors by their source: the box, or this machine."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .protocol import BoxError, BoxGone, SandboxError

B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")


def box_error(code: int, message: str, path: str | None = None) -> BoxError:
    """Make the error that a box reports; it is also the FileNotFoundError, PermissionError, ... of its errno."""
    kind = _kind(code)
    return kind(code, message) if path is None else kind(code, message, path)


@cache
def _kind(code: int) -> type[BoxError]:
    base = type(OSError(code, ""))
    return BoxError if base is OSError else type(f"Box{base.__name__}", (BoxError, base), {})


def is_silent(error: BoxError) -> bool:
    """Return whether ``error`` means that a box was ended because it did not answer."""
    return isinstance(error, BoxGone) and error.errno == errno.ETIMEDOUT


def in_trusted_box(error: BoxError) -> BoxError | SandboxError:
    """Convert an error of a box in which no policy's code ran: if the box was silent, this machine is too busy."""
    return SandboxError(f"a box of trusted code does not answer: {error}") if is_silent(error) else error


def convert_host_errors(
    make: Callable[Concatenate[B, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[B, P], Coroutine[Any, Any, T]]:
    """Decorate a method that makes boxes: convert its OSErrors into SandboxError.

    Nothing untrusted runs in a box that is being made, so errors of the box are errors of this machine too.
    """

    @wraps(make)
    async def made(backend: B, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await make(backend, *args, **named)
        except OSError as error:
            raise SandboxError(f"this machine makes no box: {error}") from error

    return made
