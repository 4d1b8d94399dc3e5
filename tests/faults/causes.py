"""All causes, by name: docs/errors.md lists them, the tests and benchmarks/faults.py try each."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore

from . import boxes, endpoints, hosts, submissions  # each registers its own
from .ground import CAUSES, Cause, Found, ground

__all__ = ["CAUSES", "Cause", "attempt", "boxes", "endpoints", "hosts", "submissions"]


async def attempt(cause: Cause, folder: Path, layers: LayerStore, backend: str = "namespace") -> tuple[Found, float]:
    """Try ``cause``; what was found and how many seconds it took."""
    async with ground(folder, layers, lambda root: open_backend(backend, root=root)) as at:
        started = perf_counter()
        return await cause.attempt(at), perf_counter() - started
