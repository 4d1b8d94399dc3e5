"""The container engines for real, where one works (``scripts/install-podman`` fetches podman without installing it)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from tests.sandbox.pausing import pause_and_look
from woodshed.sandbox.backends.docker.backend import DockerBackend, probe_docker
from woodshed.sandbox.backends.docker.engine import ENGINES, Engine, find_engine
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Egress, Limits, SandboxError, Unsupported


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    try:
        probe = probe_docker(request.param, None)
    except SandboxError as error:
        pytest.skip(str(error))
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert "control group" in probe.limits_in_force["memory"] and "disk" not in probe.limits_in_force
    return find_engine(request.param)


@pytest.fixture
def with_engine(engine: Engine, tmp_path: Path) -> Callable[..., Any]:
    def run(body: Callable[[DockerBackend], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            before = await _left(engine)
            backend = DockerBackend(engine.name, tmp_path / "state")
            try:
                return await body(backend)
            finally:
                await backend.close()
                assert not list((tmp_path / "state").iterdir()) and await _left(engine) <= before

        return asyncio.run(main())

    return run


async def _left(engine: Engine) -> set[str]:
    listings = (("ps", "-a"), ("images",))
    rows = [
        await engine.run(*listing, "--filter", "label=woodshed.owner", "--format", "{{.ID}}") for listing in listings
    ]
    return set(" ".join(rows).split())


def test_files_commands_layers_and_forks(with_engine: Callable[..., Any], tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "layers")

    def fill(folder: Path) -> None:
        (folder / "opt/site-packages").mkdir(parents=True)
        (folder / "opt/site-packages/layered.py").write_text("NAME = 'layer'\n")
        (folder / "workspace").mkdir()
        (folder / "workspace/below.txt").write_text("below\n")

    layer = store.path(store.add("test", fill))

    async def body(backend: DockerBackend) -> None:
        files = {"a.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\necho ran $WHO\n"}
        box = await backend.create(BoxSpec(layers=(layer,), files=files, env={"WHO": "me"}, preload=("json",)))
        done = await box.exec("./run.sh; cat below.txt; id -u; python3 -c 'import layered; print(layered.NAME)'")
        assert done.stdout == b"ran me\nbelow\n1000\nlayer\n", done
        assert (await box.exec_python("import layered, json, ssl; print(layered.NAME)")).stdout == b"layer\n"
        assert await box.read("a.bin") == files["a.bin"] and (await box.exec(["no-such"])).returncode == 127
        assert (await box.exec("cat", stdin=b"x" * 300_000)).stdout == b"x" * 300_000
        late = await box.exec("sleep 60 & sleep 60", timeout=1)
        assert late.timed_out and late.returncode == -9
        await box.exec("echo new > made; sleep 1000 > /dev/null 2>&1 &")
        snapshot = await box.snapshot()
        assert snapshot.bytes > 0 and (await box.usage())["processes"] >= 1, "the box itself goes on"
        [fork] = await backend.fork(snapshot)
        await box.write("made", b"changed")
        assert await fork.read("made") == b"new\n" and (await fork.usage())["processes"] == 0
        assert (await fork.exec("cat below.txt")).stdout == b"below\n"
        await backend.drop(snapshot)
        assert (await fork.exec("echo on")).stdout == b"on\n", "a fork outlives what it was forked from"
        await fork.close()
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)
        with pytest.raises(Unsupported, match="no memory snapshots"):
            await box.snapshot("full")
        with pytest.raises(Unsupported, match="no network"):
            await backend.create(BoxSpec(egress=Egress(("example.org",))))

    with_engine(body)


def test_a_hostile_box_is_no_infrastructure_error(with_engine: Callable[..., Any]) -> None:
    limits = Limits(memory=200 << 20, processes=24, cpu_seconds=1, file_size=4 << 20, disk=24 << 20)
    beyond = (
        "import mmap, os\nfor _ in range(40):\n    if os.fork() == 0:\n        x = mmap.mmap(-1, 64 << 20)\n"
        "        x.write(b'x' * (64 << 20)); import time; time.sleep(60)\nos.wait()\n"
    )

    async def body(backend: DockerBackend) -> None:
        box = await backend.create(BoxSpec(limits=limits))
        assert (await box.exec("kill -9 -1; kill -9 1")).returncode != 0
        await box.exec(":(){ :|:& };:; sleep 1", timeout=3)
        assert b"MemoryError" in (await box.exec_python("x = bytearray(1 << 30)")).stderr
        assert (await box.exec("head -c 8000000 /dev/zero > big")).returncode != 0
        spin = await box.exec("while :; do :; done", timeout=600)
        assert spin.returncode != 0 and not spin.timed_out
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


def test_a_pause(with_engine: Callable[..., Any]) -> None:
    async def body(backend: DockerBackend) -> None:
        await pause_and_look(await backend.create(BoxSpec()))

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
    before = asyncio.run(_left(engine))
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
    assert asyncio.run(_left(engine)) <= before and not list(tmp_path.iterdir())


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
