"""The boxes of a run, and the layers that all runs share."""

from __future__ import annotations

from pathlib import Path

from ..record.cache import cache_directory
from ..sandbox import open_backend
from ..sandbox.layers import LayerStore
from ..sandbox.protocol import Backend
from ..sandbox.settings import SandboxSettings


def layer_store() -> LayerStore:
    return LayerStore(cache_directory() / "layers")


def backend_of(settings: SandboxSettings, egress_log: Path | None = None) -> Backend:
    return open_backend(settings.backend, root=settings.root, max_starting=settings.max_starting, egress_log=egress_log)
