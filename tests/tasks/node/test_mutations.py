"""Functions of JavaScript files, their mutations and their deletion. ``node --check`` is the independent reader."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from woodshed.tasks.languages.node.functions import delete_body, function_named, functions_of, signature_of
from woodshed.tasks.languages.node.mutations import mutations
from woodshed.tasks.languages.python.kinds import WEIGHTS

from .project import INDEX, PARSE

FORMS = b"""
function plain(a) { return a; }
const arrow = (a) => { return a; };
const short = (a) => a;
exports.member = function () { return 1; };
Thing.prototype.method = function named() { return 2; };
class Shape { area() { return 3; } get side() { return 4; } static of() { return 5; } }
const table = { entry: function () { return 6; }, brief() { return 7; } };
(function () { return 8; })();
async function later() { await 1; }
function* many() { yield 1; }
"""


def test_functions_have_the_names_that_code_uses() -> None:
    assert [f.name for f in functions_of(FORMS)] == [
        "plain",
        "arrow",
        "exports.member",
        "named",
        "Shape.area",
        "Shape.get side",
        "Shape.of",
        "table.entry",
        "table.brief",
        "later",
        "many",
    ]


def test_offsets_are_those_of_v8() -> None:
    source = "const s = '\U0001f600é';\nfunction f() { return s; }\n"
    (found,) = functions_of(source.encode())
    units = source.encode("utf-16-le")
    assert units[2 * found.start : 2 * found.end].decode("utf-16-le") == "function f() { return s; }"


def test_no_javascript() -> None:
    with pytest.raises(SyntaxError):
        functions_of(b"function (")
    with pytest.raises(KeyError):
        function_named(b"function a() {}\nfunction a() {}", "a")


def test_every_mutation_changes_one_line_and_parses() -> None:
    seen = set()
    for source, name in ((INDEX, "merge"), (INDEX, "total"), (PARSE, "parse")):
        found = mutations(source.encode(), function_named(source.encode(), name))
        assert len(found) >= 5
        for m in found:
            before, after = source.split("\n"), m.source.split("\n")
            differing = [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
            assert differing == [m.line] and (m.before, m.after) == (before[m.line - 1], after[m.line - 1])
        seen |= {m.kind for m in found}
        assert len({m.source for m in found}) == len(found)
    assert {"compare", "binop", "constant", "boolean", "call"} <= seen <= set(WEIGHTS)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("return a < b;", {"return a <= b;", "return a > b;"}),
        ("return a && !b;", {"return a || !b;", "return a && b;"}),
        ("return Math.min(a, b);", {"return Math.max(a, b);", "return Math.min(b, a);"}),
        ("if (a) return 0;", {"if (!a) return 0;", "if (b) return 0;", "if (a) return 1;"}),
        ("return 'x' + a;", {"return 'x' + b;"}),
        ("return `${a}`;", {"return `${b}`;"}),
    ],
)
def test_what_becomes_of_a_line(line: str, wanted: set[str]) -> None:
    source = f"function f(a, b) {{\n  {line}\n}}\n".encode()
    assert wanted <= {m.after.strip() for m in mutations(source, functions_of(source)[0])}


def test_a_deleted_body_keeps_everything_else() -> None:
    source = INDEX.encode()
    merge = function_named(source, "merge")
    changed = delete_body(source, merge).decode()
    assert "function merge(text) {\n  throw new Error('not implemented');\n}\n\nfunction total" in changed
    assert changed.startswith(INDEX[: INDEX.index("function merge")])
    assert (
        signature_of(source, merge).startswith("/**\n * Joins intervals")
        and "{" not in signature_of(source, merge).splitlines()[-1]
    )
    strict = b"var f = function () {\n    'use strict'\n    return 1\n}\n"
    assert delete_body(strict, functions_of(strict)[0]).decode() == (
        "var f = function () {\n  'use strict'\n  throw new Error('not implemented');\n}\n"
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_reads_what_is_made() -> None:
    source = PARSE.encode()
    parse = function_named(source, "parse")
    for text in (delete_body(source, parse).decode(), *[m.source for m in mutations(source, parse)[:4]]):
        done = subprocess.run(["node", "--check", "-"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
