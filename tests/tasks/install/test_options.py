"""Import roots and markers, given to installs and to imports as they are given to a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from tests.tasks.sources.test_instances import diff
from woodshed.record.task import Task
from woodshed.tasks.install.lock import load_install

ROOT = "engine/parts"
CONFIG = (
    b'[project]\nname = "prices"\nversion = "1.2"\nlicense = "MIT"\n'
    b'[project.optional-dependencies]\ntest = ["money-fixture"]\n'
    b'[tool.pytest.ini_options]\ntestpaths = ["tests"]\nmarkers = ["slow: takes long"]\n'
)
SLOW = b"\n\n@pytest.mark.slow\n@pytest.mark.parametrize('n', range(9))\ndef test_service(n):\n    assert not n < 9\n"
PROJECT = {
    f"{ROOT}/prices/__init__.py": repos.CODE,
    "tests/test_prices.py": b"import money_fixture\n" + repos.TESTS + SLOW,
    "pyproject.toml": CONFIG,
}
"""Its code is where no convention looks, and most of its tests need what is not there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repos.write(tmp_path_factory.mktemp("project") / "prices", PROJECT)


def test_an_install_and_its_task_take_them(market: Place, folder: Path, tmp_path: Path) -> None:
    options = ("--root", f"{ROOT}/", "--markers", "not slow")
    said = market.command(
        "install",
        folder,
        "--out",
        tmp_path / "in",
        "--tasks",
        tmp_path / "tasks",
        "--catalogue",
        market.catalogue,
        *options,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    found = load_install(tmp_path / "in" / "prices")
    commands = [goal.command for goal in found.goals]
    assert any("-m 'not slow'" in command for command in commands)
    assert "python3 -c 'import prices; print(prices.__name__)'" in commands
    assert len(list((tmp_path / "tasks").glob("*/task.toml"))) == 1


@pytest.mark.parametrize("options", [(), ("--root", ROOT), ("--markers", "not slow")])
def test_without_both_nothing_is_installed(
    market: Place, folder: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    said = market.command("install", folder, "--out", tmp_path / "in", "--catalogue", market.catalogue, *options)
    assert said.returncode == 1, said.stdout + said.stderr


def test_a_root_that_is_not_there_is_named(market: Place, folder: Path, tmp_path: Path) -> None:
    arguments = ("--out", tmp_path / "in", "--catalogue", market.catalogue, "--root", "engine/none")
    said = market.command("install", folder, *arguments)
    assert said.returncode == 1 and "'engine/none' is neither a file nor a folder" in said.stdout + said.stderr


def test_an_import_takes_them(market: Place, tmp_path: Path) -> None:
    """The project leaves slow tests out by itself, and the instance lists one."""
    tests = repos.TESTS.replace(b"def test_cheapest", b"@pytest.mark.slow\ndef test_cheapest")
    files = {**PROJECT, "tests/test_prices.py": tests, "pyproject.toml": CONFIG + b"addopts = \"-m 'not slow'\"\n"}
    commit = repos.repository(tmp_path / "all" / "acme__prices", files)
    broken = {f"{ROOT}/prices/__init__.py": repos.CODE.replace(b"min(prices)", b"max(prices)")}
    row = {
        "instance_id": "acme__prices.1",
        "repo": f"swesmith/acme__prices.{commit[:8]}",
        "problem_statement": "Wrong.\n",
        "patch": diff(tmp_path / "diff", files, broken),
        "image_name": "",
        "FAIL_TO_PASS": ["tests/test_prices.py::test_cheapest"],
        "PASS_TO_PASS": ["tests/test_prices.py::test_split"],
    }
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row]))

    def bring(out: str, *options: str) -> tuple[int, str]:
        said = market.command(
            "import",
            file,
            "--repositories",
            tmp_path / "all",
            "--out",
            tmp_path / out,
            "--exploits",
            "0",
            "--mutants",
            "0",
            "--heldout-share",
            "0",
            "--catalogue",
            market.catalogue,
            *options,
        )
        return said.returncode, said.stdout + said.stderr

    code, said = bring("with", "--root", ROOT, "-m", "slow or not slow", "--suite-seconds", "60")
    assert code == 0, said
    (made,) = (tmp_path / "with").glob("*/task.toml")
    assert Task.load(made.parent).info.fail_to_pass == ("tests/test_prices.py::test_cheapest",)
    code, said = bring("rootless", "-m", "slow or not slow")
    assert code == 1 and "No module named 'prices'" in said
    code, said = bring("quick", "--root", ROOT)
    assert code == 1 and "a FAIL_TO_PASS test does not pass after the fix" in said
