"""Base class of failures whose class says what caused them, so that a failure is never attributed to another source."""

from __future__ import annotations

import errno
from typing import ClassVar, Literal

FaultSource = Literal["box", "host", "endpoint", "task", "replay"]

_SHORTAGES = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EAGAIN,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EINTR,
    }
)


class Fault(Exception):
    """A failure with its ``source``.

    ``box`` counts against the code that ran in the box; ``host`` and ``endpoint`` are retried, then masked; ``task`` is
    masked at once, because the task cannot be graded here, whatever the submission; ``replay`` is masked at once too:
    the box of a fork did not repeat its parent's beginning.
    """

    source: ClassVar[FaultSource]


class HostFault(Fault):
    """This machine failed or is out of a resource."""

    source: ClassVar[FaultSource] = "host"


def is_shortage(error: OSError) -> bool:
    """Return whether an error of this machine's file system means that the machine is out of a resource, so that it
    says nothing about the file."""
    return error.errno in _SHORTAGES
