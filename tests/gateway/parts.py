"""Small real parts for the gateway's tests: tokenizers, a tiny policy, and an engine that says what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from woodshed.engine.protocol import Completion, ContextLengthExceeded, OnToken, Sampling
from woodshed.gateway.rendering import Rendering
from woodshed.policy.formats import FORMATS, get_format
from woodshed.policy.tokenizer import Tokenizer, train_bpe

ADMIN = "admin-key-of-the-tests"
_TEXTS = [
    "read src/main.py\nedit src/main.py\n2    return x\ntest submit ok error: no such file\n",
    '<tool_call>\n{"name":',
]


def tokenizer_for(name: str) -> Tokenizer:
    return Tokenizer(train_bpe(_TEXTS, 400, get_format(name).special_tokens))


TOKENIZERS = {name: tokenizer_for(name) for name in FORMATS}
COMPACT, HERMES = TOKENIZERS["compact"], TOKENIZERS["hermes"]


def rendering(name: str = "compact") -> Rendering:
    return Rendering(get_format(name), TOKENIZERS[name])


def tool(name: str, verb: str, template: str, *fields: str) -> dict[str, Any]:
    properties = {f: {"type": "string"} for f in fields}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of the workspace",
            "parameters": {"type": "object", "properties": properties, "required": list(fields)},
            "x-compact": {"verb": verb, "template": template},
        },
    }


TOOLS = [tool("read_file", "read", "{path}", "path"), tool("run_tests", "test", ""), tool("finish", "submit", "")]


class ScriptedEngine:
    """Answers with what ``say`` returns and remembers every prompt. Log-probabilities encode prompt and position."""

    def __init__(self, say: Callable[[list[int]], list[int]], *, context: int = 4096, routes: bool = False) -> None:
        self.say = say
        self.context = context
        self.version = 3
        self.calls: list[tuple[str | None, list[int], Completion]] = []
        self.released: list[str] = []
        self.samplings: list[Sampling] = []
        self.delay = 0.0
        self.gate: asyncio.Event | None = None
        self.routes = routes
        self.told: dict[str, Any] = {}

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, session: str | None = None, on_token: OnToken | None = None
    ) -> Completion:
        if len(tokens) >= self.context:
            raise ContextLengthExceeded(len(tokens), self.context)
        self.samplings.append(sampling)
        said = self.say(list(tokens))
        if self.gate is not None:
            await self.gate.wait()
        out = said[: sampling.max_tokens]
        ended = next((i for i, t in enumerate(out) if t in sampling.stop_ids), None)
        out = out if ended is None else out[: ended + 1]
        logprobs = [-(len(tokens) + i) / 1024 for i in range(len(out))]
        for token, logprob in zip(out, logprobs):
            if on_token is not None:
                on_token(token, logprob, self.version)
                await asyncio.sleep(self.delay)
        routes = np.arange(len(out), dtype=np.int16)[:, None, None] if self.routes else None
        if routes is not None:
            routes[-1] = -1  # the last token has not been through the network yet
        prompt = np.full((len(tokens), 1, 1), 7, np.int16) if self.routes else None
        reason = "stop" if ended is not None else "length"
        completion = Completion(out, logprobs, [self.version] * len(out), reason, routes, prompt, cached_tokens=5)  # type: ignore[arg-type]
        self.calls.append((session, list(tokens), completion))
        return completion

    def grammars_refused(self) -> str | None:
        return "it says what it is told"

    def kept_sets_refused(self) -> str | None:
        return None

    def release(self, session: str) -> None:
        self.released.append(session)

    def stats(self) -> dict[str, Any]:
        return {"running": 0, "version": self.version, "name": "scripted", **self.told}

    async def close(self) -> None:
        return None


def replies(*texts: str, tokenizer: Tokenizer = COMPACT) -> Callable[[list[int]], list[int]]:
    """Says each text in turn; control tokens by name, stop tokens included where written."""
    rest: Iterator[str] = iter(texts)
    return lambda _: tokenizer.encode(next(rest), allow_special=True)
