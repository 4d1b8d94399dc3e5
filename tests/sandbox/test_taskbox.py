"""The box of a task, and the settings it may come from."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from woodshed.record.task import TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits, SandboxError
from woodshed.sandbox.settings import SandboxSettings
from woodshed.sandbox.taskbox import box_spec


def _task(path, workspace, layers=()):
    info = TaskInfo(layers=layers, workdir="/workspace")
    tests = {"test.sh": b"#!/bin/sh\n"}
    return save_task(
        path, name="org/x", instruction="do", info=info, workspace=workspace, tests=tests, solution={}
    )  # fmt: skip


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


def test_settings_carry_the_vetted_limits():
    assert SandboxSettings().limits() == Limits()
    assert SandboxSettings(memory=None, processes=10).limits() == Limits(memory=None, processes=10)
    with pytest.raises(ValidationError):
        SandboxSettings(backend="chroot")
    assert all(field.description for field in SandboxSettings.model_fields.values())
