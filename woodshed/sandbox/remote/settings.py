"""Settings of a box server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from woodshed.record.settings import Settings
from woodshed.sandbox.settings import SandboxSettings


class BoxServerSettings(Settings):
    """Settings of ``woodshed boxes``, which makes boxes on one host for runs on others."""

    sandbox: SandboxSettings = SandboxSettings()
    """The backend, and what must be left of this host for another box. Clients decide what a box may use and reach."""

    state: Path
    """Folder of this server: layers that clients sent, and ``egress.jsonl``. Layers stay for the next start."""

    host: str = "127.0.0.1"
    """Address to listen on. Whoever has the key runs anything in boxes here, and may open this host's network to it."""

    port: int = Field(default=9100, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    admin_key_file: Path | None = None
    """File that holds the key; without it the variable WOODSHED_ADMIN_KEY is read."""

    lease_seconds: float = Field(default=60.0, gt=0)
    """Seconds after which a silent client has its boxes closed; clients renew at least three times as often."""

    max_body: int = Field(default=256 << 20, ge=1 << 20)
    """Largest request in bytes, and so the most that goes into or out of a box at once."""

    max_layer: int = Field(default=8 << 30, ge=1 << 20)
    """Largest layer in bytes."""

    shutdown_seconds: float = Field(default=5.0, ge=0)
    """How long requests under way may take to end after SIGTERM."""
