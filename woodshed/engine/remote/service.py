"""HTTP server of one engine: ``woodshed engine``, or ``python -m woodshed.engine.remote.service --settings FILE``.

| request | effect |
|---|---|
| ``POST /generate`` | sample, streamed in the format of ``wire``; closing the connection cancels |
| ``POST /stop`` ``{name}`` | end a request with the tokens it has |
| ``POST /release`` ``{sessions}`` | forget sessions |
| ``POST /weights`` ``{version}`` | follow the weight chain; answers when the engine has that version |
| ``GET /stats`` | the engine's counters, vocabulary and context |
| ``GET /health``, ``GET /metrics`` | need no key |

All but ``/generate`` answer in JSON, ``/metrics`` in Prometheus text. ``/stats`` and ``/health`` of an engine that has
stopped answer 503.

On SIGTERM the server accepts no new requests and finishes running ones within ``shutdown_seconds``; a router sends new
requests to other engines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from woodshed.cluster.service import CONTENT_TYPE, AdminKey, Announce, bearer, engine_lines, read_admin_key
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import EngineClosed, EngineError
from woodshed.engine.settings import EngineServerSettings

from .generate import Generate
from .wire import error_body

Follow = Callable[[int], Awaitable[int]]
"""Moves the engine to at least this version of the weights; returns the version it then has."""


def build_service(
    engine: LocalEngine, *, admin_key: str, follow: Follow | None = None, max_body: int = 16 << 20
) -> Starlette:
    """Build the HTTP app of ``engine``; ``follow`` is None if it follows no weight chain. Raises ValueError if the
    admin key is too short."""
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


def main(settings: EngineServerSettings, announce: Announce | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ValueError, FileNotFoundError or OSError before the first request,
    EngineClosed if the engine stops."""
    import uvloop

    uvloop.run(serve(settings, announce))


async def serve(settings: EngineServerSettings, announce: Announce | None = None) -> None:
    """Load the policy, catch up with its weight chain and serve, in the running event loop."""
    admin_key = read_admin_key(settings.admin_key_file)

    from woodshed.cluster.service import listen
    from woodshed.engine.opening import open_engine

    async with contextlib.AsyncExitStack() as stack:
        opened = await open_engine(settings, stack, gpu=settings.gpu)
        follow = None if opened.chain is None else opened.chain.follow
        app = build_service(opened.engine, admin_key=admin_key, follow=follow, max_body=settings.max_body)
        await listen(
            app,
            host=settings.host,
            port=settings.port,
            shutdown_seconds=settings.shutdown_seconds,
            ready_file=settings.ready_file,
            stack=stack,
            stopped=opened.engine.stopped,
            announce=announce,
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="woodshed.engine.remote.service", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="JSON file of EngineServerSettings")
    given = parser.parse_args()
    try:
        main(EngineServerSettings.model_validate_json(given.settings.read_bytes()))
    except (ValueError, FileNotFoundError) as problem:  # a restart would fail again
        print(f"woodshed engine: {problem}", file=sys.stderr)
        sys.exit(2)
    except (OSError, EngineError) as problem:
        sys.exit(f"woodshed engine: {problem}")
