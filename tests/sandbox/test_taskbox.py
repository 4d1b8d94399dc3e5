"""The box of a task, and the settings it may come from."""

from __future__ import annotations

import os
import random
import tempfile

import pytest
from pydantic import ValidationError

from woodshed.record.task import TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits, SandboxError
from woodshed.sandbox.settings import SandboxSettings
from woodshed.sandbox.taskbox import agent_box_spec, box_spec, first_commit


def _task(path, workspace, layers=(), family="harbor"):
    info = TaskInfo(layers=layers, workdir="/workspace", family=family)
    tests = {"test.sh": b"#!/bin/sh\n"}
    return save_task(path, name="org/x", instruction="do", info=info, workspace=workspace, tests=tests, solution={})


def test_small_workspaces_travel_as_files_and_changes_are_seen(with_backend, tmp_path):
    store = LayerStore(tmp_path / "layers")
    layer = store.add("dep", lambda folder: (folder / "opt").mkdir())
    task = _task(tmp_path / "task", {"a.py": b"1", "sub/b.py": b"2"}, (layer,))
    spec = box_spec(task, store)
    assert spec.files == {"/workspace/a.py": b"1", "/workspace/sub/b.py": b"2"}
    assert spec.layers == (store.path(layer),) and spec.limits == Limits()
    assert box_spec(task, store).files is spec.files  # read once

    async def body(backend):
        box = await backend.create(spec)
        assert await box.get(["**"]) == {"a.py": b"1", "sub/b.py": b"2"}

    with_backend(body)
    again = _task(tmp_path / "task", {"a.py": b"3"}, (layer,))
    os.utime(tmp_path / "task" / "task.toml", ns=(1, 1))
    assert box_spec(again, store).files["/workspace/a.py"] == b"3"
    with pytest.raises(SandboxError, match="not in"):
        box_spec(_task(tmp_path / "other", {}, ("gone-" + "0" * 24,)), store)


def test_a_large_workspace_becomes_a_layer_that_can_be_written(with_backend, tmp_path):
    store = LayerStore(tmp_path / "layers")
    big = {f"data{n}.bin": bytes([n]) * (1 << 20) for n in range(5)}
    task = _task(tmp_path / "task", big)
    spec = box_spec(task, store, limits=Limits(disk=16 << 20))
    assert spec.files == {} and len(spec.layers) == 1

    async def body(backend):
        box = await backend.create(spec)
        assert await box.read("data3.bin", max_bytes=4) == b"\3\3\3\3"
        await box.write("data3.bin", b"new")
        await box.write("fresh", b"x")
        assert (await backend.create(spec)).id != box.id

    with_backend(body)


GIVEN = {"a.py": b"one\n", "sub/b c.py": b"two\n", 'we"ird\n\\x': b"", ".gitignore": b"*.py\n", "git~1/c": b"\xff\0"}


@pytest.mark.parametrize("large", [False, True])
def test_an_agent_finds_a_repository_of_one_commit(with_backend, tmp_path, large):
    given = GIVEN | ({f"data{n}.bin": random.Random(n).randbytes(1 << 20) for n in range(5)} if large else {})
    task = _task(tmp_path / "task", given)
    store = LayerStore(tmp_path / "layers")
    spec = agent_box_spec(task, store, limits=Limits(disk=32 << 20))
    assert (spec.files == {}) == large
    assert not any(".git/" in name for name in box_spec(task, store).files)  # graders need none

    async def body(backend):
        box = await backend.create(spec)

        async def git(arguments):
            done = await box.exec("git " + arguments)
            assert done.returncode == 0, done.stderr
            return done.stdout.decode()

        assert await git("status --porcelain --ignored") == ""
        assert await git("log --all --reflog --format='%an %ad %s' --date=unix") == "box 946684800 Given\n"
        assert (await git("ls-files -z")).split("\0")[:-1] == sorted(given)
        assert (await git("-c fsck.hasDotgit=ignore fsck --strict --unreachable")) == ""
        await box.write("a.py", b"changed\n")
        assert "-one\n+changed\n" in await git("diff")
        await git("commit -qam mine && git checkout -q HEAD~1")
        assert await box.read("a.py") == b"one\n"

    with_backend(body)


def test_what_brings_a_history_of_its_own_gets_no_other(tmp_path):
    assert first_commit({"a.py": b"", "lib/.git/HEAD": b"ref: refs/heads/x\n"}) == {}
    assert first_commit({}) == {}
    once = first_commit(GIVEN)
    assert once == first_commit(dict(reversed(GIVEN.items()))) and ".git/HEAD" in once


def test_a_commit_that_fails_is_a_failure_of_the_sandbox(tmp_path, monkeypatch):
    with pytest.raises(SandboxError, match="git fast-import could not commit"):
        first_commit({"a//b": b""})  # no path that a folder holds
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(SandboxError, match=r"could not be committed: .*gone"):
        first_commit({"a": b""})


def test_synthetic_tasks_and_installs_are_no_repositories(tmp_path):
    for family, found in (("synthetic", False), ("install", False), ("package", True), ("harbor", True)):
        task = _task(tmp_path / family, {"a.py": b"1"}, family=family)
        files = agent_box_spec(task, LayerStore(tmp_path / "layers")).files
        assert ("/workspace/.git/HEAD" in files) == found


def test_settings_carry_the_vetted_limits():
    assert SandboxSettings().limits() == Limits()
    assert SandboxSettings(memory=None, processes=10).limits() == Limits(memory=None, processes=10)
    with pytest.raises(ValidationError):
        SandboxSettings(backend="chroot")
    assert all(field.description for field in SandboxSettings.model_fields.values())
