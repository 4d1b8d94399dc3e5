"""Box servers on a real Ray cluster of several local raylets, which are killed; no process is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from tests.chaos.prey import Prey
from woodshed.cluster.idle import IdleClock
from woodshed.cluster.node_server import PACKAGE, OtherSource, check_source, source
from woodshed.cluster.supervisor import ProgramFailed
from woodshed.record.run_directory import RunDirectory
from woodshed.run.placed import PlacedBoxes
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.sandbox.opening import open_boxes
from woodshed.sandbox.protocol import BoxSpec, SandboxError
from woodshed.sandbox.remote.placement import PlacedHosts
from woodshed.sandbox.remote.wire import HostLost
from woodshed.sandbox.settings import SandboxSettings
from woodshed.stages.boxes import check_boxes

pytestmark = pytest.mark.slow
SMALL = {
    "num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False,
    "no_monitor": True,
}  # fmt: skip
PLACED = SandboxSettings(hosts=("ray",), bases=3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes that can make boxes, and one with a copy of the package whose cache cannot be written."""
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    pytest.importorskip("ray", reason="the extra ray is not installed")
    place = tempfile.mkdtemp(prefix="ws-ray-", dir="/tmp")  # short: Ray's sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_TMPDIR": place,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_initial_delay_ms": "500",
            "PYTHONPATH": str(PACKAGE.parent),
            "WOODSHED_CACHE": f"{place}/cache",
            "TMPDIR": f"{place}/tmp",
        }.items():
            patch.setenv(name, value)
        Path(place, "tmp").mkdir()
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args=SMALL)
        try:
            made.place = place
            made.second = made.add_node(**SMALL)
            made.copy = Path(place, "copy", PACKAGE.name)
            shutil.copytree(PACKAGE, made.copy, ignore=shutil.ignore_patterns("__pycache__"))
            patch.chdir(place)  # Ray looks for modules in the folder of a driver first
            made.add_node(**SMALL, env_vars={"WOODSHED_CACHE": "/dev/null/none", "PYTHONPATH": str(made.copy.parent)})
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()
            shutil.rmtree(place)


def _until(condition: Callable[[], Any]) -> Any:
    return wait_until(condition, "the servers")


