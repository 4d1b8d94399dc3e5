"""Client of a gateway's admin routes, for controllers and tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import httpx

from woodshed.record.fault import Fault, FaultSource
from woodshed.record.trajectory import Source

from .beginning import Beginning
from .key_limits import KeyLimits
from .segments_wire import Finished, decode

T = TypeVar("T")


class GatewayError(Fault, RuntimeError):
    """The gateway refused a request; ``status`` and ``code`` are those of its response."""

    source: ClassVar[FaultSource] = "endpoint"

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"gateway answered {status} {code}: {message}")
        self.status = status
        self.code = code


def _quoted(id: str) -> str:
    """Quote an id for a path; dots too, since the segments ``.`` and ``..`` would lead to another trajectory."""
    return quote(id, safe="").replace(".", "%2E")


_GARBAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def _read(response: httpx.Response, extract: Callable[[Any], T]) -> T:
    """Apply ``extract`` to a response's JSON. Raises GatewayError if the response is invalid."""
    try:
        return extract(response.json())
    except _GARBAGE as error:
        raise _unreadable(response, error) from error


def _unreadable(response: httpx.Response, error: Exception) -> GatewayError:
    detail = f"{type(error).__name__}: {error}: {response.content[:200]!r}"
    return GatewayError(response.status_code, "unreadable", f"its response is invalid: {detail}")


class GatewayAdmin:
    """Client of the admin routes. Raises GatewayError if a request is refused or the response is invalid,
    httpx.HTTPError if there is no response.

    Use it as an async context manager, or call ``close``; a ``client`` that is passed in stays open.
    """

    def __init__(self, base_url: str, admin_key: str, *, client: httpx.AsyncClient | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._owned = client is None
        self._client = client or httpx.AsyncClient(trust_env=False)
        self._headers = {"authorization": f"Bearer {admin_key}"}

    async def open(
        self,
        id: str,
        *,
        task: str = "",
        group: str = "",
        source: Source = "train",
        labels: Mapping[str, str] | None = None,
        limits: KeyLimits | None = None,
        beginning: Beginning | None = None,
    ) -> str:
        """Open a trajectory, with a recorded ``beginning`` if it is a fork, and return its API key. A trajectory that
        is open under this id is discarded."""
        about: dict[str, Any] = {"id": id, "task": task, "group": group, "source": source, "labels": dict(labels or {})}
        if limits is not None:
            about["limits"] = limits.model_dump()
        if beginning is not None:
            about["beginning"] = beginning.to_json()
        return _read(await self._call("POST", "/admin/trajectories", about), lambda found: str(found["key"]))

    async def resume(self, id: str) -> str | None:
        """Return a new API key of an open trajectory, for an episode that is run again from its beginning: repeated
        requests are answered from the record. None if no trajectory is open under this id."""
        try:
            answer = await self._call("POST", f"/admin/trajectories/{_quoted(id)}/resume")
        except GatewayError as error:
            if error.status == 404:
                return None
            raise
        return _read(answer, lambda found: str(found["key"]))

    async def finish(self, id: str, *, messages: bool = False) -> Finished:
        """Close a trajectory and return its record, with the conversations if ``messages``.

        If the server dies during the call, it is asked again once it is back (within a minute) and gives the same
        answer.
        """
        path = f"/admin/trajectories/{_quoted(id)}/finish{'?messages' if messages else ''}"
        try:
            answer = await self._call("POST", path)
        except httpx.TransportError:
            await self.wait_until_up(60.0)
            answer = await self._call("POST", path)
        try:
            return decode(answer.content)
        except _GARBAGE as error:
            raise _unreadable(answer, error) from error

    async def delete(self, id: str) -> None:
        """Close a trajectory and discard its record."""
        await self._call("DELETE", f"/admin/trajectories/{_quoted(id)}")

    async def follow(self, version: int, *, timeout: float = 300.0) -> int:
        """Have the engine follow the weight chain to at least ``version``, and return the version that it then
        serves."""
        answer = await self._call("POST", "/admin/weights", {"version": version}, timeout=timeout)
        return _read(answer, lambda found: int(found["version"]))

    async def health(self) -> dict[str, Any]:
        return _read(await self._call("GET", "/health"), dict)

    async def wait_until_up(self, seconds: float) -> bool:
        """Wait until a restarting server answers. Return False if it does not within ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self.health()
                return True
            except (httpx.HTTPError, GatewayError):
                if time.monotonic() > deadline:
                    return False
            await asyncio.sleep(0.1)

    async def engine(self) -> dict[str, Any]:
        """The engine's counters since it started, including ``busy_seconds`` and ``uptime_seconds``."""
        return _read(await self._call("GET", "/admin/engine"), dict)

    async def list(self) -> list[dict[str, Any]]:
        """The open trajectories."""
        return _read(await self._call("GET", "/admin/trajectories"), lambda found: list(found["trajectories"]))

    async def close(self) -> None:
        if self._owned:
            await self._client.aclose()

    async def __aenter__(self) -> GatewayAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 60.0
    ) -> httpx.Response:
        url = self.base_url + path
        response = await self._client.request(method, url, json=body, headers=self._headers, timeout=timeout)
        if response.is_success:
            return response
        try:
            error = response.json()["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            code, message = "unknown", response.text[:300]
        raise GatewayError(response.status_code, code, message)
