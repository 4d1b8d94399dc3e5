"""Where a policy that plays the roles is served."""

from __future__ import annotations

from dataclasses import dataclass, field

from woodshed.harness.endpoint import ChatEndpoint, HttpEndpoint


@dataclass(frozen=True)
class PolicyPlace:
    """An OpenAI-compatible server: ``url`` (its root or its ``/v1``), ``model``, ``key``.

    All roles share the key that a person gives, and so, behind a gateway, one trajectory.
    """

    url: str
    model: str
    key: str = field(repr=False)
    _open: list[HttpEndpoint] = field(default_factory=list, repr=False)

    async def open(self, role: str) -> ChatEndpoint:
        """The endpoint of a role. All share one, which has to be closed."""
        if not self._open:
            self._open.append(HttpEndpoint(self.url, self.key, self.model))
        return self._open[0]

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()
