"""Stands in for a vLLM server: a real HTTP server with the shapes of vLLM 0.32's routes, recorded from a running one.

It samples with our own engine. What vLLM itself does is tested against vLLM, in ``test_real.py``.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.engine.served import KEY, _no_signals
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling, TokenReport
from woodshed.engine.settings import EngineSettings
from woodshed.policy.decoder import Decoder
from woodshed.weights.follow import Follower

PREFIX = "generate-tokens-"


class Standin:
    """``config`` is what ``/server_info`` tells; ``asked`` the bodies of requests, ``calls`` the RL routes in order."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.config: dict[str, Any] = {"max_model_len": 256, "logprobs_mode": "processed_logprobs"}
        self.label, self.paused = "default", False
        self.asked: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.url = ""
        self._running: dict[str, asyncio.Task[Completion]] = {}
        self._decoded: tuple[int, Any] | None = None

    def app(self) -> Starlette:
        posts = {
            "/inference/v1/generate": self.generate,
            "/inference/v1/abort_requests": self.abort,
            "/collective_rpc": self.look,
            "/pause": self.pause,
            "/resume": self.resume,
            "/start_weight_update": self.note,
            "/update_weights": self.update,
            "/finish_weight_update": self.finish,
        }
        gets = {
            "/health": self.note,
            "/metrics": self.metrics,
            "/server_info": self.info,
            "/weight_info": self.weights,
            "/is_paused": self.is_paused,
        }
        return Starlette(
            routes=[Route(p, f, methods=["POST"]) for p, f in posts.items()] + [Route(p, f) for p, f in gets.items()]
        )

    async def generate(self, request: Request) -> Any:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        body = await request.json()
        self.asked.append(body)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        params, name = body["sampling_params"], PREFIX + body["request_id"]
        sampling = Sampling(
            params["max_tokens"],
            params["temperature"],
            params["top_p"],
            params["top_k"],
            params["min_p"],
            tuple(params["stop_token_ids"]),
            params.get("seed"),
            logit_bias={int(k): v for k, v in params.get("logit_bias", {}).items()},
            top_logprobs=params["logprobs"],
            **{name: params[name] for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")},
        )
        fresh: list[tuple[int, float, int]] = []
        reports: list[TokenReport] = []
        work = self.engine.generate(
            body["token_ids"],
            sampling,
            session=name,
            on_token=lambda *token: fresh.append(token),
            on_report=reports.append,
        )
        task = self._running[name] = asyncio.ensure_future(work)
        try:
            ended = False
            while not ended:
                await asyncio.sleep(0.002)
                ended = task.done()
                sent = fresh[:]
                tops = [_places(token, report) for token, report in zip(sent, reports)]
                del fresh[: len(sent)], reports[: len(sent)]
                if ended:
                    yield _event(name, sent, tops, task.result(), label=self._name)
                elif sent:
                    yield _event(name, sent, tops, None)
            usage = {"prompt_tokens_details": {"cached_tokens": task.result().cached_tokens}}
            yield f"data: {json.dumps({'request_id': name, 'usage': usage, 'choices': []})}\n\ndata: [DONE]\n\n"
        finally:
            task.cancel()
            self._running.pop(name, None)

    def _name(self, version: int) -> str:
        return str(version) if version else "default"

    async def abort(self, request: Request) -> JSONResponse:
        for name in (await request.json())["request_ids"]:
            if name in self._running:
                self.engine.release(name)
        return JSONResponse({})

    async def look(self, request: Request) -> JSONResponse:
        chain, above, _ = (await request.json())["args"]
        self._decoded = Follower(chain).poll()
        found = None if self._decoded is None or self._decoded[0] <= int(above) else self._decoded[0]
        return JSONResponse({"results": [{"decoded": found, "busy": False, "problem": None}]})

    async def pause(self, request: Request) -> JSONResponse:
        self.paused = True
        return await self.note(request)

    async def resume(self, request: Request) -> JSONResponse:
        self.paused = False
        return await self.note(request)

    async def update(self, request: Request) -> JSONResponse:
        assert self._decoded is not None
        assert (await request.json())["update_info"]["version"] == self._decoded[0]
        await self.engine.update_weights(*self._decoded)
        return await self.note(request)

    async def finish(self, request: Request) -> JSONResponse:
        self.label = (await request.json())["weight_version"]
        return await self.note(request)

    async def note(self, request: Request) -> JSONResponse:
        if request.method == "POST":
            self.calls.append(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        return JSONResponse({})

    async def metrics(self, request: Request) -> PlainTextResponse:
        lines = [
            f'vllm:num_requests_{name}{{engine="0",model_name="m"}} {float(self.engine.stats()[name])}'
            for name in ("running", "waiting")
        ]
        return PlainTextResponse("\n".join(["# HELP vllm:num_requests_running Running", *lines, ""]))

    async def info(self, request: Request) -> JSONResponse:
        return JSONResponse({"vllm_config": {"model_config": self.config}})

    async def weights(self, request: Request) -> JSONResponse:
        return JSONResponse({"weight_version": self.label})

    async def is_paused(self, request: Request) -> JSONResponse:
        return JSONResponse({"is_paused": self.paused})


def _places(token: tuple[int, float, int], report: TokenReport) -> list[dict[str, Any]]:
    """As vLLM has them: the sampled token first, which takes one of the places, and -9999 for no probability."""
    rest = [pair for pair in report.top if pair[0] != token[0]]
    pairs = [(token[0], token[1]), *rest][: len(report.top)] + [(0, -9999.0)]
    return [{"token_id": t, "logprob": p, "rank": 1} for t, p in pairs]


def _event(
    name: str,
    sent: list[tuple[int, float, int]],
    tops: list[list[dict[str, Any]]],
    done: Completion | None,
    label: Any = None,
) -> str:
    content = [
        {"token_id": t, "logprob": p, "rank": 1, "top_logprobs": top}
        for (t, p, _), top in zip_longest(sent, tops, fillvalue=[])
    ]
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": None,
        "token_ids": [t for t, _, _ in sent],
        "logprobs": {"content": content},
        "weight_versions": None,
        "routed_experts": None,
    }
    if done is not None:
        reason = {"cancelled": "abort"}.get(done.stop_reason, done.stop_reason)
        spans: list[dict[str, Any]] = []
        for i, version in enumerate(done.versions):
            if not spans or spans[-1]["version"] != label(version):
                spans.append({"version": label(version), "start": i, "end": i})
            spans[-1]["end"] = i + 1
        choice |= {"finish_reason": reason, "weight_versions": spans or None}
        if done.routes is not None and done.prompt_routes is not None:
            fed = np.concatenate([done.prompt_routes, done.routes])[: -1 if len(done.routes) else None]
            buffer = io.BytesIO()
            np.save(buffer, fed.astype(np.uint8))
            choice["routed_experts"] = base64.b64encode(buffer.getvalue()).decode()
    return f"data: {json.dumps({'request_id': name, 'choices': [choice]})}\n\n"


@asynccontextmanager
async def standing_in(policy: Decoder, *, version: int = 0) -> AsyncIterator[Standin]:
    engine = LocalEngine(policy, version=version, settings=EngineSettings(native="off"))  # for ``slow`` policies
    standin = Standin(engine)
    config = uvicorn.Config(standin.app(), port=0, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    standin.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield standin
    finally:
        server.should_exit = server.force_exit = True
        await task
        await engine.close()
