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
        "({ eval }).eval(x)", "const o = { globalThis }", "process.exit = f", "process.env.A = 1",
        "process.env['A'] = 1",
        "process.nextTick = f", "f(process)", "const { env } = process", "function f(process) {}\nprocess.exit(0)",
        "{ let process = 1; }\nf(process)", "function f(a = process) { let process; }",
        "class A { [process](process) {} }",
        "class A { m(process = global) {} }", "Array.prototype.toString = f", "const k = '__proto__'; x[k] = 1",
        "x[['constructor'][0]]", "['constructor'].indexOf.call(x)", "class A { then() {} }",
        "for (process of list) f()", "o.constructor = f",
        "Object.assign(Array.prototype, { map })", "Object . assign(String.prototype, {})",
        "x[x === y || 'constructor']",
        "[].__proto__.toString = f", "const o = { __proto__: x }", "p.exit(0)", "p.stdout.write(x)", "-process",
        "x.constructor.prototype.toString = f",
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
        "class A { constructor() {} toString() { return ''; } toJSON() { return 1; } valueOf() { return 1; } }",
        "function A() {}\nA.prototype.toString = function () { return ''; };\nA.prototype.constructor = A;",
        "function set(o, k, v) { if (k === '__proto__' || 'constructor' === k) return; o[k] = v; }",
        "switch (k) { case '__proto__': break; default: o[k] = v; }",
        "if (['__proto__', 'constructor', 'prototype'].includes(key)) continue_();",
        "const merge = (...given) => Object.assign({}, ...given, Object.create(null));",
        "const all = Object.assign(Buffer.alloc(0), { a: 1 });",
        "if (process.platform === 'win32' && process.env.HOME) process.nextTick(f);",
        "function process(x) { return x ? process(x - 1) : 0; }\nexports.process = process;",
        "const f = (global) => global + 1;",
        "const g = function describe({ global: process }) { return describe(process); };",
        "try { f(); } catch (process) { g(process); }",
        "for (const process of list) run(process); for (let global = 0; global < 9; global++) f(global);",
        "class E extends Error { constructor() { super(); Error.captureStackTrace(this, E); } }",
        "const tokens = { __proto__: null, kill() {}, get exit() { return 1; }, stdout: 1 };",
        "class A { run() { this._cache = this.argv; } }",
        "const isNode = typeof process !== 'undefined' && typeof process.versions === 'object';",
        "const stop = () => controller.abort(); emitter.on('abort', stop);",
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
    # Reading the text of each part would take minutes.
    assert screen({"a.js": b"a" + b"?.()" * 60_000}) == []
    assert screen({"a.js": b"(" * 40_000 + b"a" + b".b = 1)" * 40_000}) == []
    assert screen({"a.js": b"function f(process) { process;" * 10_000 + b"}" * 10_000}) == []
    assert screen({"a.js": b"{" * 30_000 + b"this.exit;" * 20_000 + b"}" * 30_000}) == []
    assert screen({"a.js": b"process.env" + b".a" * 50_000}) == ["a.js: process"]
    assert screen({"a.js": b"{" * 50_000 + b"process" + b"}" * 50_000}) == ["a.js: process"]
