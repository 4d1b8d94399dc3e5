"""Limits of this process, for a while."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def soft_limit(kind: int, most: int) -> Iterator[None]:
    """``kind`` as in ``resource``: with ``RLIMIT_NOFILE`` of 3 nothing can be opened, with ``RLIMIT_FSIZE`` a write
    takes what fits and the next one fails."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
