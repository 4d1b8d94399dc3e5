"""Features of the container backends only; skipped without an engine (``scripts/install-podman`` installs podman)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from tests.sandbox.kinds import engine_runner, left_in, working_engine
from woodshed.sandbox.backends.docker.backend import DockerBackend
from woodshed.sandbox.backends.docker.engine import ENGINES, Engine
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError, Unsupported


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return working_engine(request.param)


@pytest.fixture
def with_engine(engine: Engine, tmp_path: Path) -> Callable[..., Any]:
    return engine_runner(engine, tmp_path / "state")


def test_memory_of_many_processes_is_bounded_by_the_engine(with_engine: Callable[..., Any]) -> None:
    limits = Limits(memory=200 << 20, processes=24, cpu_seconds=1, file_size=4 << 20, disk=24 << 20)
    beyond = (
        "import mmap, os\nfor _ in range(40):\n    if os.fork() == 0:\n        x = mmap.mmap(-1, 64 << 20)\n"
        "        x.write(b'x' * (64 << 20)); import time; time.sleep(60)\nos.wait()\n"
    )

    async def body(backend: DockerBackend) -> None:
        box = await backend.create(BoxSpec(limits=limits))
        assert (await box.exec_python("import json, ssl; print(json.dumps([1]))")).stdout == b"[1]\n"
        many = await box.exec_python(beyond, timeout=600)
        assert many.returncode != 0 and not many.timed_out, many
        try:
            assert (await box.exec("echo alive")).stdout in (b"alive\n", b"")
        except OSError as error:
            assert "more memory" in str(error)

    with_engine(body)


def test_any_image_will_do(with_engine: Callable[..., Any], made_root: tuple[RootStore, str], tmp_path: Path) -> None:
    """An image without Python, made from a root; and one that the engine builds upon it from a Dockerfile."""
    store, name = made_root
    note = store.note(name)

    async def body(backend: DockerBackend) -> None:
        box = await backend.create(BoxSpec(root=store.path(name), workdir=note.workdir, env=note.env))
        done = await box.exec("cat said; echo '[1]' | jq -c .; command -v python3; touch /etc/mine && echo written")
        assert done.stdout == b"tool of world\ntwo words\n[1]\nwritten\n", done
        assert (await box.exec_python("import json, sqlite3; print(json.dumps([1]))")).stdout == b"[1]\n"
        parent = (await box.snapshot()).id
        (tmp_path / "d").mkdir()
        (tmp_path / "d/data.txt").write_text("data\n")
        text = f"FROM {parent}\nENV GREETING=hello\nWORKDIR /work\nCOPY data.txt /work/data.txt\n"
        (tmp_path / "d/Dockerfile").write_text(text)
        image = await backend.build(tmp_path / "d")
        built = await backend.create(BoxSpec(image=image, workdir="/work", files={"more": b"x"}))
        done = await built.exec("echo $GREETING; echo changed >> data.txt; cat data.txt more; ls /etc/mine")
        assert done.stdout == b"hello\ndata\nchanged\nx/etc/mine\n", done
        (tmp_path / "d/Dockerfile").write_text(f"FROM {parent}\nNONSENSE\n")
        with pytest.raises(SandboxError, match=r"(?i)build.*nonsense"):
            await backend.build(tmp_path / "d")
        with pytest.raises(Unsupported, match="no layers on an image"):
            await backend.create(BoxSpec(image=image, root=tmp_path))
        with pytest.raises(SandboxError, match="did not start"):
            await backend.create(BoxSpec(image="localhost/woodshed/absent:1"))

    with_engine(body)


_OWNER = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.docker.backend import DockerBackend
from woodshed.sandbox.protocol import BoxSpec
async def main():
    backend = DockerBackend(sys.argv[1], Path(sys.argv[2]))
    box = await backend.create(BoxSpec())
    await box.snapshot()
    await box.exec("sleep 1000 > /dev/null 2>&1 &")
    print(box.container.name, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(engine: Engine, tmp_path: Path) -> None:
    before = asyncio.run(left_in(engine))
    command = [sys.executable, "-c", _OWNER, engine.name, str(tmp_path)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        name = owner.stdout.readline().strip()
        assert name in asyncio.run(engine.run("ps", "--format", "{{.Names}}"))
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    names = ("ps", "-a", "--format", "{{.Names}}")
    wait_until(lambda: name not in asyncio.run(engine.run(*names)), "the container to be gone")

    async def again() -> None:
        backend = DockerBackend(engine.name, tmp_path)
        try:
            await backend.create(BoxSpec())
        finally:
            await backend.close()

    asyncio.run(again())
    assert asyncio.run(left_in(engine)) <= before and not list(tmp_path.iterdir())


def test_an_engine_that_does_not_answer_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "client"
    client.write_text("#!/bin/sh\necho 'no daemon here' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("WOODSHED_DOCKER", str(client))
    probe = DockerBackend("docker", tmp_path / "state").probe()
    assert not probe.ok and probe.reasons == ("docker version: no daemon here",)
    monkeypatch.setenv("WOODSHED_DOCKER", str(tmp_path / "absent"))
    with pytest.raises(Unsupported, match="WOODSHED_DOCKER"):
        DockerBackend("docker")
