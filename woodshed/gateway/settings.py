"""Settings of the gateway. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from woodshed.engine.settings import RoutingSettings, ServerSettings


class GatewaySettings(ServerSettings):
    """One server: a policy, its engine or engines, and the HTTP front."""

    model: str = "woodshed"
    """Name in ``/v1/models`` and in replies. A request may name any model: a server has one."""

    max_tokens: int = Field(default=1024, ge=1)
    """Tokens to sample where a request does not say."""

    logprobs: Literal["sampled", "raw"] = "sampled"
    """Which log-probabilities replies tell where a request does not say (``logprobs_mode``): those of the distribution
    that was sampled from, or those of the policy itself. What is recorded is always the first."""

    journal: Path | None = None
    """Directory of the journal; with it, open trajectories survive a restart. None keeps them in memory only."""

    journal_fsync: bool = False
    """Call fsync after every turn: survives power loss, not only the death of the process."""

    engines: tuple[str, ...] = ()
    """Addresses of engines to route between: ``http://...`` for ``woodshed engine``, ``vllm+http://...`` for vLLM.
    Without any, the server has an engine of its own."""

    engine_key_file: Path | None = None
    """File that holds the admin key of those engines; without it the server's own admin key is theirs too."""

    routing: RoutingSettings = RoutingSettings()
    """How requests find their engine."""
