"""The static screen for JavaScript: what it refuses, what it never holds against a submission."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading.node.screen import screen


@pytest.mark.parametrize(
    "code",
    [
        "process.exit(0)", "require('node:' + x)", "require('vm')", "import fs from 'fs'", "eval('1')",
        "new Function('return 1')", "Array.prototype.map = f", "Object.defineProperty(Array.prototype, 'map', {})",
        "Object.assign(String.prototype, {})", "x.__proto__ = y", "const o = { valueOf() { return 1 } }",
        "o.toJSON = f", "new Proxy({}, {})", "x['__proto__'] = y", "globalThis.x = 1", "require.cache[1] = 2",
        "JSON.stringify = f", "const a = '/proc/self/mem'", "function (", "import('child_process')",
    ],
)  # fmt: skip
def test_refused(code: str) -> None:
    assert screen({"a.js": code.encode()}, {"a.js": b"module.exports = 1"})


@pytest.mark.parametrize(
    "code",
    [
        "const { a } = require('./b'); module.exports = function f(x) { return a(x) + 1; };",
        "class A extends B { get x() { return this.#y; } #y = 1; }",
        "// process.exit(0) would be wrong\nexports.f = (text) => text.split('/').map((p) => p.trim());",
        "throw new TypeError('the constructor of a process is not a function');",
    ],
)
def test_let_through(code: str) -> None:
    assert screen({"lib/a.js": code.encode()}, {}) == []


def test_what_the_start_or_the_solution_uses_is_allowed() -> None:
    used = b"const fs = require('fs'); process.exit(0);"
    assert screen({"a.js": used + b"f();"}, {"a.js": used}) == []
    assert screen({"a.js": used}, {}, {"a.js": used}) == []
    assert screen({"b.js": used}, {"a.js": used}) != []


@given(st.binary(max_size=200) | st.text(alphabet="(){}[]`${}'\"/*\\=>.;,a1 \n", max_size=200).map(str.encode))
def test_hostile_text_is_refused_or_read(data: bytes) -> None:
    assert all(entry.startswith("a.js: ") for entry in screen({"a.js": data}))


def test_deep_nesting_is_no_crash() -> None:
    assert screen({"a.js": b"[" * 50_000}) == ["a.js: is no JavaScript that can be read"]
    assert screen({"a.js": b"a" + b".a" * 50_000}) == []
