"""An engine over HTTP: ``POST /generate`` streams tokens (``wire``), the rest is JSON.

| request | what |
|---|---|
| ``POST /generate`` | sample; closing the connection cancels |
| ``POST /stop`` ``{name}`` | end a request with what it has |
| ``POST /release`` ``{sessions}`` | forget sessions |
| ``POST /weights`` ``{version}`` | follow the weight chain; answers when the engine has that version |
| ``GET /stats`` | the engine's counters, its vocabulary and its context |
| ``GET /health``, ``GET /metrics`` | need no key |

``/stats`` and ``/health`` of an engine that has stopped answer 503.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from woodshed.engine.access import AdminKey, bearer
from woodshed.engine.errors import EngineClosed, EngineError
from woodshed.engine.local import LocalEngine
from woodshed.engine.prometheus import CONTENT_TYPE, engine_lines

from .generate import Generate
from .wire import error_body

Follow = Callable[[int], Awaitable[int]]
"""Move the engine to at least this version of the weights; answers the version it then has."""


def build_service(
    engine: LocalEngine, *, admin_key: str, follow: Follow | None = None, max_body: int = 16 << 20
) -> Starlette:
    """The service of ``engine``; ``follow`` is None where it follows no weight chain. Raises ValueError for an admin
    key that is too short."""
    key = AdminKey(admin_key)
    generate = Generate(engine, key, max_body=max_body)
    service = _Service(engine, key, follow, generate)
    routes = [
        Route("/generate", generate, methods=["POST"]),
        Route("/stop", service.stop, methods=["POST"]),
        Route("/release", service.release, methods=["POST"]),
        Route("/weights", service.weights, methods=["POST"]),
        Route("/stats", service.stats),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
    ]
    return Starlette(routes=routes, exception_handlers={_Refused: _refused})


class _Refused(Exception):
    def __init__(self, status: int, error: Exception) -> None:
        super().__init__(str(error))
        self.status, self.error = status, error


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, _Refused)
    return JSONResponse({"error": error_body(refused.error)}, refused.status)


class _Service:
    def __init__(self, engine: LocalEngine, key: AdminKey, follow: Follow | None, generate: Generate) -> None:
        self.engine, self.key, self.follow, self.generate = engine, key, follow, generate

    async def stop(self, request: Request) -> Response:
        name = (await self._object(request)).get("name")
        if not isinstance(name, str):
            raise _Refused(400, ValueError("name: must be a string"))
        self.generate.stop(name)
        return JSONResponse({})

    async def release(self, request: Request) -> Response:
        sessions = (await self._object(request)).get("sessions")
        if not isinstance(sessions, list) or not all(isinstance(name, str) for name in sessions):
            raise _Refused(400, ValueError("sessions: must be a list of strings"))
        for name in sessions:
            self.engine.release(name)
        return JSONResponse({})

    async def weights(self, request: Request) -> Response:
        version = (await self._object(request)).get("version")
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise _Refused(400, ValueError("version: must be a policy version, an integer from 0"))
        if self.follow is None:
            raise _Refused(409, EngineError("this engine follows no weight chain; start it with --follow"))
        try:
            return JSONResponse({"version": await self.follow(version)})
        except TimeoutError:
            raise _Refused(504, EngineError(f"version {version} has not appeared in the weight chain")) from None
        except EngineClosed as error:
            raise _Refused(503, error) from None
        except (ValueError, RuntimeError, OSError) as error:
            raise _Refused(500, EngineError(f"weights: {type(error).__name__}: {error}")) from error

    async def stats(self, request: Request) -> Response:
        self._check(request)
        self._check_open()
        fixed = {"vocabulary": self.engine.vocabulary, "context": self.engine.context}
        return JSONResponse({**self.engine.stats(), **fixed})

    async def health(self, request: Request) -> Response:
        self._check_open()
        problem = self.engine.weights_problem
        about = {"status": "stale", "weights": problem} if problem else {"status": "ok"}
        return JSONResponse({**about, "version": self.engine.version})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse("\n".join(engine_lines(self.engine.stats())) + "\n", media_type=CONTENT_TYPE)

    async def _object(self, request: Request) -> dict[str, Any]:
        self._check(request)
        try:
            data = json.loads(await request.body())
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise _Refused(400, ValueError("the request body must be a JSON object"))
        return data

    def _check_open(self) -> None:
        try:
            self.engine.check_open()
        except EngineClosed as error:
            raise _Refused(503, error) from None

    def _check(self, request: Request) -> None:
        if not self.key.matches(bearer(request.headers.get("authorization", "").encode("latin-1"))):
            raise _Refused(401, EngineError("this route needs the engine's admin key"))