def _servers() -> dict[str, int]:
    """Processes of box servers for this cluster, by their URL."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if "woodshed.cli" in words and "--host" in words and "bases=3" in words:
            found[f"http://{words[words.index('--host') + 1]}:{words[words.index('--port') + 1]}"] = int(entry.name)
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_boxes_follow_the_nodes_and_nothing_outlives_its_owner(cluster: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    placed, prey = PlacedBoxes(PLACED, run), Prey(tmp_path)
    hosts = PlacedHosts(run.placed_boxes)

    async def new_host(backend: Any, old: set[str]) -> str:
        """The server that remains, and on which boxes are made, after the hosts ``old`` are gone."""
        clock = IdleClock()
        while True:
            box = await backend.create(BoxSpec())
            host, servers = str(box.stats()["host"]), _servers()
            if host not in old and set(servers) == {host}:
                break
            assert clock.look() < PATIENCE, f"boxes on {host}, servers on {servers}"
            await asyncio.sleep(0.1)
        assert (await box.exec("echo on")).stdout == b"on\n"
        return host

    async def work() -> None:
        backend = open_boxes(PLACED, placed=run.placed_boxes)
        boxes = [await backend.create(BoxSpec()) for _ in range(4)]
        (first, second), _ = hosts.read()
        assert sorted(box.stats()["host"] for box in boxes) == sorted([first, second] * 2)
        assert set(_servers()) == {first, second}
        prey.look()

        session = Path(cluster.head_node.get_session_dir_path())
        raylet = cluster.second.all_processes["raylet"][0].process.pid
        lost = next(url for url, pid in _servers().items() if _parent(_parent(pid)) == raylet)
        (kept,) = {first, second} - {lost}
        there = next(box for box in boxes if box.stats()["host"] == lost)
        running = asyncio.create_task(there.exec("sleep 999", timeout=1000))
        while not (await there.usage())["processes"]:
            await asyncio.sleep(0.02)
        prey.look()
        cluster.remove_node(cluster.second, allow_graceful=False)
        with pytest.raises(HostLost):
            await running
        _until(lambda: set(_servers()) == {kept})
        assert await new_host(backend, {lost}) == kept
        _until(lambda: hosts.read()[0] == (kept,))
        assert any("boxes on 1 node of the Ray cluster" in news for news in placed.check())

        os.kill(_parent(_servers()[kept]), signal.SIGKILL)  # the actor
        third = await new_host(backend, {lost, kept})

        program = placed._supervisor.programs["boxes"].process
        assert program is not None
        program.kill()
        program.wait()
        assert any("was started again" in news for news in placed.check())
        await new_host(backend, {lost, kept, third})
        prey.look()

        key = hosts.key().encode()
        logs = [path for folder in (session, run.root / "logs") for path in folder.rglob("*") if path.is_file()]
        assert len(logs) > 5 and not [path for path in logs if key in path.read_bytes()]
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert key not in entry.read_bytes()
            except OSError:
                continue
        await backend.close()

    for pid in cluster.head_node.all_processes["raylet"] + cluster.second.all_processes["raylet"]:
        prey.follow(pid.process.pid)
    try:
        said = placed.start()
        assert re.fullmatch(r"boxes on 2 nodes of the Ray cluster; left out: [\d.]+: .*Not a directory.*", said), said
        prey.follow(placed._supervisor.programs["boxes"].process.pid)  # type: ignore[union-attr]
        asyncio.run(work())
    finally:
        placed.stop()
    _until(lambda: not _servers())
    _until(lambda: not [line for line in prey.alive() if "woodshed" in line])
    assert cluster.place not in re.sub(r"\S*/ray/\S*", "", Path("/proc/self/mountinfo").read_text())
    assert not [path for path in Path(cluster.place, "tmp").iterdir() if path.name.startswith("woodshed")]


def test_another_woodshed_on_a_node_ends_the_run_before_it_begins(cluster: Any, tmp_path: Path) -> None:
    changed = cluster.copy / "cluster" / "idle.py"
    changed.write_text(changed.read_text() + "# another version\n")
    placed = PlacedBoxes(PLACED, RunDirectory(tmp_path / "run"))
    try:
        with pytest.raises(ProgramFailed, match=r'(?s)hosts = \["ray"\]: node [\d.]+: woodshed .* install the same'):
            placed.start()
    finally:
        placed.stop()
        shutil.copy(PACKAGE / "cluster" / "idle.py", changed)
    _until(lambda: not _servers())


def _program(tmp_path: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "key").write_text("k" * 32)
    command = ["-m", "woodshed.cluster.ray_placing", "--file", tmp_path / "f", "--key-file", tmp_path / "key"]
    return subprocess.run(
        [sys.executable, *map(str, command), "--key-variable", "KEY", *argv],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def test_no_node_that_can_is_an_error(cluster: Any, tmp_path: Path) -> None:
    done = _program(tmp_path, "--", "-c", "print('not', 'here'); raise SystemExit(2)")
    assert done.returncode == 2
    assert re.search(
        r"(?m)^fatal: no node of the Ray cluster can serve: [\d.]+: not here; [\d.]+: not here$", done.stderr
    )


def test_no_cluster_is_an_error_in_time(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    done = _program(tmp_path, "--seconds", "2", "--", "-c", "", RAY_ADDRESS="127.0.0.1:1", RAY_TMPDIR=str(tmp_path))
    assert done.returncode == 2 and not (tmp_path / "f").exists()
    assert "fatal: no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1: start one" in done.stderr


def test_the_source_is_checked_to_the_byte() -> None:
    check_source(source())
    with pytest.raises(OtherSource, match="install the same"):
        check_source(source().replace("(", "(0"))


def test_what_a_recipe_says_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="stands alone"):
        SandboxSettings(hosts=("ray", "local"))
    with pytest.raises(ValueError, match="makes a key itself"):
        SandboxSettings(hosts=("ray",), hosts_key_file=Path("key"))
    monkeypatch.setattr("woodshed.stages.boxes.find_spec", lambda name: None)
    with pytest.raises(SandboxError, match=r'needs Ray: pip install "woodshed\[ray\]"'):
        check_boxes(PLACED)
    with pytest.raises(SandboxError, match="only `woodshed run` places"):
        open_boxes(PLACED)
    with pytest.raises(SandboxError, match=r"admin\.key"):
        open_boxes(PLACED, placed=tmp_path)
    hosts = PlacedHosts(tmp_path)
    hosts.key_file.write_text("k" * 32)
    assert open_boxes(PLACED, placed=tmp_path).probe().reasons == ("no host of boxes is there",)
    for wrong in ("", "[]", "{}", json.dumps({"hosts": [], "left_out": {}})):
        hosts.file.write_text(wrong)
        with pytest.raises(SandboxError, match=r"hosts\.json cannot be read"):
            hosts.read()
