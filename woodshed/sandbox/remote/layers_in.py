"""``GET`` and ``PUT /layers/NAME``: a layer goes to disk as it comes, is checked, and is there."""

from __future__ import annotations

import asyncio
import tempfile
from typing import IO

from starlette.types import Receive, Scope, Send

from woodshed.engine.access import AdminKey, bearer
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError

from .calls import TooLarge, refuse, reply
from .transfer import unpack

_TAR = 2
"""A tar is at most this much larger than what it holds, and a mebibyte: small files cost two blocks each."""


class LayersIn:
    def __init__(self, store: LayerStore, key: AdminKey, *, max_layer: int) -> None:
        self._store, self._key, self._most = store, key, max_layer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, name = dict(scope["headers"]), scope["path_params"]["name"]
        if not self._key.matches(bearer(headers.get(b"authorization"))):
            await refuse(send, 401, SandboxError("this route needs the host's admin key"))
            return
        try:
            self._store.path(name)
        except SandboxError as error:
            if scope["method"] == "GET":
                await refuse(send, 404, error)
                return
        else:
            await reply(send, 200, "application/json", b"{}")
            return
        self._store.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._store.root) as file:
            try:
                if not await self._spool(receive, file):
                    return
                await asyncio.to_thread(unpack, file, name, self._store, most=self._most)
            except TooLarge as error:
                await refuse(send, 413, SandboxError(str(error)))
            except ValueError as error:
                await refuse(send, 400, error)
            else:
                await reply(send, 200, "application/json", b"{}")

    async def _spool(self, receive: Receive, file: IO[bytes]) -> bool:
        """False where the client left before all of it had come."""
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            size += len(message.get("body", b""))
            if size > _TAR * self._most + (1 << 20):
                raise TooLarge(f"the layer is larger than {self._most} bytes (max_layer of this host)")
            file.write(message.get("body", b""))
            if not message.get("more_body", False):
                file.seek(0)
                return True
