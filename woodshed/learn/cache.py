"""The cache that all runs share: downloads, dependency layers, converted policies. ``WOODSHED_CACHE`` moves it."""

from __future__ import annotations

import os
from pathlib import Path

from ..sandbox.layers import LayerStore


def cache_directory() -> Path:
    return Path(os.environ.get("WOODSHED_CACHE") or Path.home() / ".cache" / "woodshed")


def layer_store() -> LayerStore:
    return LayerStore(cache_directory() / "layers")
