"""A scripted chat server over real HTTP, and boxes to work in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .folder_box import FolderBox

Step = dict[str, Any] | Response | Callable[[dict[str, Any]], Any]


def say(content: str | None, finish: str = "stop", **usage: int) -> dict[str, Any]:
    """A plain reply."""
    return {"message": {"role": "assistant", "content": content}, "finish_reason": finish, "usage": usage}


def call(*calls: tuple[str, Any], content: str | None = None, **usage: int) -> dict[str, Any]:
    """A reply with calls; arguments that are no string are written as JSON."""
    made = [
        {
            "id": f"c{index}",
            "type": "function",
            "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
        }
        for index, (name, args) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": made}
    return {"message": message, "finish_reason": "tool_calls", "usage": usage}


@dataclass
class Script:
    """Answers requests in order; the last step repeats. ``requests`` keeps what was asked."""

    steps: Sequence[Step]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.keys.append(request.headers["authorization"])
        step = self.steps[min(len(self.requests), len(self.steps) - 1)]
        self.requests.append(body)
        if callable(step) and not isinstance(step, Response):
            step = step(body)
            if isinstance(step, Awaitable):
                step = await step
        if isinstance(step, Response):
            return step
        usage = {"prompt_tokens": step["usage"].get("prompt", 0), "completion_tokens": step["usage"].get("sampled", 0)}
        usage["completion_tokens_details"] = {"reasoning_tokens": step["usage"].get("thinking", 0)}
        choice = {"index": 0, "message": step["message"], "finish_reason": step["finish_reason"]}
        return JSONResponse({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


@contextlib.asynccontextmanager
async def serve(script: Script) -> AsyncIterator[str]:
    """The script behind a real server on a free port."""
    app = Starlette(routes=[Route("/v1/chat/completions", script.answer, methods=["POST"])])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.force_exit = True
            await server.shutdown([listener])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def box() -> Iterator[FolderBox]:
    made = FolderBox({"ridge.py": b"def f(x):\n    return x\n", "pkg/a.py": b"import os\nA = 1\n"})
    yield made
    asyncio.run(made.close())
