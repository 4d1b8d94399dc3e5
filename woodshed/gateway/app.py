"""The gateway's ASGI application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from woodshed.cluster.service import CONTENT_TYPE
from woodshed.engine.protocol import Engine
from woodshed.gateway.dialects.chat_replies import ChatCompletions
from woodshed.gateway.dialects.messages_replies import Messages
from woodshed.gateway.dialects.responses_replies import Responses
from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.tokenizer import Tokenizer

from .admin import Admin, Follow
from .background import Background
from .endpoint import CountEndpoint, Endpoint
from .errors import ApiError
from .fields import json_object
from .journal import Journal
from .keys import Keys, client_key
from .metrics import Metrics
from .rendering import Rendering
from .settings import GatewaySettings
from .streaming import read_body
from .trajectories import FEEDBACK_EVENT, Trajectories
from .turns import Turns

if TYPE_CHECKING:  # a store needs libraries that a server without one does not load
    from .kept_sessions import KeptSessions


@dataclass
class Gateway:
    """The components behind the HTTP routes."""

    engine: Engine
    settings: GatewaySettings
    trajectories: Trajectories
    metrics: Metrics
    endpoints: dict[str, Endpoint]
    """Endpoints by path."""
    admin: Admin
    background: Background

    def routes(self) -> list[Route]:
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in self.endpoints.items()),
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.model),
            Route("/v1/feedback", self.feedback, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.prometheus),
            *self.admin.routes(),
        ]

    async def models(self, request: Request) -> Response:
        """List the model, with the fields of OpenAI's and of Anthropic's API, which do not conflict."""
        name = self.settings.model
        page = {"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name}
        return JSONResponse(page)

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        if name != self.settings.model:
            message = f"there is no model {name!r}; this server has {self.settings.model!r}"
            raise ApiError(404, "model_not_found", message)
        return JSONResponse(_model(name))

    async def feedback(self, request: Request) -> Response:
        trajectory = self.trajectories.of_key(client_key(dict(request.headers.raw)))
        if not trajectory.limits.feedback:
            raise ApiError(403, "no_feedback", "this key may not send feedback", type="permission_error")
        body = await read_body(request.receive, min(self.settings.max_body, FEEDBACK_EVENT))
        if body is None:
            return Response()  # the client disconnected
        size = sum(map(len, body))
        event = await self.background.run(size, lambda: json_object(b"".join(body)))
        self.trajectories.add_feedback(trajectory, event, size)
        self.metrics.feedback += 1
        return JSONResponse({"events": len(trajectory.feedback)})

    async def health(self, request: Request) -> Response:
        stats = self.engine.stats()
        about, status = {"status": "ok"}, 200
        if stats.get("stopped"):
            about, status = {"status": "stopped", "reason": stats["stopped"]}, 503
        elif stats.get("engines_serving") == 0:
            about = {"status": "no engine serves"}
        elif problem := stats.get("weights_problem"):
            about = {"status": "stale", "weights": problem}
        return JSONResponse({**about, "model": self.settings.model, "version": self.engine.version}, status)

    async def prometheus(self, request: Request) -> Response:
        opened = self.trajectories.by_id.values()
        gauges = {
            "open_trajectories": len(opened),
            "running_requests": sum(len(t.running) for t in opened),
            "policy_version": self.engine.version,
        }
        text = self.metrics.text(gauges, self.engine.stats())
        return PlainTextResponse(text, media_type=CONTENT_TYPE)


def build_app(
    engine: Engine,
    format: ChatFormat,
    tokenizer: Tokenizer,
    *,
    admin_key: str,
    settings: GatewaySettings | None = None,
    follow: Follow | None = None,
    journal: Journal | None = None,
    sessions: KeptSessions | None = None,
) -> Starlette:
    """Build the ASGI app of a gateway in front of ``engine``. Serve it from the event loop that ``journal``
    and ``follow`` belong to. ``sessions`` stores finished live trajectories.

    ``app.state.gateway`` is the ``Gateway``. Raises ValueError if the admin key is too short.
    """
    settings = settings or GatewaySettings()
    rendering = Rendering(format, tokenizer)
    keys = Keys(admin_key)
    metrics = Metrics()
    trajectories = Trajectories(rendering, keys, engine.release, journal)
    turns = Turns(
        engine,
        rendering,
        metrics,
        max_tokens=settings.max_tokens,
        raw_logprobs=settings.logprobs == "raw",
        journal=journal,
    )
    endpoints: dict[str, Endpoint] = {}
    counting = (Messages(settings.model), Responses(settings.model, tokenizer))
    for dialect in (ChatCompletions(settings.model, tokenizer), *counting):
        endpoints[dialect.path] = Endpoint(dialect, turns, trajectories, max_body=settings.max_body)
    for dialect in counting:
        endpoints[dialect.count_path] = CountEndpoint(dialect, turns, trajectories, max_body=settings.max_body)
    if sessions is not None:
        # the server may have been killed after finishing a trajectory and before keeping it
        sessions.keep_all(trajectories.finished())
    admin = Admin(trajectories, keys, follow, engine.stats, turns.background, sessions)
    gateway = Gateway(
        engine=engine,
        settings=settings,
        trajectories=trajectories,
        metrics=metrics,
        endpoints=endpoints,
        admin=admin,
        background=turns.background,
    )
    app = Starlette(routes=gateway.routes(), exception_handlers={ApiError: _api_error, 404: _not_found})
    app.state.gateway = gateway
    return app


def _model(name: str) -> dict[str, Any]:
    shared = {"id": name, "object": "model", "created": 0, "owned_by": "woodshed"}
    return {**shared, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)


async def _not_found(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError(404, "not_found", f"there is no {request.method} {request.url.path}"))
