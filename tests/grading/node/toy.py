"""A Node project of one bug, two tests that show it and one that does not; its tests need nothing but Node."""

from __future__ import annotations

from pathlib import Path

from woodshed.record.task import Task, TaskInfo, save_task

MEASURE = """'use strict';

/** Area of a rectangle. */
function area(width, height) {
  return width + height;
}

function double(value) {
  return 2 * value;
}

module.exports = { area, double };
"""
TESTS = """'use strict';
const test = require('node:test');
const assert = require('node:assert');
const { measure } = { measure: require('../lib/measure') };

test('area', () => {
  assert.strictEqual(measure.area(2, 3), 6);
});

test('long area', () => {
  assert.strictEqual(measure.area(10, 7), 70);
  assert.strictEqual(measure.area(1, 1), 1);
});

test('double', () => {
  assert.strictEqual(measure.double(4), 8);
});
"""
FILE = "test/measure.test.js"
FAILING = (f"{FILE}::area", f"{FILE}::long area")
PASSING = (f"{FILE}::double",)
PACKAGE = b'{"name": "measure", "version": "1.0.0", "main": "lib/measure.js"}\n'


def toy_task(path: Path) -> Task:
    workspace = {"lib/measure.js": MEASURE.encode(), FILE: TESTS.encode(), "package.json": PACKAGE}
    return save_task(
        path,
        name="tests/node-toy",
        instruction="area of a rectangle is wrong",
        info=TaskInfo(
            family="package",
            grader="node",
            submission=("lib/**/*.js",),
            protected=("test/**", "**/package.json"),
            fail_to_pass=FAILING,
            pass_to_pass=PASSING,
            test_command=f"node {FILE}",
            timeout_sec=20.0,
        ),
        workspace=workspace,
        tests={"test.sh": b"#!/bin/sh\n", **{f"workspace/{n}": workspace[n] for n in (FILE, "package.json")}},
        solution={"lib/measure.js": MEASURE.replace("width + height", "width * height").encode()},
    )
