"""Boxes for tests: real ones. Skipped, with the probe's reason, where the machine cannot make any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from woodshed.sandbox.namespace import NamespaceBackend
from woodshed.sandbox.probe import probe_namespace

Body = Callable[[NamespaceBackend], Awaitable[Any]]


@pytest.fixture(scope="session")
def _possible() -> None:
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))


@pytest.fixture
def with_backend(_possible: None, tmp_path: Any) -> Callable[[Body], Any]:
    """Runs a coroutine function on a backend of its own and takes that down again."""

    def run(body: Body) -> Any:
        async def main() -> Any:
            backend = NamespaceBackend(tmp_path / "state", egress_log=tmp_path / "egress.jsonl")
            try:
                return await body(backend)
            finally:
                await backend.close()

        return asyncio.run(main())

    return run
