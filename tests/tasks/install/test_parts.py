"""Goals, matching and the depot, each by itself; what is hostile must not get through or hang."""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import passed_of, reached, search
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec, ExecResult
from woodshed.tasks.install.kit import draw, parse_goals
from woodshed.tasks.install.lock import Install
from woodshed.tasks.install.python.depot import Depot
from woodshed.tasks.install.python.goals import python_goals
from woodshed.tasks.install.python.plugins import useful_plugin, wanted_plugins
from woodshed.tasks.install.python.rules import version_files
from woodshed.tasks.install.replay import Recipe, Replay, replay
from woodshed.tasks.install.run import ground_of
from woodshed.tasks.install.space import Boxes
from woodshed.tasks.install.use import installed_package
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.dependencies import metadata_layer
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.spec import parse_source

GOALS: list[dict[str, Any]] = [
    {"command": f"echo {n}", "expect": "prints a number", "pattern": f"^{n}$", "exit_codes": [0]} for n in range(10)
]
WRONG = {
    "goal 1: command is missing": {"command": None},
    "goal 1: pattern must be a text of 1 to 300 characters": {"pattern": " "},
    "goal 1: expect must describe the output in words": {"expect": "works"},
    "goal 1: exit_codes must be numbers of 0 to 255, got \\(True,\\)": {"exit_codes": [True]},
    "goal 1: passing_share must be 0 to 1": {"passing_share": 2},
    "goal 1: unknown field 'timeout'": {"timeout": 3},
    "two goals have the command 'echo 1'": {"command": "echo 1"},
}


@pytest.mark.parametrize("why", WRONG)
def test_goals_that_are_wrong_are_named(why: str) -> None:
    first = {k: v for k, v in {**GOALS[0], **WRONG[why]}.items() if v is not None}
    with pytest.raises(ValueError, match=why):
        parse_goals(json.dumps([first, *GOALS[1:]]).encode())


_FIELDS = st.none() | st.booleans() | st.floats() | st.text(max_size=20) | st.lists(st.integers(), max_size=3)
_TABLES = st.dictionaries(st.sampled_from([*GOALS[0], "passing_share", "x"]), _FIELDS)


@settings(max_examples=40)
@given(
    st.one_of(st.binary(), st.lists(_TABLES | _FIELDS, min_size=10, max_size=10).map(lambda x: json.dumps(x).encode()))
)
def test_no_file_of_goals_is_more_than_wrong(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_goals(data)


def test_the_seed_decides_and_tests_are_among_the_targets() -> None:
    goals = parse_goals(json.dumps(GOALS).encode())
    assert draw(goals, "1") == draw(goals, "1") and len({tuple(draw(goals, str(n))) for n in range(20)}) > 5
    suite = Goal("pytest", "some tests pass there", "passed", passing_share=0.5)
    assert all(draw([*goals, suite], str(n))[0] == suite for n in range(20))
    with pytest.raises(PackageError, match="only 2 goals were found, but 3 are needed"):
        draw(goals[:2], "1")


def test_counts_of_pytest() -> None:
    assert passed_of("2 passed, 1 skipped in 0.1s\n= 1 failed, 7 passed, 2 errors in 3s =\nbye") == (7, 10)
    assert passed_of("no tests ran") == (0, 0)


def test_counts_of_runners_of_node() -> None:
    assert passed_of("\n  12 passing (4ms)\n  1 pending\n  3 failing\n\n  1) 7 passing things\n") == (12, 15)
    assert passed_of("1..4\n# tests 4\n# pass  3\n# fail  1\n") == (3, 4)
    assert passed_of("# tests 5\n# pass 4\n# fail 0\n# skipped 1\n") == (4, 4)
    assert passed_of("\u2139 tests 2\n\u2139 pass 1\n\u2139 fail 1\n") == (1, 2)
    assert passed_of("# ok\npassing 3\n  3 passings") == (0, 0)


def test_matching_is_strict_and_no_pattern_hangs_it(market: Place) -> None:
    def tried(pattern: str, text: str, code: int = 0, share: float = 0.0) -> tuple[Goal, ExecResult]:
        return Goal("x", "prints some text", pattern, passing_share=share), ExecResult(code, text.encode())

    cases = [
        (tried("^b$", "a\nb\n"), ""),
        (tried("^b$", "ab"), "pattern '^b$' is not in the output"),
        (tried("b", "b", 1), "exit code 1, expected 0"),
        (tried("a*", "a"), "pattern 'a*' matches an empty output"),
        (tried("(", "a"), "pattern '(' is no regular expression"),
        (tried("(a+)+$", "a" * 60 + "b"), "pattern '(a+)+$' takes too long"),
        (tried("passed", "3 passed, 1 failed", share=0.8), "3 of 4 tests pass, expected at least 80%"),
        (tried("passed", "4 passed, 1 failed", share=0.8), ""),
        (tried("x", "x")[:1] + (ExecResult(0, b"x", timed_out=True),), "it did not end in time"),
    ]

    async def work(backend: Backend, layers: LayerStore) -> list[str]:
        clean = await backend.create(BoxSpec())
        said = [(await reached(goal, done, clean)).why for (goal, done), _ in cases]
        assert await search(clean, [("a", "a"), ("(a+)+$", "a" * 60 + "b")]) == [True, "takes too long to search for"]
        return said

    for why, (_, expected) in zip(market.boxes(work), cases, strict=True):
        assert (expected in why) if expected else why == ""


def read(port: int, path: str) -> bytes | int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
            return bytes(reply.read())
    except urllib.error.HTTPError as error:
        return error.code


def test_a_depot_serves_wheels_and_nothing_that_is_barred(market: Place) -> None:
    with Depot(without=["Price_List"]) as depot:
        page = read(depot.port, "/simple/money-fixture/")
        assert isinstance(page, bytes) and b"money_fixture-3.0-py3-none-any.whl" in page
        assert read(depot.port, "/simple/price-list/") == 404 == read(depot.port, "/simple/tinyshapes/")
        assert read(depot.port, "/files/price-list/price_list-1.2-py3-none-any.whl") == 404
        for path in ("/files/../catalogue.toml", "/files/x/..%2Fcatalogue.toml.whl", "/etc/passwd", "//etc/passwd"):
            assert read(depot.port, path) == 404
        data = read(depot.port, "/files/money-fixture/money_fixture-2.0-py3-none-any.whl")
        assert isinstance(data, bytes) and list(depot.served) == ["money_fixture-2.0-py3-none-any.whl"]
    with Depot(only=depot.served.values()) as locked:
        assert read(locked.port, "/files/money-fixture/money_fixture-2.0-py3-none-any.whl") == data
        page = read(locked.port, "/simple/money-fixture/")
        assert isinstance(page, bytes) and b"3.0" not in page
        assert read(locked.port, "/simple/fast/") == 404


def test_rules_read_what_tests_and_projects_say() -> None:
    text = "E  fixture 'mocker' not found\nasync def functions are not natively supported.\nfixture 'x' not found"
    assert wanted_plugins(text, []) == ["pytest-mock", "pytest-asyncio"]
    assert wanted_plugins(text, ["anyio", "trio"]) == ["pytest-mock", "anyio"]
    assert useful_plugin("pytest_httpx") and useful_plugin("respx")
    assert not useful_plugin("pytest-xdist") and not useful_plugin("pytest") and not useful_plugin("requests")
    table = '[tool.setuptools_scm]\nwrite_to = "{}"\n'
    for path, found in (("a/_version.py", ["a/_version.py"]), ("../x.py", []), ("a.txt", [])):
        assert version_files(Project({"pyproject.toml": table.format(path).encode()})) == found


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "a\nName: b", "", "-"])
def test_what_a_project_calls_itself_stays_in_its_layer(name: str, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="not the name and the version of a project"):
        metadata_layer(name, "1.0", LayerStore(tmp_path / "layers"))
    with pytest.raises(PackageError, match="not the name and the version of a project"):
        metadata_layer("fine", f"1{name}/..", LayerStore(tmp_path / "layers"))


