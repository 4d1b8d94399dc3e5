"""Admin routes: open, finish and delete trajectories, load new weights. They need the admin key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from woodshed.cluster.service import bearer

from . import segments_wire
from .background import Background
from .beginning import Beginning
from .errors import ApiError, invalid
from .fields import json_object
from .key_limits import KeyLimits
from .keys import Keys
from .segments_wire import Finished
from .trajectories import Trajectories

if TYPE_CHECKING:
    from .kept_sessions import KeptSessions

Follow = Callable[[int], Awaitable[int]]
"""Moves the engine to at least this version of the weights; returns the version it then has."""

Stats = Callable[[], dict[str, Any]]
"""The engine's counters."""

_SOURCES = ("train", "eval", "live")


class Admin:
    """The admin routes of the open trajectories. ``follow`` is None if the server follows no weight chain, ``sessions``
    if it keeps no live sessions."""

    def __init__(
        self,
        trajectories: Trajectories,
        keys: Keys,
        follow: Follow | None,
        stats: Stats,
        background: Background,
        sessions: KeptSessions | None = None,
    ) -> None:
        self.trajectories = trajectories
        self.keys = keys
        self.follow = follow
        self.stats = stats
        self.background = background
        self.sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route("/admin/trajectories", self.open, methods=["POST"]),
            Route("/admin/trajectories", self.list, methods=["GET"]),
            Route("/admin/trajectories/{id:path}/finish", self.finish, methods=["POST"]),
            Route("/admin/trajectories/{id:path}/resume", self.resume, methods=["POST"]),
            Route("/admin/trajectories/{id:path}", self.delete, methods=["DELETE"]),
            Route("/admin/weights", self.weights, methods=["POST"]),
            Route("/admin/engine", self.engine, methods=["GET"]),
        ]

    async def open(self, request: Request) -> Response:
        self._check(request)
        data = json_object(await request.body())
        id = data.get("id")
        if not isinstance(id, str) or not id:
            raise invalid("id", "must be a non-empty string")
        if "\n" in id or id.encode("utf-8", "replace").decode() != id:
            raise invalid(
                "id", "must not have newlines or lone surrogates, which the paths of other requests cannot name"
            )
        source = data.get("source", "train")
        if source not in _SOURCES:
            raise invalid("source", f"must be one of {', '.join(_SOURCES)}")
        labels = data.get("labels") or {}
        if not isinstance(labels, dict):
            raise invalid("labels", "must be an object")
        about: dict[str, Any] = {"source": source, "labels": labels}
        for name in ("task", "group"):
            about[name] = data.get(name) or ""
            if not isinstance(about[name], str):
                raise invalid(name, "must be a string")
        if limits := data.get("limits"):
            try:
                about["limits"] = KeyLimits.model_validate(limits).model_dump(exclude_defaults=True)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False, include_input=False)[0]
                raise invalid(".".join(("limits", *map(str, first["loc"]))), first["msg"]) from None
        given = data.get("beginning")
        beginning = None if given is None else Beginning.from_json(given)
        return JSONResponse({"id": id, "key": self.trajectories.open(id, about, beginning)})

    async def resume(self, request: Request) -> Response:
        self._check(request)
        id = request.path_params["id"]
        running = list(self.trajectories.get(id).running)
        key = self.trajectories.resume(id)
        await asyncio.gather(*running, return_exceptions=True)  # requests of the old client, which were cancelled
        return JSONResponse({"id": id, "key": key})

    async def list(self, request: Request) -> Response:
        self._check(request)
        found = [
            {"id": t.id, "requests": len(t.usage), "segments": len(t.recorder.segments), "opened": t.opened, **t.about}
            for t in self.trajectories.by_id.values()
        ]
        return JSONResponse({"trajectories": found})

    async def finish(self, request: Request) -> Response:
        self._check(request)
        closed = self.trajectories.finish(request.path_params["id"])
        recorder, wanted = closed.recorder, "messages" in request.query_params
        if self.sessions is not None:  # in a thread: another process may be writing to the store
            try:
                await asyncio.to_thread(self.sessions.keep, closed)
            except OSError as error:
                raise ApiError(500, "session_not_kept", f"{error}; finish it again") from error

        def encoded() -> bytes:
            finished = Finished(
                id=closed.id,
                segments=recorder.freeze(),
                prefix_breaks=recorder.prefix_breaks,
                usage=[vars(turn) for turn in closed.usage],
                feedback=closed.feedback,
                about=closed.about,
                opened=closed.opened,
                messages=[segment.messages for segment in recorder.segments] if wanted else [],
                refusals=closed.refusals,
                ignored=dict(closed.ignored),
                repeating=closed.repeating,
            )
            return segments_wire.encode(finished)

        size = sum(len(segment.tokens) for segment in recorder.segments)
        body = await self.background.run(size, encoded)
        return Response(body, media_type=segments_wire.CONTENT_TYPE)

    async def delete(self, request: Request) -> Response:
        self._check(request)
        self.trajectories.delete(request.path_params["id"])
        return Response(status_code=204)

    async def weights(self, request: Request) -> Response:
        self._check(request)
        version = json_object(await request.body()).get("version")
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise invalid("version", "must be a policy version, an integer from 0")
        if self.follow is None:
            raise ApiError(409, "no_weight_chain", "this server follows no weight chain; start it with --weights")
        try:
            return JSONResponse({"version": await self.follow(version)})
        except TimeoutError:
            raise ApiError(504, "weights_timeout", f"version {version} has not appeared in the weight chain") from None
        except (ValueError, RuntimeError, OSError) as error:
            raise ApiError(500, "weights_failed", f"{type(error).__name__}: {error}") from error

    async def engine(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse(self.stats())

    def _check(self, request: Request) -> None:
        key = bearer(request.headers.get("authorization", "").encode("latin-1"))
        if not self.keys.is_admin(key):
            raise ApiError(401, "invalid_admin_key", "this route needs the server's admin key")
