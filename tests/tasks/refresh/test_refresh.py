"""Tasks that became too easy are hardened or retired, those that nobody solves are checked again: in real boxes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tasks.sources.place import Place
from woodshed.cli.main import app
from woodshed.record.history import History, Rating, in_use, note_rating, read_history
from woodshed.record.task import HISTORY, Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.library.refresh.decide import Limits, find
from woodshed.tasks.library.refresh.harder import WAYS, Way
from woodshed.tasks.library.refresh.run import Refresh, Wishes, refresh
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.validate.check import Verdict, check_folders
from woodshed.tasks.validate.splits import TWIN

DAY = "2026-01-02T03:04:05Z"


def rating(solved: int, rollouts: int, version: int = 0, date: str = DAY) -> Rating:
    return Rating(f"g{version}", "p", version, rollouts, solved, "rate", date)


@pytest.mark.parametrize(
    ("ratings", "finding"),
    [
        ([], "unrated"),
        ([rating(8, 8)], "too easy"),
        ([rating(4, 4)], "undecided"),  # the interval begins at 0.51
        ([rating(7, 8)], "teaches"),
        ([rating(95, 100)], "too easy"),
        ([rating(0, 4)], "undecided"),
        ([rating(0, 8)], "unsolved"),
        ([rating(0, 4), rating(0, 4, 1)], "unsolved"),
        ([rating(1, 8), rating(0, 8, 1, "2026-02-02T00:00:00Z")], "teaches"),  # somebody can
        ([rating(8, 8), rating(1, 8, 1, "2026-02-02T00:00:00Z")], "teaches"),  # the newest counts
        ([rating(8, 8, 1, "2026-02-02T00:00:00Z"), rating(1, 8)], "too easy"),
    ],
)
def test_the_interval_decides(ratings: list[Rating], finding: str) -> None:
    assert find(History(tuple(ratings)), Limits())[0] == finding


def copied(bank: Place, to: Path) -> dict[str, Task]:
    """The built tasks in a folder of their own, by function."""
    shutil.copytree(bank.root / "tasks", to)
    tasks = [Task.load(path.parent) for path in sorted(to.glob("*/task.toml"))]
    return {task.info.provenance["function"]: task for task in tasks}


def refreshed(bank: Place, folder: Path, out: Path, ways: Sequence[Way] = WAYS) -> Refresh:
    wishes = Wishes(Limits(), ways, 2)
    return bank.boxes(lambda backend, layers: refresh(folder, out, wishes, backend, layers))


def statuses(tasks: dict[str, Task]) -> dict[str, str]:
    return {name: read_history(task).status for name, task in tasks.items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    }


def test_too_easy_tasks_become_harder_ones(bank: Place, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "tasks" / "refreshed"
    tasks = copied(bank, folder)
    assert set(tasks) >= {"Account.deposit", "convert", "cents", "split"}, sorted(tasks)
    easy = ("Account.deposit", "convert", "cents", "split")
    for name in easy:
        note_rating(tasks[name], rating(8, 8))
    teaching = next(name for name in tasks if name not in easy)
    note_rating(tasks[teaching], rating(3, 8))

    found = refreshed(bank, folder, out)
    assert found.build is not None and found.build.packages[0].error == "" and found.notes == [], found.text()
    made = {t.info.provenance["generator"]: t for t in (Task.load(p.parent) for p in out.glob("*/task.toml"))}
    sources = {kind: t.info.provenance["hardened_from"].split(", ") for kind, t in made.items()}
    cone = next(kind for kind in made if kind in ("delete_methods", "delete_class", "delete_feature"))
    assert sources[cone] == [tasks["Account.deposit"].name] and "Account.deposit" in _functions(made[cone])
    assert len(_functions(made[cone])) > 1
    names = {tasks[name].name for name in easy[1:]}
    assert set(sources["combine"]) <= names and len(sources["combine"]) in (2, 3)
    if len(sources["combine"]) == 2:  # the one that found no partner is told more tersely
        assert set(sources["delete_function"]) == names - set(sources["combine"])
    old = {task.name for task in tasks.values()}
    assert not {t.name for t in made.values()} & old and {t.info.split for t in made.values()} == {"train"}

    assert {name: s for name, s in statuses(tasks).items() if s != "in use"} == dict.fromkeys(easy, "retired")
    marks = {name: read_history(tasks[name]).mark for name in easy}
    assert all(mark is not None and len(mark.hardened) == 1 for mark in marks.values()), marks
    assert "p version 0 solved 8 of 8, 1.00 [0.68, 1.00]" in str(marks["convert"])
    kept, left_out = in_use([*tasks.values(), *made.values()])
    assert left_out == {"retired": 4} and all(task in kept for task in made.values())
    text = found.text()
    assert "too easy            4  retired" in text and "teaches             1" in text and "unrated" in text
    assert f"{len(made)} tasks in 0." in text.splitlines()[-1] and "tasks per core-hour" in text

    async def gates(backend: Backend, layers: LayerStore) -> list[Verdict]:
        return await check_folders([made[cone].path], backend, layers)

    (verdict,) = bank.boxes(gates)
    assert verdict.passed, str(verdict)

    before = contents(folder)
    again = refreshed(bank, folder, out)
    assert contents(folder) == before and again.build is None and again.hardened == {}

    # As a kill leaves it: the harder tasks are there, and not every mark is.
    for name in easy[1:3]:
        history = tasks[name].path / HISTORY
        history.write_text("".join(line for line in history.read_text().splitlines(True) if "rating" in line))
    refreshed(bank, folder, out)
    assert {k for k in contents(folder)} == set(before), "nothing was made twice"
    assert {name: s for name, s in statuses(tasks).items() if s != "in use"} == dict.fromkeys(easy, "retired")


def _functions(task: Task) -> set[str]:
    stated = task.info.provenance
    return {stated["function"], *(text.rpartition(":")[2] for text in stated.get("also", "").split(", "))} - {""}


def test_what_nobody_solves_is_checked_again(bank: Place, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "refreshed"
    tasks = copied(bank, folder)
    sound, spoilt = tasks["convert"], tasks["split"]
    gold = next((spoilt.path / "solution" / "workspace").rglob("*.py"))
    gold.write_bytes(gold.read_bytes().replace(b"[share + 1] * rest", b"[share + 2] * rest"))
    spoilt = Task.load(spoilt.path)
    for task in (sound, spoilt):
        note_rating(task, rating(0, 8))
    found = refreshed(bank, folder, out)
    assert read_history(sound).status == "quarantined" and read_history(spoilt).status == "broken"
    mark = read_history(sound).mark
    assert mark is not None and "nobody solved it: 0 of 8" in mark.why and "the solution passes" in mark.why
    assert list(found.broken) == [spoilt.name] and "the solution scores 0" in found.broken[spoilt.name]
    assert "unsolved            2  checked again, quarantined or broken" in found.text()
    assert sound.path.is_dir() and spoilt.path.is_dir() and not list(out.glob("*/task.toml"))
    note_rating(sound, rating(1, 8, 5, "2026-03-03T00:00:00Z"))
    again = refreshed(bank, folder, out)
    assert again.released == [sound.name] and read_history(sound).status == "in use"
    assert again.found[sound.name] == "teaches" and again.found[spoilt.name] == "broken"


def test_where_nothing_can_be_hardened_it_is_said(bank: Place, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "refreshed"
    tasks = copied(bank, folder)
    with pytest.raises(TaskError, match=r"none of its \d training tasks has a rating in its present form; rate"):
        refreshed(bank, folder, out)
    with pytest.raises(PackageError, match="is the folder of the tasks themselves: give another"):
        refreshed(bank, folder, folder)
    note_rating(tasks["cents"], rating(20, 20))
    (folder / "sources").rename(tmp_path / "bytes")
    with pytest.raises(PackageError, match=r"is missing: the tasks of bank are made from it"):
        refreshed(bank, folder, out)
    assert read_history(tasks["cents"]).status == "in use", "what could not be tried is not given up"
    (folder / "sources.toml").rename(tmp_path / "away")
    found = refreshed(bank, folder, out)
    assert "has no sources.toml, so `woodshed tasks build` did not make it" in found.text()
    assert read_history(tasks["cents"]).status == "retired"


def test_a_killed_refresh_leaves_out_no_gate(bank: Place, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "refreshed"
    tasks = copied(bank, folder)
    lock = folder / "sources.toml"
    lock.write_text(lock.read_text().replace("exploits = 0", "exploits = 1"))
    easy = {name: tasks[name] for name in ("cents", "split")}
    for task in easy.values():
        note_rating(task, rating(8, 8))
    made = refreshed(bank, folder, out, ["terse"]).hardened
    ledger = out / ".bank.jsonl"
    attacked = json.loads(next(line for line in ledger.read_text().splitlines() if "exploits" in line))["slug"]

    # As a kill leaves it that comes when the harder tasks are kept: no gate after that, no mark.
    ledger.write_text("".join(line for line in ledger.read_text().splitlines(True) if "exploits" not in line))
    for task in easy.values():
        history = task.path / HISTORY
        history.write_text("".join(line for line in history.read_text().splitlines(True) if "rating" in line))
    twin = folder / "twin"
    shutil.copytree(easy["split"].path, twin)
    (twin / HISTORY).unlink()
    toml = (twin / "task.toml").read_text().replace('split = "train"', 'split = "heldout"')
    (twin / "task.toml").write_text(toml)
    again = refreshed(bank, folder, out, ["terse"])
    assert again.hardened == {easy["cents"].name: made[easy["cents"].name], easy["split"].name: []}
    assert again.build is not None and again.build.packages[0].rejected[TWIN] == 1
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [row["slug"] for row in rows if row.get("passed") == "exploits"] == [attacked]
    (kept,) = made[easy["cents"].name]
    assert [Task.load(path.parent).name for path in out.glob("*/task.toml")] == [kept]
    assert set(statuses(easy).values()) == {"retired"}


def test_the_command(bank: Place, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    cents = copied(bank, folder)["cents"]
    note_rating(cents, rating(8, 8))

    def run(*arguments: str | Path) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["tasks", *map(str, arguments)], env={"COLUMNS": "400"})
        return done.exit_code, done.output

    code, said = run("refresh", folder, "--out", folder / "refreshed", "--way", "terse", "--json")
    assert code == 0, said
    found = json.loads(said)
    (name,) = found["hardened"][cents.name]
    assert name.endswith("-normal") and found["tasks"] == 1 and found["tasks_per_core_hour"] > 0
    terse = Task.load(folder / "refreshed" / name.removeprefix("woodshed/"))
    assert terse.info.provenance["level"] == "normal" and terse.info.provenance["hardened_from"] == cents.name
    assert terse.instruction != cents.instruction and terse.solution_files() == cents.solution_files()
    code, said = run("stats", folder)
    assert code == 0 and "retired 1" in said
    code, said = run("refresh", folder, "--out", folder / "refreshed", "--too-easy", "1.5")
    assert code == 2 and "--too-easy must lie between 0 and 1" in said
    code, said = run("refresh", folder, "--out", folder / "refreshed", "--way", "longer")
    assert code == 2 and "--way longer: there are cone, combine, terse" in said
