"""The runner in a real box: what each test of node:test came to, what was covered, and what cannot be claimed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from woodshed.grading.node.grader import framework_of, run_node
from woodshed.grading.results import TestRun
from woodshed.sandbox import open_backend
from woodshed.sandbox.protocol import BoxSpec

Run = Callable[..., TestRun]
HEAD = "const { test, describe, it } = require('node:test');\nconst assert = require('node:assert');\n"
CODE = "exports.used = function used(x) { return x + 1; };\nexports.unused = function unused() { return 0; };\n"


@pytest.fixture(scope="module")
def run_in_box() -> Iterator[Run]:
    """Runs test files, and ``code.js`` beside them, in a box of their own."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")

    def run(text: str, *, code: str = CODE, name: str = "a.test.js", **options: object) -> TestRun:
        async def main() -> TestRun:
            backend = open_backend()
            try:
                files = {f"/workspace/{name}": text.encode(), "/workspace/code.js": code.encode()}
                box = await backend.create(BoxSpec(files=files, workdir="/workspace"))
                return await run_node(box, {name: text.encode()}, None, **{"timeout": 20, **options})  # type: ignore
            finally:
                await backend.close()

        return asyncio.run(main())

    yield run


def statuses(run: TestRun) -> dict[str, str]:
    return {name.removeprefix("a.test.js::"): result.status for name, result in run.results.items()}


def test_every_test_is_told_apart(run_in_box: Run) -> None:
    run = run_in_box(
        HEAD
        + "test('good', () => {});\ntest('bad', () => { assert.strictEqual(1, 2); });\n"
        + "test('outer', async (t) => { await t.test('inner', () => { throw new Error('no'); }); });\n"
        + "describe('group', () => { it('one', () => {}); it('later', { skip: true }, () => {}); });\n"
        + "test('good', () => {});\ntest('to do', { todo: true }, () => { throw 1; });\n"
    )
    assert run.complete, run.detail
    assert statuses(run) == {
        "good": "passed",
        "bad": "failed",
        "outer > inner": "failed",
        "outer": "failed",
        "group > one": "passed",
        "group > later": "skipped",
        "good (2)": "passed",
        "to do": "skipped",
    }
    assert "1 !== 2" in run.results["a.test.js::bad"].text


def test_covered_functions_are_named_by_place(run_in_box: Run) -> None:
    text = HEAD + "const code = require('./code');\ntest('uses', () => { code.used(1); });\n"
    run = run_in_box(text, trace=["/workspace/code.js"])
    places = {place for file, place, _ in run.results["a.test.js::uses"].covered if file == "/workspace/code.js"}
    used, unused = (CODE.index("function " + name) for name in ("used", "unused"))
    starts = {int(place.partition(":")[0]) for place in places}
    assert used in starts and unused not in starts


def test_values_are_noted_in_one_form(run_in_box: Run) -> None:
    values = "0.1 + 0.2, -0, NaN, [1, 'a'], { b: 1, a: undefined }, null, new Map([[1, 2]]), /x/g, 10n, () => 1"
    text = HEAD + f"test('sees', () => {{ woodshed_seen({values}); }});\n"
    seen = run_in_box(text, values=True).results["a.test.js::sees"].seen
    assert seen == [
        "f0.300000000",
        "-0",
        "fNaN",
        '[1,"a"]',
        '{"a":undefined,"b":1}',
        "null",
        "[object Map][[1,2]]",
        "regexp /x/g",
        "10n",
        "?",
    ]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("assert", "require('assert').strictEqual = () => {};"),
        ("prototype", "Object.prototype.extra = 1;"),
        ("intrinsic", "Object.is = () => true;"),
        ("framework", "require('node:test').test = () => {};"),
    ],
)
def test_changes_to_what_decides_are_errors(run_in_box: Run, what: str, code: str) -> None:
    run = run_in_box(HEAD + "require('./code');\ntest('good', () => {});\n", code=code)
    assert statuses(run) == {"good": "error"} and "was changed" in run.results["a.test.js::good"].text


@pytest.mark.parametrize(
    "code",
    ["process.exit(0);", "process.kill(process.pid, 9);", "process.reallyExit(0);", "process.binding('fs');"]
    + [f"const m = require('{m}'); m.{f}();" for m, f in (
        ("v8", "getHeapSnapshot"), ("inspector", "open"), ("child_process", "spawnSync"), ("cluster", "fork"),
    )],
)  # fmt: skip
def test_code_under_test_cannot_end_or_look_into_its_process(run_in_box: Run, code: str) -> None:
    run = run_in_box(HEAD + "require('./code');\ntest('good', () => {});\n", code=code)
    assert not run.results and "is not available to code under test" in run.detail


def test_a_run_that_ends_early_or_hangs_is_not_complete(run_in_box: Run) -> None:
    assert not run_in_box(HEAD + "require('./code');\n", code="require('fs').closeSync(3);").complete
    hung = run_in_box(HEAD + "test('good', () => {});\ntest('loop', () => { for (;;) {} });\n", timeout=2)
    assert not hung.complete and hung.detail.startswith("timed out")


def test_modules_are_run_too(run_in_box: Run) -> None:
    text = "import test from 'node:test';\nimport assert from 'node:assert';\nimport { used } from './code.mjs';\n"
    run = run_in_box(
        text + "test('good', () => assert.equal(used(1), 2));\n", name="a.test.mjs", code="throw new Error('no')"
    )
    assert not run.results and "code.mjs" in run.detail  # there is none


def test_frameworks_are_told_by_what_is_loaded() -> None:
    assert framework_of("const test = require('tape')") == "tape"
    assert framework_of('import { test } from "node:test"') == "node:test"
    assert framework_of("describe('x', () => {})") == "mocha"


def test_runner_is_packaged() -> None:
    folder = Path(__file__).parents[3] / "woodshed" / "grading" / "node"
    assert {"guard.js", "values.js", "frameworks.js", "runner.js"} <= {p.name for p in folder.iterdir()}