def test_services_are_started_before_targets_and_become_part_of_the_package(market: Place, tmp_path: Path) -> None:
    spec = parse_source(str(market.root / "repository"))
    ground = ground_of(spec, "repository", load_catalogue(market.catalogue).wheels["pytest"], tmp_path)
    recipe = Recipe("echo 8765 > port.txt\n", "python3 -m http.server -b 127.0.0.1 $(cat port.txt) &\nsleep 1\n")
    ask = "for n in 1 2 3 4 5 6 7 8; do python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8765/README.md').read())\" && break; sleep 1; done"  # noqa: E501
    goals = [Goal(ask, "prints what the server serves", "Run pytest")]

    async def work(backend: Backend, layers: LayerStore) -> tuple[Replay, Replay]:
        boxes = Boxes(backend, layers)
        return await replay(ground, recipe, goals, boxes), await replay(ground, Recipe("exit 3\n"), goals, boxes)

    good, bad = market.boxes(work)
    assert good.ok and dict(good.added) == {"port.txt": b"8765\n"} and good.served == ()
    assert bad.problems == ("setup.sh ended with 3",) and bad.reached == ()
    package = ground.package
    found = Install(
        package.origin, package.commit, package.sha256, "x", "1", "rules", 1, recipe, (), (), added=good.added
    )
    node = dataclasses.replace(package, language="node")
    with pytest.raises(PackageError, match="services are started for Python projects only"):
        installed_package(node, ground.files, found, tmp_path)
    assert installed_package(package, ground.files, found, tmp_path)[0].start == recipe.start
    assert dataclasses.replace(found, recipe=Recipe(recipe.setup)).digest != found.digest
    with pytest.raises(PackageError, match=f"made from other bytes.*give .*@{package.commit}"):
        installed_package(dataclasses.replace(package, sha256="0" * 64), ground.files, found, tmp_path)
    made, files = installed_package(package, ground.files, dataclasses.replace(found, recipe=Recipe("x")), tmp_path)
    assert files["port.txt"] == b"8765\n" and (tmp_path / "sources" / made.file).exists() and made.kept


def test_goals_run_the_tests_that_the_project_means(tmp_path: Path) -> None:
    """Its own markers decide, and a person decides how many have to pass."""
    config = b"[pytest]\naddopts = -n auto -m 'not stress'\n"
    repos.write(tmp_path / "repository", {"pytest.ini": config, "a.py": b"", "tests/test_a.py": b"def test(): pass\n"})
    spec = parse_source(str(tmp_path / "repository"))
    goals = python_goals(ground_of(spec, "repository", (), tmp_path / "out", passing_share=0.55))
    suites = [goal for goal in goals if goal.passing_share]
    assert suites and all(goal.passing_share == 0.55 and "at least 55% of them" in goal.expect for goal in suites)
    assert all(" -m 'not stress' tests" in goal.command and "auto" not in goal.command for goal in suites)
