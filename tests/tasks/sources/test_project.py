"""What is found out about a project from its files alone."""

from __future__ import annotations

import json
import shlex

import pytest

from woodshed.cli.options import wishes_of
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.pin import missing_advice
from woodshed.tasks.sources.layout import find_layout
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.requirements import (
    Requirement,
    distribution_of,
    missing_modules,
    needed,
    optional,
    parse_requirement,
)
from woodshed.tasks.sources.spec import marked, own_options

from . import repos

TEST = b"def test_a(): pass\n"


@pytest.mark.parametrize(
    ("files", "sources", "tests", "path"),
    [
        (["src/a/__init__.py", "src/b.py", "tests/test_a.py"], ("src/a", "src/b.py"), ("tests",), ("src", ".")),
        (["a/__init__.py", "a/b.py", "setup.py", "test_a.py", "docs/conf.py"], ("a",), ("test_a.py",), (".",)),
        (["a.py", "conftest.py", "noxfile.py", "a_test.py"], ("a.py",), ("a_test.py", "conftest.py"), (".",)),
        (["a/__init__.py", "a/tests/test_b.py", "a/c/tests/test_d.py"], ("a",), ("a/tests", "a/c/tests"), (".",)),
        (["a/b.py", "examples/test_x.py", "tests/test_a.py", "benchmarks/b.py"], ("a",), ("tests",), (".",)),
    ],
)
def test_layouts(files: list[str], sources: tuple[str, ...], tests: tuple[str, ...], path: tuple[str, ...]) -> None:
    layout = find_layout(Project(dict.fromkeys(files, TEST)))
    assert (layout.sources, layout.tests, layout.path) == (sources, tests, path)


def test_settings_of_the_project_decide() -> None:
    config = (
        b'[tool.pytest.ini_options]\ntestpaths = ["checks"]\npython_files = ["check_*.py"]\npythonpath = ["lib2"]\n'
    )
    config += b'markers = ["slow: takes long"]\naddopts = "--strict-config -p nothing"\nfilterwarnings = ["error"]\n'
    files = {"pyproject.toml": config, "a/__init__.py": b"", "checks/check_a.py": TEST, "tests/test_b.py": TEST}
    layout = find_layout(Project(files))
    assert layout.tests == ("checks",) and layout.path == (".", "lib2")
    assert layout.ini == ("python_files =\n    check_*.py", "markers =\n    slow: takes long")
    given = find_layout(Project(files), sources=["a/__init__.py"], tests=["tests"])
    assert (given.sources, given.tests) == (("a/__init__.py",), ("tests",))


ADDOPTS = (
    "--strict-config -p nothing -n auto --cov pkg -m 'not stress' -kfast --ignore=tests/slow --ignore ../outside "
    "--deselect tests/test_a.py::test_net --import-mode importlib --doctest-modules"
)
OWN = (
    "-m",
    "not stress",
    "-k",
    "fast",
    "--import-mode=importlib",
    "--ignore=tests/slow",
    "--deselect=tests/test_a.py::test_net",
)


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("pytest.ini", f"[pytest]\naddopts = {ADDOPTS}\n"),
        ("setup.cfg", f"[tool:pytest]\naddopts =\n    {ADDOPTS}\n"),
        ("pyproject.toml", f"[tool.pytest.ini_options]\naddopts = {json.dumps(ADDOPTS)}\n"),
        ("pyproject.toml", f"[tool.pytest.ini_options]\naddopts = {json.dumps(shlex.split(ADDOPTS))}\n"),
        ("pyproject.toml", f"[tool.pytest]\naddopts = {json.dumps(shlex.split(ADDOPTS))}\n"),
        ("pytest.toml", f"[pytest]\naddopts = {json.dumps(shlex.split(ADDOPTS))}\n"),
        (".pytest.toml", f"[pytest]\naddopts = {json.dumps(shlex.split(ADDOPTS))}\n"),
    ],
)
def test_the_projects_own_arguments_are_kept_where_they_are_safe(file: str, config: str) -> None:
    project = Project({file: config.encode()})
    assert own_options(project) == OWN
    assert marked(OWN) == "not stress" and marked(OWN[2:]) == ""
    assert own_options(project, "slow or (net and not x)")[:2] == ("-m", "slow or (net and not x)")
    with pytest.raises(PackageError, match="--markers not: write an expression"):
        own_options(project, "not")


def test_arguments_that_cannot_be_split_are_none() -> None:
    assert own_options(Project({"pytest.ini": b"[pytest]\naddopts = -m 'not closed\n"})) == ()


def test_import_roots_of_a_monorepo() -> None:
    files = {
        "pyproject.toml": b"",
        "tools/pyproject.toml": b"",
        "tools/x/__init__.py": b"",
        "docs/conf.py": b"",
        "packages/core/pyproject.toml": b"",
        "packages/core/src/core/__init__.py": b"",
        "packages/core/tests/test_core.py": TEST,
        "packages/web/setup.py": b"",
        "packages/web/web/__init__.py": b"",
        "packages/web/docs/__init__.py": b"",
        "packages/web/tests/test_web.py": TEST,
    }
    layout = find_layout(Project(files))
    assert layout.path == ("packages/core/src", "packages/web", ".")
    assert layout.sources == ("packages/core/src/core", "packages/web/web")
    assert layout.tests == ("packages/core/tests", "packages/web/tests")
    given = find_layout(Project(files), roots=["packages/core/src/", "tools"])
    assert given.path == ("packages/core/src", "tools", ".")
    assert given.sources == ("packages/core/src/core", "tools/x")
    with pytest.raises(PackageError, match="'packages/none' is neither"):
        find_layout(Project(files), roots=["packages/none"])


