"""The boxes of a run, and the layers that all runs share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from woodshed.record.cache import cache_directory
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.opening import open_boxes
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import SandboxError
from woodshed.sandbox.settings import RAY, SandboxSettings


def layer_store() -> LayerStore:
    return LayerStore(cache_directory() / "layers")


def backend_of(settings: SandboxSettings, egress_log: Path | None = None, placed: Path | None = None) -> Pool:
    """Open the boxes of ``settings``. ``placed``: folder with the addresses of the box servers that a run starts
    (``RunDirectory.placed_boxes``)."""
    return open_boxes(settings, egress_log, placed)


def check_boxes(settings: SandboxSettings) -> None:
    """Raise SandboxError with the reason if no boxes can be made. Nodes of a Ray cluster are probed later, when box
    servers start there."""
    if RAY in settings.hosts:
        if find_spec("ray") is None:
            raise SandboxError(
                f'sandbox.hosts = ["{RAY}"] needs Ray: pip install "woodshed[ray]", here and on every node'
            )
        return
    probe = backend_of(settings).probe()
    if not probe.ok:
        why = "\n".join(probe.reasons)
        raise SandboxError(
            f"sandbox.backend = {settings.backend!r} does not work here: {why}\n`woodshed probe` tells which ones do"
        )
