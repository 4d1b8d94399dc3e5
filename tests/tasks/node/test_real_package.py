"""One real package of the npm registry, with its dependencies. Skipped only where that cannot be reached."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.packages.node_save import lock_of
from woodshed.tasks.languages.node import npm
from woodshed.tasks.languages.node.modules import module_layers
from woodshed.tasks.packages.catalogue import Catalogue, Module, Package, load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.build import build_from_sources
from woodshed.tasks.settings import PackageTaskSettings

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


def test_tasks_from_a_real_npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fast-content-type-parse: tests in node:test, so nothing else is needed."""
    settings = PackageTaskSettings(tasks_per_package=1, kinds=("mutate",))

    async def build() -> list[Task]:
        backend = open_backend("namespace")
        try:
            if not (probe := backend.probe()).ok:
                pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
            layers = LayerStore(tmp_path / "layers")
            return await build_from_sources(
                ["npm:fast-content-type-parse@4.0.1"], settings, backend, layers, tmp_path / "out"
            )
        finally:
            await backend.close()

    try:
        (task,) = asyncio.run(build())
    except PackageError as error:
        if "cannot be reached" not in str(error):
            raise
        pytest.skip(str(error))
    assert task.info.grader == "node" and task.info.provenance["source"] == "npm:fast-content-type-parse@4.0.1"
    assert all(t.startswith("test/") for t in task.info.fail_to_pass)
    lock = load_catalogue(tmp_path / "out" / "sources.toml")
    package = lock.packages["fast-content-type-parse"]
    archive = (tmp_path / "out" / "sources" / package.file).read_bytes()
    assert package.integrity == npm.integrity_of(archive) and package.licence == "MIT" and not lock.modules


def test_modules_are_pinned_and_unpacked_into_a_layer(tmp_path: Path) -> None:
    try:
        modules, guilty = npm.resolve({"debug": "4.3.4"}, "own")
        assert [(m.place, m.version) for m in modules] == [("debug", "4.3.4"), ("ms", "2.1.2")] and not guilty
        assert npm.resolve({"debug": "4.3.4"}, "ms") == ((), ["debug"])
        package = Package("own", "1", "f", "0" * 64, "MIT", ("lib",), ("test",), language="node")
        layers = LayerStore(tmp_path / "layers")
        (name,) = module_layers(Catalogue({}, {}, {"own": modules}), package, layers, cache=tmp_path / "cache")
    except PackageError as error:
        if "cannot be reached" not in str(error):
            raise
        pytest.skip(str(error))
    folder = layers.path(name) / "node_modules"
    assert json.loads((folder / "ms" / "package.json").read_text())["version"] == "2.1.2"
    assert module_layers(Catalogue({}, {}, {"own": modules}), package, layers, cache=tmp_path / "none") == (name,)
    for file, data in lock_of(list(modules)).items():  # what the image of a task is made by
        (tmp_path / "modules").mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(data)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=tmp_path / "modules", capture_output=True
    )
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "modules" / "node_modules"
    for file in sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file()):
        assert (installed / file).read_bytes() == (folder / file).read_bytes(), file


def test_bytes_that_are_not_those_locked_are_refused(tmp_path: Path) -> None:
    wrong = Module("ms", "ms", "2.1.3", npm.integrity_of(b"other bytes"))
    with pytest.raises(PackageError) as error:
        npm.fetch([wrong], tmp_path)
    if "cannot be reached" in str(error.value):
        pytest.skip(str(error.value))
    assert "serves other bytes than are locked" in str(error.value)


def test_a_version_that_is_not_there_is_said() -> None:
    try:
        npm.pack("ms", "99.0.0")
    except PackageError as error:
        if "cannot be reached" in str(error):
            pytest.skip(str(error))
        assert "no such package or version" in str(error)
    else:
        pytest.fail("there is no such version")
