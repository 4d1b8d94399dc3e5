"""The box server, ``woodshed boxes``: boxes over HTTP. On SIGTERM it ends with all of its boxes.

Bodies are frames (``wire``); requests have the header ``x-woodshed-client``; refusals are JSON. Clients get the new
lines of the egress log that are about their boxes.

| request | what |
|---|---|
| ``POST /lease`` ``{have}`` | begin or renew the client's lease; replies with the host's state and new egress lines |
| ``POST /lease/end`` ``{have}`` | close everything of the client |
| ``POST /boxes`` | make a box |
| ``POST /boxes/ID/OP`` | an operation of ``operations``, or ``snapshot`` or ``close`` |
| ``POST /snapshots/ID/fork``, ``.../drop`` | make boxes from a snapshot; forget the snapshot |
| ``GET /layers/NAME``, ``PUT /layers/NAME`` | ask whether a layer is here; send it as a tar |
| ``GET /probe`` | get the backend's probe |
| ``GET /health``, ``GET /metrics`` | need no key |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from woodshed.cluster.service import CONTENT_TYPE, AdminKey, Announce, bearer, metric, read_admin_key
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.opening import open_pool
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import Probe, Sandbox, SandboxError, Snapshot

from . import wire
from .calls import Call, Handler
from .leases import Lease, Leases
from .operations import Reply, operate
from .settings import BoxServerSettings
from .transfer import LayersIn


class EgressLines:
    """Follows the file ``log`` from its present end; numbers the new lines from 1. Begins anew if the file has become
    shorter, as when a program that rotates logs empties it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._count = 0
        self._at = log.stat().st_size if log.exists() else 0

    def deal(self, owner: Callable[[str], Lease | None]) -> None:
        """Give each new line to the lease of its box; lines without an owner stay in the file only."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self._at = 0
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            self._count += 1
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the log was cut in the middle of a line
                row = json.loads(line)
                if (lease := owner(row["box"])) is not None:
                    lease.note(self._count, row)


class Service:
    """Serves the boxes of ``pool`` to everyone who has the key. ``probe``: the backend's probe on this host."""

    def __init__(self, pool: Pool, probe: Probe, layers: LayerStore, egress: Path, settings: BoxServerSettings) -> None:
        self.pool, self.layers, self.settings = pool, layers, settings
        self.leases = Leases(pool, settings.lease_seconds)
        self.instance = secrets.token_hex(6)
        """Identifies this run of the server: snapshots of an earlier one are gone."""
        self._egress, self._probe = EgressLines(egress), probe
        self._made = 0

    def application(self, admin_key: str) -> Starlette:
        """Build the ASGI application. Raises ValueError for an admin key that is too short."""
        self._key = AdminKey(admin_key)
        layers = LayersIn(self.layers, self._key, max_layer=self.settings.max_layer)
        return Starlette(
            routes=[
                self._route("/lease", self.renew),
                self._route("/lease/end", self.leave, lasting=True),
                self._route("/boxes", self.create),
                self._route("/boxes/{id}/snapshot", self.snapshot),
                self._route("/boxes/{id}/close", self.close, lasting=True),
                self._route("/boxes/{id}/{op}", self.operate),
                self._route("/snapshots/{id}/fork", self.fork),
                self._route("/snapshots/{id}/drop", self.drop, lasting=True),
                Route("/layers/{name}", layers, methods=["GET", "PUT"]),
                Route("/probe", self.probe),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ]
        )

    def _route(self, path: str, handler: Handler, *, lasting: bool = False) -> Route:
        call = Call(handler, self._key, self.leases, max_body=self.settings.max_body, lasting=lasting)
        return Route(path, call, methods=["POST"])

    # ---- the lease ----

    async def renew(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        have = _number(head, "have")
        self._egress.deal(self.leases.owner)
        return {
            "instance": self.instance,
            "backend": self.pool.name,
            "seconds": self.leases.seconds,
            "max_body": self.settings.max_body,
            "processors": os.cpu_count() or 1,
            "short": self.pool.short(),
            "capabilities": sorted(self._probe.capabilities),
            "egress": lease.lines(have),
        }, b""

    async def leave(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        have = _number(head, "have")
        await self.leases.end(lease.name)
        self._egress.deal(lambda box: lease if box in lease.ids else self.leases.owner(box))
        return {"egress": lease.lines(have)}, b""

    # ---- boxes ----

    async def create(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        token = _token(head)
        spec, names = wire.decode_spec(head, body)
        stack = tuple(self.layers.path(name) for name in names)
        box = await self.pool.create(replace(spec, layers=stack))
        return await self._given(lease, token, [box]), b""

    async def operate(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        box = lease.box(where["id"])
        reply, data = await operate(where["op"], box, head, body)
        return {**reply, "stats": box.stats()}, data

    async def snapshot(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        box = lease.box(where["id"])
        if head.get("kind") not in ("fs", "full"):
            raise ValueError("snapshot: kind must be 'fs' or 'full'")
        snapshot = await box.snapshot(head["kind"])
        lease.snapshots[snapshot.id] = snapshot
        return {"snapshot": wire.encode_snapshot(snapshot, self.instance), "stats": box.stats()}, b""

    async def close(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        boxes = lease.take(where["id"])
        for box in boxes:
            await box.close()
        return {"stats": boxes[0].stats()} if boxes else {}, b""

    async def fork(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        snapshot, n, token = self._snapshot(lease, where["id"]), _number(head, "n"), _token(head)
        return await self._given(lease, token, await self.pool.fork(snapshot, n)), b""

    async def drop(self, lease: Lease, where: dict[str, str], head: dict[str, Any], body: bytes) -> Reply:
        snapshot = self._snapshot(lease, where["id"])
        del lease.snapshots[snapshot.id]
        await self.pool.drop(snapshot)
        return {}, b""

    def _snapshot(self, lease: Lease, name: str) -> Snapshot:
        instance, _, id = name.partition(".")
        if instance != self.instance or id not in lease.snapshots:
            raise SandboxError(f"snapshot {name[:60]!r} is not one of this client, or was dropped")
        return lease.snapshots[id]

    async def _given(self, lease: Lease, token: str, boxes: list[Sandbox]) -> dict[str, Any]:
        if not lease.add(token, boxes):
            await asyncio.gather(*(box.close() for box in boxes))
            raise wire.HostLost("nobody waits for this box any more")
        self._made += len(boxes)
        return {"boxes": [{"id": box.id, "stats": box.stats()} for box in boxes]}

    # ---- the server ----

    async def probe(self, request: Request) -> Response:
        if not self._key.matches(bearer(request.headers.get("authorization", "").encode("latin-1"))):
            error = SandboxError("this route needs the host's admin key")
            return JSONResponse({"error": wire.encode_error(error)}, 401)
        return JSONResponse({"backend": self.pool.name, "probe": wire.encode_probe(self._probe)})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "backend": self.pool.name, "boxes": self.leases.living()})

    async def metrics(self, request: Request) -> Response:
        pool = self.pool.stats()
        rows = (
            ("living", "gauge", "Boxes alive", self.leases.living()),
            ("made_total", "counter", "Boxes made", self._made),
            ("clients", "gauge", "Clients with a lease", len(self.leases)),
            ("leases_ended_total", "counter", "Clients that went away", self.leases.ended),
            ("waited_total", "counter", "Boxes that waited for room", pool["waited"]),
            ("bases", "gauge", "Warm bases", pool["bases"]),
            ("layers", "gauge", "Layers", len(self.layers.names())),
        )
        lines = [
            line for name, kind, about, value in rows for line in metric(f"woodshed_boxes_{name}", kind, about, value)
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type=CONTENT_TYPE)


def _number(head: dict[str, Any], name: str) -> int:
    value = head.get(name)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{name}: must be an integer from 0")
    return value


def _token(head: dict[str, Any]) -> str:
    value = head.pop("token", None)
    if not isinstance(value, str) or not 8 <= len(value) <= 64:
        raise ValueError("token: must be a string of 8 to 64 characters, different for each request")
    return value


def main(settings: BoxServerSettings, announce: Announce | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ValueError, SandboxError or OSError before the first request."""
    import uvloop

    uvloop.run(serve(settings, announce))


async def serve(settings: BoxServerSettings, announce: Announce | None = None) -> None:
    """Serve in the running event loop. Raises ValueError if the backend does not work here."""
    from woodshed.cluster.service import listen

    admin_key = read_admin_key(settings.admin_key_file)
    settings.state.mkdir(parents=True, exist_ok=True)
    log = settings.state / "egress.jsonl"
    async with contextlib.AsyncExitStack() as stack:
        pool = open_pool(settings.sandbox, log)
        stack.push_async_callback(pool.close)
        probe = await asyncio.to_thread(pool.probe)
        if not probe.ok:
            raise ValueError(f"{pool.name} boxes do not work here: " + "; ".join(probe.reasons))
        service = Service(pool, probe, LayerStore(settings.state / "layers"), log, settings)
        watching = asyncio.create_task(service.leases.watch())
        stack.callback(watching.cancel)
        await listen(
            service.application(admin_key),
            host=settings.host,
            port=settings.port,
            shutdown_seconds=settings.shutdown_seconds,
            stack=stack,
            announce=announce,
        )
