"""Client of a vLLM server's routes other than sampling: status and RL routes (``VLLM_SERVER_DEV_MODE=1``)."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx

from woodshed.engine.protocol import EngineError, EngineLost, EngineUnfit

log = logging.getLogger(__name__)

ASK_SECONDS = 10.0
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)


class Server:
    """A vLLM server. ``url`` is its root, ``key`` its ``--api-key``. The RL routes need no key, so they must not be
    reachable from the network."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._client = httpx.AsyncClient(
            timeout=ASK_SECONDS,
            trust_env=False,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(keepalive_expiry=4.0),
        )

    async def health(self) -> None:
        """Raise EngineLost if the server is down."""
        try:
            await self.call("GET", "/health")
        except EngineError as error:
            raise EngineLost(str(error)) from None

    async def load(self) -> dict[str, int]:
        """Return the numbers of running and waiting requests of all clients."""
        text = (await self.call("GET", "/metrics")).text
        counts = {"running": 0, "waiting": 0}
        for name, value in _GAUGE.findall(text):
            counts[name] += int(float(value))
        return counts

    async def config(self) -> dict[str, Any]:
        """Return the server's model configuration. Raises EngineUnfit if it was started without the flags we need."""
        try:
            # for the first answer vLLM inspects the whole machine, which takes many seconds
            answer = await self.call("GET", "/server_info?config_format=json", timeout=120)
            model = answer.json()["vllm_config"]["model_config"]
        except EngineLost:
            raise
        except (EngineError, ValueError, KeyError, TypeError) as error:
            raise EngineUnfit(f"it does not say how it was started (VLLM_SERVER_DEV_MODE=1): {error}") from None
        if model.get("logprobs_mode") != "processed_logprobs":
            raise EngineUnfit(
                f"its logprobs_mode is {model.get('logprobs_mode')!r}, so log-probabilities would not be those of the "
                "distribution that was sampled from; start it with --logprobs-mode processed_logprobs"
            )
        return dict(model)

    async def label(self) -> str:
        """Return vLLM's label of its weights."""
        return str((await self.call("GET", "/weight_info")).json()["weight_version"])

    async def paused(self) -> bool:
        return bool((await self.call("GET", "/is_paused")).json()["is_paused"])

    async def abort(self, requests: list[str]) -> None:
        await self.call("POST", "/inference/v1/abort_requests", {"request_ids": requests})

    async def look(self, chain: str, above: int, least: int) -> list[dict[str, Any]]:
        """Return each worker's result of ``ChainTransfer.look``."""
        body = {"method": "woodshed_look", "args": [chain, str(above), str(least)]}
        return list((await self.call("POST", "/collective_rpc", body, timeout=60)).json()["results"])

    async def update(self, version: int, *, drain: bool, timeout: float) -> None:
        """Pause, copy the decoded version into the model, set its label, resume. If copying fails, the weights may be
        a mixture: the server stays paused, and the next update starts over."""
        if await self.paused():  # an earlier update was interrupted
            await self._quietly("/finish_weight_update")
        await self.call("POST", f"/pause?mode={'wait' if drain else 'keep'}", timeout=timeout)
        try:
            await self.call("POST", "/start_weight_update", {}, timeout=timeout)
        except EngineError:  # the weights are still unchanged
            await self.resume()
            raise
        await self.call("POST", "/update_weights", {"update_info": {"version": version}}, timeout=timeout)
        await self.call("POST", "/finish_weight_update", {"weight_version": str(version)}, timeout=timeout)
        await self.resume()

    async def resume(self) -> None:
        await self.call("POST", "/resume")

    async def close(self) -> None:
        await self._client.aclose()

    async def _quietly(self, path: str) -> None:
        try:
            await self.call("POST", path, {})
        except EngineLost:
            raise
        except EngineError as error:  # for example because no update had begun
            log.info("weights: %s", error)

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float = ASK_SECONDS
    ) -> httpx.Response:
        """Send a request. Raises EngineLost if the server does not answer, EngineUnfit if it refuses the key or lacks
        the route, EngineError for other errors."""
        try:
            answer = await self._client.request(method, self.url + path, json=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed in the meantime
            raise EngineLost(f"vLLM at {self.url}: {type(error).__name__}: {error}") from None
        if not answer.is_success:
            raise refused(self.url, path, answer.status_code, answer.content)
        return answer


def refused(url: str, path: str, status: int, body: bytes) -> EngineError:
    """Return the error for an unsuccessful response."""
    if status == 401:
        return EngineUnfit("it does not accept our key; give vLLM's --api-key and the gateway the same one")
    if status == 404:
        return EngineUnfit(f"it has no {path}; start it as docs/serving.md shows")
    return EngineError(f"vLLM at {url} answered {path} with {status}: {body[:300].decode(errors='replace')}")
