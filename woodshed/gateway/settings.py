"""Settings of the gateway. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from woodshed.engine.settings import RoutingSettings, ServerSettings


class GatewaySettings(ServerSettings):
    """Settings of one server: a policy, its engine or engines, and the HTTP API."""

    model: str = "woodshed"
    """Name in ``/v1/models`` and in replies. A request may name any model, because a server has only one."""

    max_tokens: int = Field(default=1024, ge=1)
    """Default number of tokens to sample, for requests that do not set it."""

    logprobs: Literal["sampled", "raw"] = "sampled"
    """Default for requests without ``logprobs_mode``: replies have the log-probabilities of the distribution that was
    sampled from (``sampled``), or of the policy itself (``raw``). The record always has those of ``sampled``."""

    journal: Path | None = None
    """Directory of the journal, with which open trajectories survive a restart. None keeps them in memory only."""

    journal_fsync: bool = False
    """Call fsync after every turn, so that turns survive a power loss, not only a crash of the process."""

    sessions: Path | None = None
    """Folder in which finished live trajectories are stored, for ``woodshed benchmark build``. None stores none."""

    engines: tuple[str, ...] = ()
    """Addresses of engines to route between: ``http://...`` for ``woodshed engine``, ``vllm+http://...`` for vLLM.
    Without any, the server runs its own engine."""

    engine_key_file: Path | None = None
    """File with the admin key of ``engines``; without it, they have the same admin key as the server."""

    routing: RoutingSettings = RoutingSettings()
    """How requests are routed to engines."""