def test_paths_may_be_written_as_a_shell_completes_them() -> None:
    wishes = wishes_of(
        code=["./lib/a/"], tests=["checks/"], needs=None, install=None, root=["./lib/", "./"], markers=""
    )
    assert (wishes.code, wishes.tests, wishes.roots) == (("lib/a",), ("checks",), ("lib", "."))


def test_what_cannot_be_found_is_said() -> None:
    with pytest.raises(PackageError, match=r"no tests.*give their path with --tests"):
        find_layout(Project({"a.py": b""}))
    with pytest.raises(PackageError, match=r"no Python code.*--code"):
        find_layout(Project({"tests/test_a.py": TEST}))
    with pytest.raises(PackageError, match=r"'check' is neither a file nor a folder of the project"):
        find_layout(Project({"a.py": b"", "test_a.py": TEST}), tests=["check"])


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"pyproject.toml": b'[project]\nlicense = "Apache-2.0 OR MIT"\n'}, "Apache-2.0 OR MIT"),
        ({"pyproject.toml": b'[project]\nlicense = {file = "LICENSE"}\n', "LICENSE": repos.MIT}, "MIT"),
        ({"PKG-INFO": b"Name: a\nClassifier: License :: OSI Approved :: BSD License\n"}, "BSD License"),
        ({"setup.cfg": b"[metadata]\nlicense = ISC\n"}, "ISC"),
        ({"COPYING": b"GNU GENERAL PUBLIC LICENSE\n  Version 3, 29 June 2007"}, "GPL-3.0"),
        ({"pyproject.toml": b"damaged = = \xff", "README": b"MIT"}, "unknown"),
    ],
)
def test_licences(files: dict[str, bytes], licence: str) -> None:
    assert Project(files).licence == licence


def test_requirements_from_everywhere() -> None:
    files = {
        "pyproject.toml": b'[project]\nname = "Me"\ndependencies = ["one>=1", "two; python_version < \'4\'"]\n'
        b'[project.optional-dependencies]\ntest = ["three[extra]", "pytest-cov", "me[all]"]\nall = ["nine"]\n'
        b'[dependency-groups]\ndev = ["ten", {include-group = "x"}]\n',
        "setup.cfg": b"[options]\ninstall_requires =\n  four\n[options.extras_require]\ntesting = five\n",
        "tox.ini": b"[testenv]\ndeps =\n  py311: six\n  -rrequirements.txt\n  coverage\n",
        "requirements.txt": b"seven==1.0  # why\n# nothing\n",
        "requirements-test.txt": b"eight\n",
        "requirements/docs.txt": b"eleven\n",
    }
    assert [r.name for r in needed(Project(files), "me")] == [
        "one",
        "two",
        "four",
        "seven",
        "three",
        "five",
        "six",
        "eight",
    ]
    assert {"nine", "ten", "eleven"} <= set(optional(Project(files), "me"))
    assert next(r for r in needed(Project(files), "me") if r.name == "six").where == "tox.ini [testenv]"


@pytest.mark.parametrize(
    "line",
    ["-e .", "--index-url http://x", "-r other.txt", "a @ http://x/a.whl", "./folder", "git+https://x/a", "a b", "",
     "a; --config-settings x\n--pre", "$(touch x)"],
)  # fmt: skip
def test_only_plain_requirements_reach_pip(line: str) -> None:
    assert parse_requirement(line, "here") is None


def test_import_errors_lead_to_stated_or_known_packages_only() -> None:
    text = "ModuleNotFoundError: No module named 'yaml_tools.sub'\nNo module named 'dateutil'\nNo module named 'evil'"
    assert missing_modules(text) == ["yaml_tools", "dateutil", "evil"]
    stated = {"yaml-tools": Requirement("yaml-tools", "yaml-tools>=2", "tox.ini")}
    assert distribution_of("yaml_tools", stated) == stated["yaml-tools"]
    known = distribution_of("dateutil", stated)
    assert known is not None and known.name == "python-dateutil"
    assert distribution_of("evil", stated) is None


def test_advice_about_what_tests_miss() -> None:
    """``--needs`` is of no use for what the project states and no pure-Python wheel brings."""
    install = "run `woodshed tasks install` first, then build with --install"
    assert missing_advice(["yaml"], {"pyyaml"}) == (
        f"yaml is stated by the project but cannot be had as pure-Python wheels: {install}"
    )
    assert missing_advice(["yaml"], {"numpy"}) == "name the packages with --needs"
    assert missing_advice(["numpy", "lxml", "mystery"], {"numpy", "lxml"}) == (
        f"numpy, lxml are stated by the project but cannot be had as pure-Python wheels: {install}; "
        "name the packages with --needs (mystery)"
    )


def test_a_test_path_that_is_the_package_leaves_its_code() -> None:
    config = b'[tool.pytest.ini_options]\ntestpaths = ["pkg"]\n'
    files = {"pyproject.toml": config, "pkg/__init__.py": b"", "pkg/a.py": b"", "pkg/tests/test_a.py": b""}
    layout = find_layout(Project(files))
    assert (layout.sources, layout.tests) == (("pkg",), ("pkg/tests",))
    mixed = find_layout(Project({**files, "pkg/test_b.py": b"", "code.py": b""}))
    assert (mixed.sources, mixed.tests) == (("code.py",), ("pkg",))
