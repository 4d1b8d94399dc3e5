"""Settings of a box server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from woodshed.record.settings import Settings
from woodshed.sandbox.settings import SandboxSettings


class BoxServerSettings(Settings):
    """Settings of ``woodshed boxes``, which makes boxes on one host for runs on others."""

    sandbox: SandboxSettings = SandboxSettings()
    """The backend, and what must be free on this host for another box. Clients decide what a box may use and reach."""

    state: Path
    """Folder of this server: layers that clients sent, and ``egress.jsonl``. Layers stay for the next start."""

    host: str = "127.0.0.1"
    """Address to listen on. Anyone with the key can run anything in boxes here and let it use this host's network."""

    port: int = Field(default=9100, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    admin_key_file: Path | None = None
    """File that holds the key; without it the variable WOODSHED_ADMIN_KEY is read."""

    lease_seconds: float = Field(default=60.0, gt=0)
    """Seconds after which a silent client has its boxes closed; clients renew at least three times as often."""

    max_body: int = Field(default=256 << 20, ge=1 << 20)
    """Maximum size of a request in bytes, and so of the data that goes into or out of a box at once."""

    max_layer: int = Field(default=8 << 30, ge=1 << 20)
    """Maximum size of a layer in bytes."""

    shutdown_seconds: float = Field(default=5.0, ge=0)
    """Seconds that requests under way may take to end after SIGTERM."""
