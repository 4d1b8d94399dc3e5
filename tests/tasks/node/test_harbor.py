"""What other Harbor tools run of a task of a Node project: every required file, in a real box."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tasks.packages.harbor_box import Change, rewards
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.packages.node_save import lock_of, node_check, node_image
from woodshed.tasks.packages.catalogue import Module, Package

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

NUMBERS = range(6)
CODE = "exports.values = [{}];\n"
TEST = """'use strict';
const {{ test }} = require('node:test');
const assert = require('node:assert/strict');
const {{ values }} = require('..');
test('value {0}', () => assert.equal(values[{0}], {0}));
"""
PACKAGE = b'{"name": "numbers", "main": "index.js"}\n'
GOLD = CODE.format("0, 1, 2, 3, 4, 5").encode()
HALF = CODE.format("0, 1, 2, 3, 4").encode()
FORGED = b"""const { test } = require('node:test');
test('value 0', () => {});
"""
SKIPPING = b"""const runner = require('node:test');
const { test } = runner;
runner.test = (name, body) => test(name, { skip: true }, body);
exports.values = [];
"""


@pytest.fixture
def task(tmp_path: Path) -> Task:
    tests = {f"test/{n}.test.js": TEST.format(n).encode() for n in NUMBERS} | {"package.json": PACKAGE}
    start = {"index.js": CODE.format("").encode(), **tests}
    info = TaskInfo(
        grader="node",
        submission=("index.js",),
        timeout_sec=60.0,
        fail_to_pass=tuple(f"test/{n}.test.js::value {n}" for n in NUMBERS),
    )
    return save_task(
        tmp_path / "task",
        name="woodshed/numbers",
        instruction="fix it\n",
        info=info,
        workspace=start,
        tests={**node_check(info, start, start), **{f"workspace/{n}": d for n, d in tests.items()}},
        solution={"index.js": GOLD},
        environment=node_image(Package("n", "1", "", "", "", (), ()), "/workspace"),
    )


def test_every_required_file_is_run_and_must_pass(task: Task, tmp_path: Path) -> None:
    changes: dict[str, Change] = {
        "nothing": {},
        "all but the last": {"index.js": HALF},
        "tests that are skipped": {"index.js": SKIPPING},
        "the end of the process": {"index.js": b"process.exit(0);\n"},
        "other tests": {f"test/{n}.test.js": FORGED for n in NUMBERS},
        "another framework": {"node_modules/node:assert/index.js": b"", "package.json": b'{"type": "module"}\n'},
    }
    layers = LayerStore(tmp_path / "layers")
    told = dict(zip(changes, rewards(task, layers, list(changes.values()))))
    assert {name for name, (reward, _) in told.items() if reward != "0"} == set(), told
    assert "5 of 6 required tests passed" in told["all but the last"][1]
    tidied: Change = {"index.js": GOLD, "lib/package.json": b"{", "node_modules/x/index.js": b"", "package.json": b"{"}
    assert [reward for reward, _ in rewards(task, layers, [{"index.js": GOLD}, tidied])] == ["1", "1"]


def test_modules_of_the_workspace_do_not_count(task: Task, tmp_path: Path) -> None:
    helper = "node_modules/helper/index.js"
    change: Change = {"index.js": b"module.exports = require('helper');\n", helper: GOLD}
    [(reward, said)] = rewards(task, LayerStore(tmp_path / "layers"), [change])
    assert reward == "0" and "0 of 6 required tests passed" in said


def test_the_image_holds_every_module_at_its_place() -> None:
    modules = (
        Module("a", "a", "1.0.0", "sha512-A"),
        Module("a/node_modules/b", "b", "1.0.0", "sha512-B"),
        Module("b", "b", "2.0.0", "sha512-C"),
        Module("c", "@other/c", "3.0.0", "sha512-D"),
    )
    files = lock_of(list(modules))
    lock = json.loads(files["modules/package-lock.json"])
    assert lock["packages"]["node_modules/a/node_modules/b"] == {"version": "1.0.0", "integrity": "sha512-B"}
    assert lock["packages"]["node_modules/a"]["dependencies"] == {"b": "1.0.0"}
    assert lock["packages"]["node_modules/c"]["name"] == "@other/c"
    wanted = {"a": "1.0.0", "b": "2.0.0", "c": "npm:@other/c@3.0.0"}
    assert json.loads(files["modules/package.json"])["dependencies"] == wanted
    package = Package("n", "1", "", "", "", (), (), language="node", below=modules)
    made = node_image(package, "/workspace")
    assert b"npm ci --ignore-scripts" in made["Dockerfile"] and made.items() >= files.items()
