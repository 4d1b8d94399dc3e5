"""Rules alone: a real repository with missing test dependencies is installed, proved offline, and becomes tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from woodshed.grading.pytest_grader import TestRun, import_path, run_pytest
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.taskbox import box_spec
from woodshed.tasks.install.command import InstallWishes, install_sources
from woodshed.tasks.install.lock import find_install, load_install
from woodshed.tasks.library.exchange.build import build_from_instances
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.settings import PackageTaskSettings


@pytest.fixture(scope="module")
def installed(market: Place) -> Path:
    out = market.root / "installs"
    said = market.command(
        "install", market.root / "repository", "--out", out, "--catalogue", market.catalogue, "--json"
    )
    assert said.returncode == 0, said.stdout + said.stderr
    (line,) = json.loads(said.stdout)
    assert line["installed"] and line["tries"] == 3 and len(line["targets"]) == 3
    assert {w["name"] for w in line["wheels"]} == {"fast", "money_fixture", "pytest_mock"}
    assert line["plugins"] == ["pytest_mock"]
    assert line["notes"] == ["no-such-thing was left out: no wheel for it was found"]
    return out


def test_what_tests_miss_is_found_and_locked(market: Place, installed: Path) -> None:
    found = find_install(installed, str(market.root / "repository"))
    assert find_install(installed, f"{found.origin}@{found.commit}") == found and len(found.commit) == 40
    assert [w.version for w in found.installed] == ["1.1", "2.0", "9.0"]  # 2.0, as the workflow says
    assert (found.name, found.version, found.builder) == ("price-list", "1.2", "rules")
    assert found.targets[0].passing_share == 0.8 and set(found.targets) <= set(found.goals)
    assert "install 'fast>=1' money-fixture==2.0 pytest-mock\n" in found.recipe.setup
    again = market.command("install", market.root / "repository", "--out", installed)
    assert again.returncode == 0 and "plugins   pytest_mock" in again.stdout, again.stderr
    assert "resolved  fast 1.1, money_fixture 2.0, pytest_mock 9.0" in again.stdout


def test_tasks_are_built_from_it_and_no_plugin_can_be_turned(market: Place, installed: Path, tmp_path: Path) -> None:
    repository, out = market.root / "repository", tmp_path / "made"
    built = market.build(str(repository), out=out, wishes=Wishes(installs=installed))
    assert len(built) == 2
    ini = (built[0].workspace / "pytest.ini").read_text()
    assert "addopts = -p no:cacheprovider -p pytest_mock\n" in ini
    required = {test for task in built for test in (*task.info.fail_to_pass, *task.info.pass_to_pass)}
    assert "tests/test_prices.py::test_split" in required  # needs the plugin; all of them need the project's metadata
    (good, *_), evil = built, b"\nimport pytest_mock\npytest_mock.currency = lambda: 'XXX'\n"
    turned = {name: data + evil for name, data in good.solution_files().items()}

    async def attack(backend: Backend, layers: LayerStore) -> tuple[Outcome, Outcome, TestRun]:
        honest = await grade(good, good.solution_files(), backend, layers)
        refused = await grade(good, turned, backend, layers)
        box = await backend.create(box_spec(good, layers))
        try:
            await box.put(turned)
            run = await run_pytest(box, ["tests/test_prices.py"], None, path=import_path(good))
        finally:
            await box.close()
        return honest, refused, run

    honest, refused, unscreened = market.boxes(attack)
    assert honest.resolved and not refused.resolved and "import pytest_mock" in refused.detail
    said = {result.text for result in unscreened.results.values()}
    assert said == {"the test framework was changed: pytest_mock.currency"}
    lock = out / "sources.toml"
    assert 'metadata = "price-list==1.2"' in lock.read_text() and 'plugins = ["pytest_mock"]' in lock.read_text()
    for place in (installed, tmp_path / "gone"):  # what was taken from it is locked
        assert market.build(str(repository), out=out, wishes=Wishes(installs=place)) == built
    with pytest.raises(PackageError, match="--needs has no effect beside --install"):
        market.build(str(repository), out=tmp_path / "x", wishes=Wishes(installs=installed, needs=("six",)))


def test_a_lock_that_was_changed_is_refused(installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "installs" / "repository"
    shutil.copytree(installed / "repository", copy)
    (copy / "setup.sh").write_text("true\n")
    with pytest.raises(
        PackageError, match=r"install.toml: setup.sh was changed after it was locked; delete its folder"
    ):
        load_install(copy)
    (copy / "install.toml").write_text("origin = 1\n")
    with pytest.raises(PackageError, match="origin must be a string"):
        load_install(copy)
    with pytest.raises(PackageError, match=r"has no install of nowhere; make one with `woodshed tasks install nowhere"):
        find_install(installed, "nowhere")


def test_an_instance_runs_in_its_install(market: Place, installed: Path, tmp_path: Path) -> None:
    """Its tests need a plugin, compiled code and the project's metadata; without the install they do not run."""
    repository = market.root / "repository"
    commit = repos.git(repository, "rev-parse", "HEAD")
    code = repos.git(repository, "show", f"{commit}:src/prices/__init__.py")
    place, line = next((n, text) for n, text in enumerate(code.split("\n"), 1) if "min(prices)" in text)
    hunk = f"@@ -{place} +{place} @@\n-{line}\n+{line.replace('min', 'max')}\n"
    (tmp_path / "repositories/acme").mkdir(parents=True)
    (tmp_path / "repositories/acme/prices").symlink_to(repository)
    row = {
        "instance_id": "acme__prices.1",
        "repo": f"swesmith/acme__prices.{commit[:8]}",
        "problem_statement": "Wrong.\n",
        "patch": f"--- a/src/prices/__init__.py\n+++ b/src/prices/__init__.py\n{hunk}",
        "image_name": "",
        "FAIL_TO_PASS": ["tests/test_prices.py::test_cheapest"],
        "PASS_TO_PASS": ["tests/test_prices.py::test_split"],
    }
    file, settings = tmp_path / "rows.json", PackageTaskSettings(catalogue=str(market.catalogue), exploits=0)
    file.write_text(json.dumps([row]))

    def bring(out: Path, wishes: Wishes) -> tuple[list[Task], dict[str, str]]:
        folder = tmp_path / "repositories"
        return market.boxes(
            lambda b, layers: build_from_instances(file, folder, settings, b, layers, out, wishes=wishes)
        )

    (task,), left_out = bring(tmp_path / "with", Wishes(installs=installed))
    assert left_out == {} and "-p pytest_mock" in (task.workspace / "pytest.ini").read_text()
    assert market.boxes(lambda b, layers: grade(task, task.solution_files(), b, layers)).resolved
    tasks, left_out = bring(tmp_path / "without", Wishes())
    assert tasks == [] and "does not pass after the fix" in left_out["acme__prices.1"]
    assert "No module named 'fast'" in left_out["acme__prices.1"]
    tasks, left_out = bring(tmp_path / "elsewhere", Wishes(installs=tmp_path))
    assert left_out["acme__prices.1"].startswith("it has no install: ")


def test_it_says_what_it_does_before_it_is_done(market: Place, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/notes.txt").write_text("no code\n")
    told: list[tuple[int, int, str]] = []
    wishes = InstallWishes(catalogue=str(market.catalogue))
    (outcome,) = market.boxes(
        lambda backend, layers: install_sources(
            [str(tmp_path / "bare")], backend, layers, tmp_path / "out", wishes, lambda *line: told.append(line)
        )
    )
    assert outcome.install is None and outcome.error and told[0] == (0, 1, "bare: reading it")
