"""What other Harbor tools get of a built task: its test.sh for real, its Dockerfile, its task.toml field by field."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from woodshed.record.task import Task, TaskInfo
from woodshed.sandbox.images.dockerfile import read_dockerfile
from woodshed.tasks.packages import harbor_check
from woodshed.tasks.packages.catalogue import Catalogue, Package, Wheel, load_catalogue
from woodshed.tasks.packages.harbor import python_image

from .conftest import Built
from .harbor_box import rewards

SOURCE = "tinyshapes/shapes.py"
HOOK = b"""import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""
SKIP = b"import unittest\n\nraise unittest.SkipTest('not today')\n"
SKIP_INSIDE = """import unittest


def area(width, height):
    raise unittest.SkipTest("not today")


diagonal = area


class Box:
    def __init__(self, width, height):
        area(width, height)
"""


def test_its_own_script_rewards_the_solution_and_nothing_else(built: Built) -> None:
    task = built.tasks[0]
    gold = task.solution_files()
    tests = b"def test_area():\n    pass\n"
    changes: dict[str, dict[str, bytes | None]] = {
        "nothing": {},
        "tests that are skipped": {SOURCE: SKIP_INSIDE.encode()},
        "modules that are skipped": {SOURCE: SKIP},
        "a hook beside the code": {"conftest.py": HOOK},
        "a hook beside the tests": {"tests/conftest.py": HOOK},
        "a hook in the package": {"tinyshapes/conftest.py": HOOK},
        "another configuration": {"pytest.ini": b"[pytest]\naddopts = --co\n", "setup.cfg": b"[tool:pytest]\n"},
        "an interpreter that starts otherwise": {"sitecustomize.py": b"import os\nos._exit(0)\n"},
        "other tests": {"tests/test_shapes.py": tests},
        "the end of the process": {SOURCE: b"import os\nos._exit(0)\n"},
        "no code": {SOURCE: None},
    }
    told = dict(zip(changes, rewards(task, built.layers, list(changes.values()))))
    assert {name for name, (reward, _) in told.items() if reward != "0"} == set(), told
    assert "required tests passed" in told["nothing"][1] and "skipped" in told["tests that are skipped"][1]
    whole, tidied = rewards(task, built.layers, [gold, {**gold, "conftest.py": b"raise SystemExit(3)\n"}])
    assert (whole[0], tidied[0]) == ("1", "1"), (whole, tidied)


def test_configuration_that_a_task_begins_with_stays(built: Built, tmp_path: Path) -> None:
    task = built.tasks[0]
    shutil.copytree(task.path, tmp_path / "task")
    own = b"VALUE = 1\n"
    place = tmp_path / "task/tests/required.json"
    asked = json.loads(place.read_text())
    asked["kept"]["tinyshapes/conftest.py"] = hashlib.sha256(own).hexdigest()
    place.write_text(json.dumps(asked))
    gold = {**task.solution_files(), "tinyshapes/__init__.py": b"from . import conftest\n"}
    changes = [{**gold, "tinyshapes/conftest.py": own}, {**gold, "tinyshapes/conftest.py": own + b"# more\n"}]
    same, other = rewards(Task.load(tmp_path / "task"), built.layers, changes)
    assert (same[0], other[0]) == ("1", "0"), (same, other)


def test_its_image_has_what_its_layers_have(built: Built) -> None:
    (wheel,) = load_catalogue(Path(built.settings.catalogue)).wheels["pytest"]
    for task in built.tasks:
        folder = task.path / "environment"
        assert (folder / "requirements.txt").read_text() == f"testing==1.0 --hash=sha256:{wheel.sha256}\n"
        read = read_dockerfile(folder / "Dockerfile")
        assert re.fullmatch(r"python:3\.\d+-slim", read.image)
        steps = [(step.kind, step.words) for step in read.steps]
        (command,) = (words[0] for kind, words in steps if kind == "RUN")
        assert "--require-hashes" in command and "--target /opt/site-packages" in command
        env = dict(words for kind, words in steps if kind == "ENV")
        assert env == task.config["environment"]["env"] and env["PYTHONPATH"] == "/opt/site-packages:/workspace"
        assert steps[-2:] == [("WORKDIR", ("/workspace",)), ("COPY", ("workspace", "/workspace"))]


