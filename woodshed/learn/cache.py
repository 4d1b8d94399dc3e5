"""What all runs share: the cache of downloads, layers and converted policies (``WOODSHED_CACHE`` moves it); boxes."""

from __future__ import annotations

import os
from pathlib import Path

from ..sandbox import open_backend
from ..sandbox.layers import LayerStore
from ..sandbox.protocol import Backend
from ..sandbox.settings import SandboxSettings


def cache_directory() -> Path:
    return Path(os.environ.get("WOODSHED_CACHE") or Path.home() / ".cache" / "woodshed")


def layer_store() -> LayerStore:
    return LayerStore(cache_directory() / "layers")


def backend_of(settings: SandboxSettings) -> Backend:
    return open_backend(settings.backend, root=settings.root, max_starting=settings.max_starting)
