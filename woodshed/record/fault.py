"""Failures that carry where they came from. The class decides it, so no failure becomes one of another source."""

from __future__ import annotations

import errno
from typing import ClassVar, Literal

FaultSource = Literal["box", "host", "endpoint", "task"]

_SHORTAGES = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR,
})  # fmt: skip


class Fault(Exception):
    """``source``: ``box`` counts against whoever ran in it; ``host`` and ``endpoint`` are tried again, then masked;
    ``task`` is masked at once: the task cannot be graded here, whatever is handed in."""

    source: ClassVar[FaultSource]


class HostFault(Fault):
    """This machine failed or lacks something."""

    source: ClassVar[FaultSource] = "host"


def is_shortage(error: OSError) -> bool:
    """Whether an error of this machine's own files says that the machine lacks something now, and nothing of the
    file: it is there, or is not, when the machine has it again."""
    return error.errno in _SHORTAGES