def test_an_image_with_metadata_and_paths_that_need_quotes() -> None:
    wheel = Wheel("b", "2.0", "b-2.0-py3-none-any.whl", "0" * 64)
    package = Package("a", "1", "", "0" * 64, "MIT", ("a",), ("t",), needs=("more",), metadata="a.b==1.5")
    catalogue = Catalogue({}, {"pytest": (), "more": (wheel,)})
    made = python_image(catalogue.furnished(package), {"PYTHONPATH": 'x "y" $z'}, "/workspace")
    assert made["metadata/a_b-1.5.dist-info/METADATA"].endswith(b"Name: a.b\nVersion: 1.5\n")
    text = made["Dockerfile"].decode()
    assert "COPY metadata /opt/site-packages\n" in text and 'ENV PYTHONPATH="x \\"y\\" \\$z"\n' in text
    assert made["requirements.txt"] == b"b==2.0 --hash=sha256:" + b"0" * 64 + b"\n"
    assert "requirements.txt" not in python_image(package, {}, "/workspace")


ROOT = {
    "schema_version": str, "source": str, "multi_step_reward_strategy": str, "artifacts": list, "task": dict,
    "metadata": dict, "agent": dict, "verifier": dict, "environment": dict, "solution": dict, "steps": list,
}  # fmt: skip
TABLES: dict[str, dict[str, Any]] = {
    "task": {"name": str, "version": str, "description": str, "authors": list, "keywords": list},
    "agent": {"timeout_sec": float, "user": str, "network_mode": str, "allowed_hosts": list},
    "verifier": {
        "timeout_sec": float, "env": dict, "user": str, "network_mode": str, "allowed_hosts": list,
        "environment_mode": str, "environment": dict, "collect": list,
    },
    "environment": {
        "build_timeout_sec": float, "docker_image": str, "os": str, "cpus": int, "memory_mb": int, "storage_mb": int,
        "gpus": int, "gpu_types": list, "tpu": dict, "network_mode": str, "allowed_hosts": list, "mcp_servers": list,
        "env": dict, "skills_dir": str, "workdir": str, "healthcheck": dict,
    },
    "solution": {"env": dict},
}  # fmt: skip
"""The fields of Harbor's schema 1.4, and what each holds."""


def follows_harbor(task: Task) -> None:
    config = task.config
    assert config["schema_version"] == "1.4" and set(config) <= set(ROOT)
    for name, kind in ROOT.items():
        assert name not in config or isinstance(config[name], kind), name
    for table, known in TABLES.items():
        for name, value in config.get(table, {}).items():
            assert name in known, f"[{table}] {name}"
            assert isinstance(value, known[name]), f"[{table}] {name} = {value!r}"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", config["task"]["name"])
    assert config["verifier"]["environment_mode"] == "separate" and config["verifier"]["timeout_sec"] >= 60
    environment = config["environment"]
    assert environment["network_mode"] == "no-network" and environment["workdir"] == task.info.workdir == "/workspace"
    assert all(isinstance(value, str) for value in environment.get("env", {}).values())
    assert config["artifacts"] == ["/workspace"], "a separate verifier sees what is declared, and nothing else"
    assert set(config["metadata"]["woodshed"]) <= {field.name for field in fields(TaskInfo)}
    names = {path.relative_to(task.path).as_posix() for path in task.path.rglob("*") if path.is_file()}
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"task.toml", "instruction.md", "environment", "tests", "solution"}
    assert {"environment/Dockerfile", "tests/test.sh", "solution/solve.sh"} <= names
    assert task.instruction.strip() and "docker_image" not in environment
    for script in ("tests/test.sh", "solution/solve.sh"):
        assert (task.path / script).read_text().startswith("#!/bin/sh\n")


def test_a_task_is_what_harbor_says_a_task_is(built: Built) -> None:
    for task in built.tasks:
        follows_harbor(task)


@pytest.mark.parametrize(("table", "field"), [("environment", "newtork_mode"), ("agent", "timeout")])
def test_a_field_that_harbor_does_not_know_is_seen(built: Built, table: str, field: str) -> None:
    task = built.tasks[0]
    changed = Task(task.path, task.name, task.instruction, task.info, {**task.config, table: {field: "x"}})
    with pytest.raises(AssertionError, match=field):
        follows_harbor(changed)


def test_a_pipe_in_the_place_of_configuration_is_not_read(tmp_path: Path) -> None:
    """Nobody writes to it, so reading would never end."""
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub/conftest.py")
    os.mkfifo(tmp_path / "pytest.ini")
    (tmp_path / "setup.py").write_text("kept")
    kept = {"pytest.ini": "0" * 64, "setup.py": harbor_check.digest(tmp_path / "setup.py")}
    harbor_check.clean(
        tmp_path, {"stray": ["conftest.py", "pytest.ini", "setup.py"], "suffixes": [".pth"], "kept": kept}
    )
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["setup.py", "sub"]
