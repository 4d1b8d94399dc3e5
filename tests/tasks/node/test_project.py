"""What is read from a project, and what a person is told where that does not suffice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from woodshed.tasks.languages.node.npm import _needing, integrity_of
from woodshed.tasks.languages.node.project import NodeProject, find_layout, is_node_project, needed
from woodshed.tasks.languages.node.workspace import protected_globs, submission_globs, workspace_of
from woodshed.tasks.packages.catalogue import Catalogue, Module, Package, dump_catalogue, load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.spec import parse_source

from .project import FILES


def files(**more: str) -> dict[str, bytes]:
    return {n: t.encode() for n, t in {**FILES, **more}.items()}


def test_layout_and_workspace() -> None:
    project = NodeProject(files())
    layout = find_layout(project)
    assert (layout.sources, layout.tests, layout.framework) == (("lib",), ("test",), "node:test")
    package = Package("intervals", "1", "f", "0" * 64, "ISC", layout.sources, layout.tests, language="node")
    workspace = workspace_of(package, files())
    assert sorted(workspace) == ["README.md", "lib/index.js", "lib/parse.js", "package.json", "test/intervals.test.js"]
    assert json.loads(workspace["package.json"]) == {"name": "intervals", "version": "1.2.0", "main": "lib/index.js"}
    assert submission_globs(package) == ("lib/**/*.js", "lib/**/*.cjs", "lib/**/*.mjs")
    assert "**/node_modules/**" in protected_globs(package) and "test/**" in protected_globs(package)


def test_what_tests_need() -> None:
    package = {
        "name": "own",
        "dependencies": {"a": "^1", "gone": "^1"},
        "devDependencies": {"chai": "^4", "g": "git+x:y"},
    }
    project = NodeProject(
        {
            "package.json": json.dumps(package).encode(),
            "index.js": b"require('a/deep'); require('fs'); require('./x'); require('own');",
            "test.js": b"import c from 'chai'; require('g'); require('nobody/states'); describe('x', () => {})",
        }
    )
    wanted, unstated = needed(project, find_layout(project), {"wished": "^2"})
    assert wanted == {"a": "^1", "chai": "^4", "wished": "^2", "mocha": ">=10.2 <13"}
    assert unstated == ["nobody"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test/intervals.test.js": None}, "no tests"),
        ({"lib/index.js": None, "lib/parse.js": None}, "no JavaScript besides tests"),
        (
            {"test/intervals.test.js": "test('x', () => {})", "package.json": '{"scripts": {"test": "jest"}}'},
            "run by jest",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(change: dict[str, str | None], message: str) -> None:
    found = {n: t.encode() for n, t in {**FILES, **change}.items() if t is not None}
    with pytest.raises(PackageError, match=message):
        find_layout(NodeProject(found))


def test_a_project_of_both_languages_is_python() -> None:
    assert is_node_project({"package.json": b"{}"})
    assert not is_node_project({"package.json": b"{}", "pyproject.toml": b""})


@pytest.mark.parametrize("text", ["npm:qs@6.0.0", "npm:qs==6.0.0"])
def test_npm_sources(text: str) -> None:
    spec = parse_source(text)
    assert (spec.kind, spec.place, spec.version, spec.name, spec.origin) == ("npm", "qs", "6.0.0", "qs", "npm:qs@6.0.0")


def test_scoped_and_wrong_npm_sources() -> None:
    spec = parse_source("npm:@fastify/deepmerge@3.2.4-rc.1")
    assert (spec.place, spec.version, spec.name) == ("@fastify/deepmerge", "3.2.4-rc.1", "deepmerge")
    for text in ("npm:qs", "npm:qs@^6", "npm:qs@latest", "npm:@x@1.0.0", "npm:../x@1.0.0"):
        with pytest.raises(PackageError, match="write npm:NAME@VERSION"):
            parse_source(text)


def test_what_needs_the_project_itself_is_found() -> None:
    packages = {
        "node_modules/a": {"dependencies": {"b": "1"}},
        "node_modules/b": {"dependencies": {"own": "1", "a": "1"}},
        "node_modules/c": {},
        "node_modules/c/node_modules/d": {},
        "node_modules/own": {},
    }
    assert _needing(packages, {"a": "1", "c": "1"}, "own") == {"a"}


def test_modules_are_locked_by_integrity(tmp_path: Path) -> None:
    from woodshed.record.toml import to_toml

    module = Module("a/node_modules/b", "b", "1.0.0", integrity_of(b"archive"))
    package = Package(
        "x",
        "1",
        "x.tgz",
        "0" * 64,
        "MIT",
        ("lib",),
        ("test",),
        origin="npm:x@1.0.0",
        language="node",
        integrity=integrity_of(b"x"),
    )
    path = tmp_path / "sources.toml"
    path.write_text(to_toml(dump_catalogue(Catalogue({"x": package}, {"pytest": ()}, {"x": (module,)}))))
    read = load_catalogue(path)
    assert read.modules == {"x": (module,)} and read.packages["x"] == package and package.kept
    path.write_text(path.read_text().replace(module.integrity, "sha1-x"))
    with pytest.raises(PackageError, match="integrity must be sha512"):
        load_catalogue(path)


def test_python_catalogues_have_no_word_of_it() -> None:
    table = dump_catalogue(load_catalogue())
    assert set(table) == {"wheels", "package"}
    assert not any({"language", "integrity"} & set(entry) for entry in table["package"])
