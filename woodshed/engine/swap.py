"""A weight swap that waits for the end of an iteration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from .settings import KvPolicy


@dataclass(eq=False)
class Swap:
    """``future`` gets the seconds for which sampling stood still."""

    version: int
    state: Mapping[str, Tensor]
    kv: KvPolicy
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[float]
