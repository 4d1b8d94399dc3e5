"""A build that is killed at random points and given again ends with the same folder as one that nobody disturbs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from real_runs import command, environment, woodshed

from . import repos
from .place import Place
from .test_build import tree


def test_killed_builds_end_the_same(place: Place, tmp_path: Path) -> None:
    folder = repos.write(tmp_path / "prices", repos.PROJECT)
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    arguments = ["tasks", "build", str(folder), "--per-source", "3", "--catalogue", str(place.catalogue)]
    arguments += ["--kind", "mutate", "--kind", "combine", "--exploits", "0", "--mutants", "1", "--out"]
    # Each has its own cache, so that also the wheels, the layers and the suite are interrupted.
    start = time.monotonic()
    done = woodshed(tmp_path / "a", *arguments, steady, extra=place.environment)
    length = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    rng = random.Random(5)
    for _ in range(3):
        process = subprocess.Popen(
            command(*arguments, killed),
            cwd=tmp_path,
            env=environment(tmp_path / "b", place.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.2, 0.9) * length)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for toml in killed.glob("*/task.toml"):
            assert (toml.parent / "instruction.md").exists()  # what is visible is whole
    torn = killed / ".prices.jsonl"
    if torn.exists():  # the worst place to be killed in: a verdict half written
        torn.write_bytes(torn.read_bytes()[:-7])
    last = woodshed(tmp_path / "b", *arguments, killed, extra=place.environment)
    assert last.returncode == 0, last.stderr
    assert tree(killed) == tree(steady)
    assert not list(killed.glob(".new-*"))


def test_a_full_disk_is_said_and_survived(place: Place, tmp_path: Path) -> None:
    folder, out = repos.write(tmp_path / "prices", repos.PROJECT), tmp_path / "out"
    out.mkdir()
    mount = f'mount -t tmpfs -o size=24k,mode=755 none {out} && "$@"; code=$?; ls -A {out} >&2; exit $code'
    prefix = _own_mounts(["sh", "-c", mount, "sh"])
    arguments = ["tasks", "build", str(folder), "--per-source", "2", "--catalogue", str(place.catalogue), "--out", out]
    said = woodshed(place.root, *arguments, extra=place.environment, prefix=prefix)
    assert said.returncode == 2 and "make space and give the same command again" in said.stderr, said.stderr
    assert "Traceback" not in said.stderr and ".new-" not in said.stderr
    again = woodshed(place.root, *arguments, extra=place.environment)
    assert again.returncode == 0 and len(list(out.glob("*/task.toml"))) == 2, again.stderr


def _own_mounts(inner: Sequence[str]) -> list[str]:
    """A prefix that runs a command where it may mount, without changing the machine; skips where there is none."""
    for options in (["-m"], ["-U", "-r", "-m"]):
        prefix = ["unshare", *options]
        able = (
            shutil.which("unshare")
            and not subprocess.run([*prefix, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
        )
        if able:
            return [*prefix, *inner]
    pytest.skip("no file system of our own can be mounted here")
