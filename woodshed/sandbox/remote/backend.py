"""The client of one box server, as a ``protocol.Backend``."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from woodshed.sandbox.protocol import BoxSpec, Egress, Probe, Sandbox, SandboxError, Snapshot, Unsupported

from . import wire
from .box import RemoteBox
from .host import SILENCE_SECONDS, Host, refused

_PROBE_SECONDS = 90.0
_HERE = ("127.0.0.1", "localhost", "::1")


class RemoteBackend:
    """The client of ``woodshed boxes`` at ``url``; belongs to the event loop that first uses it.

    ``name``: the backend that the host must have. Raises ValueError for a malformed address.
    """

    def __init__(
        self,
        url: str,
        key: str,
        name: str = "namespace",
        *,
        egress: Callable[[dict[str, Any]], None] | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.name, self._key = name, key
        self.host = Host(url, key, name, egress, silence)
        self.where = self.host.url

    def probe(self) -> Probe:
        """Ask the host for its probe."""
        try:
            answer = httpx.get(
                f"{self.host.url}/probe",
                headers={"authorization": f"Bearer {self._key}"},
                timeout=_PROBE_SECONDS,
                trust_env=False,
            )
            if answer.status_code != 200:
                return Probe(False, (str(refused(self.host.url, answer)),))
            found = answer.json()
            if found["backend"] != self.name:
                return Probe(False, (f"{self.host.url} makes {found['backend']} boxes, not {self.name}",))
            return wire.decode_probe(found["probe"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return Probe(False, (f"box host {self.host.url}: {type(error).__name__}: {error}",))

    async def create(self, spec: BoxSpec) -> Sandbox:
        """Create a box on the host. Raises HostLost if the host does not answer."""
        self._check(spec.egress)
        await self.host.open()
        names = await asyncio.gather(*(self.host.layer(Path(layer)) for layer in spec.layers))
        head, body = wire.encode_spec(spec, names)
        return (await self._made("/boxes", head, body))[0]

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        return await self._made(f"{self._known(snapshot)}/fork", {"n": n})

    async def drop(self, snapshot: Snapshot) -> None:
        await self.host.ask(f"{self._known(snapshot)}/drop", {})

    async def close(self) -> None:
        """Close every box on the host."""
        await self.host.close()

    async def open(self) -> None:
        """Begin the lease, if there is none yet. Raises HostLost, and SandboxError if the host is unsuitable."""
        await self.host.open()

    def problem(self) -> str:
        """Return the reason why the host cannot be used now, or an empty string."""
        return "" if self.host.serving else f"{self.host.url}: {self.host.why}"

    def load(self) -> tuple[int, int, str]:
        """See ``placement.Place``; the values are those of the host's last answer."""
        return self.host.living, self.host.processors, self.host.short

    def owns(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot is on this host and was made since the server was started."""
        return snapshot.backend == self.name and snapshot.id.partition(".")[0] == self.host.instance != ""

    def _known(self, snapshot: Snapshot) -> str:
        if not self.owns(snapshot):
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of {self.host.url}, or was dropped")
        return f"/snapshots/{quote(snapshot.id, safe='')}"

    def _check(self, egress: Egress | None) -> None:
        """Refuse routes to this machine's loopback if the box's host, which opens the routes, is another machine."""
        if egress is None or urlsplit(self.host.url).hostname in _HERE:
            return
        for port, service in egress.routes.items():
            if service.rpartition(":")[0].strip("[]") in _HERE:
                raise Unsupported(
                    f"egress route {port} -> {service!r}: the host {self.host.url} cannot reach that address of this "
                    "machine; boxes that need it run without sandbox.hosts"
                )

    async def _made(self, path: str, head: dict[str, Any], body: bytes = b"") -> list[Sandbox]:
        """Request boxes from the host. If its reply is lost, the boxes are closed when the host answers again."""
        token = secrets.token_hex(8)
        try:
            reply, _ = await self.host.ask(path, {**head, "token": token}, body)
            boxes: list[Sandbox] = [RemoteBox(self.host, str(b["id"]), dict(b["stats"])) for b in reply["boxes"]]
        except (asyncio.CancelledError, wire.HostLost):
            self.host.unclosed.add(token)
            raise
        except OSError as error:
            raise SandboxError(f"box host {self.host.url}: {error}") from None
        except (KeyError, TypeError) as error:
            self.host.unclosed.add(token)
            raise wire.HostLost(f"box host {self.host.url}: its answer makes no sense: {error!r}") from None
        return boxes
