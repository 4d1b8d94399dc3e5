"""kill -9 of every process of a run, at random points of the RL stage: nothing lost, nothing counted twice.

``benchmarks/chaos.py`` does it a hundred times with two engines.
``WOODSHED_CHAOS_SEED`` repeats the points of a run that failed (its seed is in the captured output).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from real_runs import STEPS, SmokeRun, begin
from waiting import wait_until

from woodshed.weights.manifest import versions

from .prey import PLANES, Prey
from .records import batches, check_records, episodes, infra_errors

pytestmark = pytest.mark.slow


@pytest.fixture
def rng() -> random.Random:
    seed = os.environ.get("WOODSHED_CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
    print(f"to repeat: WOODSHED_CHAOS_SEED={seed}")
    return random.Random(f"chaos-{seed}")


@pytest.fixture
def root(smoke: SmokeRun, tmp_path: Path) -> Iterator[Path]:
    """A run of which only RL and its evaluation are left to do."""
    folder = tmp_path / "run"
    smoke.copy_before_rl(folder)
    yield folder
    print((tmp_path / "output").read_text()[-3000:])


def moments(root: Path, rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """A point well inside the RL stage."""
    count = rng.randint(1, 12)
    step = rng.randint(1, 2)
    version = rng.randint(0, 1)
    return rng.choice(
        [
            (f"{count} episodes stored", lambda: episodes(root) >= count),
            (f"batch {step} decided", lambda: len(batches(root)) >= step),
            (f"version {version} published", lambda: max(versions(root / "weights"), default=-1) >= version),
        ]
    )


def in_rl(root: Path) -> bool:
    return (root / "stages" / "before.json").exists() and not (root / "stages" / "rl.json").exists()


def start(root: Path, scratch: Path, prey: Prey) -> subprocess.Popen[bytes]:
    process = begin(scratch, "run", root, output=scratch / "output")
    prey.follow(process.pid)
    return process


def wait_to_finish(process: subprocess.Popen[bytes], prey: Prey) -> None:
    wait_until(lambda: prey.look() or process.poll() is not None, "the run to finish")


def assert_finished(process: subprocess.Popen[bytes], root: Path, scratch: Path, prey: Prey) -> None:
    """Ended well, with complete records, and neither a process nor a mount nor a folder of a box is left."""
    assert process.returncode == 0
    check_records(root)
    assert not infra_errors(root)
    wait_until(lambda: not prey.alive(), "every process of the run to be gone")
    assert str(scratch) not in Path("/proc/self/mounts").read_text()
    assert not list((scratch / "tmp").glob("woodshed-boxes-*"))


def test_every_plane_is_killed_during_rl(root: Path, tmp_path: Path, rng: random.Random) -> None:
    prey = Prey(root)
    process = start(root, tmp_path, prey)
    try:
        for plane in rng.sample(PLANES, len(PLANES)):
            what, reached = moments(root, rng)
            wait_until(reached, f"{what}, to kill {plane}", process)
            time.sleep(rng.uniform(0, 0.3))
            wait_until(lambda p=plane: (pid := prey.find(p)) and prey.kill(pid), f"a {plane} to kill", process)
            assert in_rl(root), f"{plane} was killed too late"
            print(f"killed {plane}: {what}")
        wait_to_finish(process, prey)
    finally:
        process.kill()
        process.wait()
    assert_finished(process, root, tmp_path, prey)


def test_the_run_itself_is_killed(root: Path, tmp_path: Path, rng: random.Random) -> None:
    prey = Prey(root)
    within_rl = moments(root, rng)
    points = [within_rl, ("RL finished", lambda: not in_rl(root))]
    for what, reached in points:
        process = start(root, tmp_path, prey)
        try:
            wait_until(reached, what, process)
            time.sleep(rng.uniform(0, 0.3))
            assert (what, reached) != within_rl or in_rl(root)
        finally:
            prey.kill(process.pid)
            process.wait()
        print(f"killed the run: {what}")
        wait_until(lambda: not prey.alive(), "the children to die with the run")
    process = start(root, tmp_path, prey)
    try:
        wait_to_finish(process, prey)
    finally:
        process.kill()
        process.wait()
    assert_finished(process, root, tmp_path, prey)


def with_two_engines(root: Path) -> None:
    """And with three times the steps, so that a fast machine is not done before the last kill: while one process is
    started again, the others go on to the end of what may be sampled ahead."""
    recipe = root / "recipe.toml"
    text = recipe.read_text()
    for old, new in (("replicas = 1\n", "replicas = 2\n"), (f"\nsteps = {STEPS}\n", f"\nsteps = {3 * STEPS}\n")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    recipe.write_text(text)


def newer(root: Path, than: int) -> Callable[[], bool]:
    return lambda: max(versions(root / "weights"), default=-1) > than


@pytest.mark.long
def test_engines_gateway_publisher_and_follower_are_killed(root: Path, tmp_path: Path, rng: random.Random) -> None:
    with_two_engines(root)
    prey = Prey(root)
    process = start(root, tmp_path, prey)
    try:
        seen = 0
        for victim in ("engine", "server", "follower", "trainer", "engine"):
            if victim == "follower":  # an engine that has just been given weights to follow
                wait_until(newer(root, max(versions(root / "weights"), default=-1)), "new weights", process)
            else:
                seen = max(seen, episodes(root)) + rng.randint(1, 2)
                wait_until(lambda n=seen: episodes(root) >= n, f"{seen} episodes, to kill {victim}", process)
                time.sleep(rng.uniform(0, 0.2))
            plane = "engine" if victim == "follower" else victim
            wait_until(lambda p=plane: prey.kill_one(p), f"a {plane} to kill", process)
            assert in_rl(root), f"{victim} was killed too late"
            print(f"killed {victim}, {episodes(root)} episodes stored")
        wait_to_finish(process, prey)
    finally:
        process.kill()
        process.wait()
    assert_finished(process, root, tmp_path, prey)
    steps = [json.loads(line) for line in (root / "metrics" / "rollouts.jsonl").read_text().splitlines()]
    engines = steps[-1]["engine"]["engines"]
    assert len(engines) == 2 and steps[-1]["engine"]["generated_tokens"] > 0
    for engine in engines:  # they ended with the run
        with pytest.raises(httpx.TransportError):
            httpx.get(engine["url"] + "/health", trust_env=False)
