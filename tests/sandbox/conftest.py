"""Boxes for tests: real ones. Skipped, with the probe's reason, where the machine cannot make any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from woodshed.sandbox.backends.gvisor.backend import GvisorBackend, probe_gvisor
from woodshed.sandbox.backends.microvm.backend import MicrovmBackend, probe_microvm
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend, probe_namespace
from woodshed.sandbox.images.apt import host_suite
from woodshed.sandbox.images.harbor import build_harbor
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.protocol import BoxSpec, SandboxError

from .hosts import BoxHost, placed
from .kinds import CPU_SECONDS, layered_spec

Body = Callable[[Any], Awaitable[Any]]


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


@pytest.fixture(scope="session")
def _gvisor() -> None:
    probe = probe_gvisor(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert {"full_snapshot", "fork"} <= probe.capabilities


@pytest.fixture
def with_gvisor(_gvisor: None, tmp_path: Path) -> Callable[[Body], Any]:
    """The same on gVisor; nothing is left of the backend afterwards."""

    def run(body: Body) -> Any:
        async def main() -> Any:
            backend = GvisorBackend(tmp_path / "state", egress_log=tmp_path / "egress.jsonl")
            try:
                return await body(backend)
            finally:
                await backend.close()
                assert not (tmp_path / "state").exists() or not list((tmp_path / "state").iterdir())

        return asyncio.run(main())

    return run


@pytest.fixture(scope="package")
def _microvm() -> None:
    probe = probe_microvm(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert {"full_snapshot", "fork"} <= probe.capabilities


@pytest.fixture(scope="package")
def with_microvm(_microvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Body], Any]]:
    """One backend and one loop for all tests: what costs time is a guest's boot. Boxes are closed by their tests."""
    root = tmp_path_factory.mktemp("microvm") / "state"

    async def make() -> MicrovmBackend:
        return MicrovmBackend(root)

    with asyncio.Runner() as runner:
        backend = runner.run(make())
        yield lambda body: runner.run(body(backend))
        runner.run(backend.close())
    assert not list(root.iterdir())


@pytest.fixture(scope="package")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BoxSpec]:
    """The specification of the contract's boxes, by kind."""
    folder = tmp_path_factory.mktemp("layers")
    return lambda name: layered_spec(folder, CPU_SECONDS.get(name, 3))


@pytest.fixture(scope="module")
def hosts(_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BoxHost]]:
    """Two box servers."""
    both = [BoxHost(tmp_path_factory.mktemp(name), "--lease", 3) for name in ("first", "second")]
    try:
        yield [host.wait() for host in both]
    finally:
        for host in both:
            host.stop()


@pytest.fixture
def with_hosts(hosts: list[BoxHost]) -> Callable[[Body], Any]:
    """The same over both hosts; nothing is left on them."""

    def run(body: Body) -> Any:
        async def main() -> Any:
            backend = placed(*hosts)
            try:
                return await body(backend)
            finally:
                await backend.close()
                assert [host.living() for host in hosts] == [0, 0]

        return asyncio.run(main())

    return run


@pytest.fixture(scope="session")
def _debian() -> str:
    try:
        return host_suite()
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def environment(_debian: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment folder of a Harbor task."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "src/pkg").mkdir(parents=True)
    (folder / "src/pkg/mod.txt").write_text("copied\n")
    (folder / "tool.sh").write_text("#!/bin/sh\necho tool of $NAME\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "Dockerfile").write_text(
        "# the release that this machine runs\n"
        f"FROM debian:{_debian}-slim AS base\n"
        "ARG WHO=world\nENV NAME=$WHO MODE='two words'\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends \\\n    jq \\\n"
        "    && rm -rf /var/lib/apt/lists/* && echo after > /after\n"
        "WORKDIR /app\nWORKDIR inner\nCOPY src .\nCOPY tool.sh /usr/local/bin/tool\n"
        'RUN tool > said && ln -s /app/inner/said /etc/link && rm /usr/bin/yes && echo "$MODE" >> said\n'
        'EXPOSE 80\nCMD ["sh"]\n'
    )
    return folder


@pytest.fixture(scope="session")
def made_root(_possible: None, environment: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RootStore, str]:
    """A store with a root made from that folder: real packages, real commands in a box."""
    store = RootStore(tmp_path_factory.mktemp("made") / "roots")

    async def build() -> str:
        backend = NamespaceBackend(tmp_path_factory.mktemp("state"))
        try:
            return await build_harbor(store, environment, backend, minimal=True)
        finally:
            await backend.close()

    try:
        return store, asyncio.run(build())
    except SandboxError as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))
