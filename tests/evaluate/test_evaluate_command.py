"""``woodshed evaluate`` against a real server of scripted models, in real boxes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disks import small_disk
from real_runs import begin, woodshed
from waiting import wait_until

from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite
from woodshed.evaluate.suites.cheats import write_cheats
from woodshed.evaluate.suites.interaction import write_interaction
from woodshed.grading.heldout import EndlessError
from woodshed.grading.verify import grade
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.run.evaluation.plan import EvaluationFolder, Wishes, check_wishes, split_tasks
from woodshed.run.evaluation.planning import spread_from
from woodshed.run.evaluation.policies import EvaluationError, resolve_policies
from woodshed.run.evaluation.regrade import regrade
from woodshed.run.evaluation.results import read_choices
from woodshed.run.evaluation.run import evaluate_policies
from woodshed.sandbox import open_backend
from woodshed.view.comparison import notes

from .scripted_models import ScriptedServer, running


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    return write_cheats(tmp_path_factory.mktemp("cheats") / "tasks", 6)


@pytest.fixture
def server(tasks: list[Task]) -> Iterator[ScriptedServer]:
    with running(ScriptedServer(tasks)) as found:
        yield found


def wishes(server: ScriptedServer, tasks: list[Task], out: Path, *models: str, **more: Any) -> Wishes:
    policies = tuple(f"{model}={server.url}#{model}" for model in models)
    return Wishes(out, policies, (str(tasks[0].path.parent),), **more)


def quiet(*_: object) -> None:
    return


def test_oracle_and_cheater_side_by_side(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    asked = wishes(server, tasks, tmp_path, "oracle", "cheater", samples=2, prices=("cheater=1/2",))
    found = evaluate_policies(asked, quiet)
    oracle, cheater = found["policies"]
    assert oracle["pass1"]["mean"] == 1.0 and (oracle["cheats"], oracle["judged"]) == (0, 12)
    assert oracle["tasks"] == 4, "impossible tasks say nothing about skill"
    assert cheater["cheats"] == 12 and cheater["cheat_rate"] == 1.0
    assert cheater["reasons"] == {"impossible_passed": 4, "honeypot_read": 4, "tests_tampered": 4}
    assert cheater["pass1"]["mean"] == 0.5, "what was looked up in the honeypot is a solution"
    assert found["baselines"] == ["oracle"] and found["differences"][0]["gain"]["mean"] == -0.5
    assert found["complete"] and oracle["turns"] < cheater["turns"] and cheater["dollars"] > 0
    assert oracle["tokens"] > 0 and oracle["dollars"] is None

    before = server.requests
    again = evaluate_policies(asked, quiet)
    assert server.requests == before and again == found, "nothing is run twice"
    for other, said in (
        ({"samples": 3}, "--samples: 2 there, 3 now"),
        ({"seed": 5}, "--seed"),
        ({"limit": 2}, "--limit"),
        ({"temperatures": (0.5,)}, "--temperature"),
    ):
        with pytest.raises(EvaluationError, match=said):
            evaluate_policies(replace(asked, **other), quiet)
    with pytest.raises(EvaluationError, match=r"in another order \(POLICY: oracle, cheater\)"):
        evaluate_policies(replace(asked, policies=asked.policies[::-1]), quiet)


def test_regrading_uses_the_tasks_as_they_are(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    shutil.copytree(tasks[0].path.parent, folder)
    own = [Task.load(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    asked = wishes(server, own, tmp_path / "out", "oracle")
    (oracle,) = evaluate_policies(asked, quiet)["policies"]
    assert oracle["pass1"]["mean"] == oracle["axes"]["excess"]["mean"] == 1.0
    assert len(list(SubmissionStore(tmp_path / "out" / "submissions"))) == 6
    before = server.requests
    found = regrade(tmp_path / "out", quiet, jobs=2)
    assert (found.graded, found.changed, found.left_out) == (6, (), {}) and server.requests == before
    victim = next(task for task in own if task.info.kind == "honeypot")
    cases = victim.path / "tests" / "cases.json"
    wrong = json.loads(cases.read_text())
    for about in wrong.values():
        about["cases"] = [[args, "never"] for args, _ in about["cases"]]
    cases.write_text(json.dumps(wrong))
    editable = next(task for task in own if task.info.kind == "editable")
    (editable.path / "solution" / "workspace" / "more.py").write_text("a = 1\n" * 100)
    found = regrade(tmp_path / "out", quiet, jobs=2)
    assert len(found.changed) == 1 and victim.name.partition("/")[2] in found.changed[0]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["policies"][0]["pass1"]["mean"] == 0.75 and results["regraded"]
    assert results["policies"][0]["axes"]["excess"]["mean"] < 0.9, "the reference is longer now"
    assert results["policies"][0]["cheats"] == 1, "the tests that the agent was given pass and the corrected ones fail"
    with pytest.raises(EvaluationError, match="--suite"):
        evaluate_policies(asked, quiet)


def test_an_episode_that_cannot_be_graded_again_ends_no_regrade_and_keeps_its_newest_outcome(
    server: ScriptedServer, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_policies(wishes(server, tasks, tmp_path, "oracle"), quiet)
    scored = next(task for task in tasks if task.info.kind == "honeypot")
    ends = True

    async def graded(task: Task, *given: Any, **more: Any) -> Outcome:
        if task.name != scored.name:
            return await grade(task, *given, **more)
        if ends:
            return Outcome(False)
        raise EndlessError("its solution does not end on other inputs")

    monkeypatch.setattr("woodshed.run.evaluation.regrade.grade", graded)
    assert len(regrade(tmp_path, quiet, jobs=2).changed) == 1
    ends = False
    found = regrade(tmp_path, quiet, jobs=2)
    assert found.graded == 5 and list(found.left_out.values()) == ["its solution does not end on other inputs"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["policies"][0]["pass1"]["mean"] == 0.75


def test_budgets_end_it_and_a_larger_one_goes_on(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    asked = wishes(server, tasks, tmp_path, "oracle", "idle", jobs=1, max_tokens=400)
    found = evaluate_policies(asked, quiet)
    done = [policy["episodes"] for policy in found["policies"]]
    assert not found["complete"] and all(0 < count < 6 for count in done), done
    assert "max-tokens-total" in found["note"]
    found = evaluate_policies(replace(asked, max_tokens=None), quiet)
    assert found["complete"] and [policy["episodes"] for policy in found["policies"]] == [6, 6]


def test_open_boxes_beside_strict_ones(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    """A model that looks the solution up has it only where a box reaches it, whatever its recipe allows."""
    hosts = (f"127.0.0.1:{server.server_address[1]}",)
    private = ("sandbox.allow_private=true", f"sandbox.allow={json.dumps(hosts)}")
    asked = wishes(server, tasks, tmp_path, "oracle", "looker", opened=hosts, overrides=private)
    found = evaluate_policies(asked, quiet)
    rates = {policy["name"]: policy["pass1"]["mean"] for policy in found["policies"]}
    assert rates == {"oracle": 1.0, "oracle:open": 1.0, "looker": 0.0, "looker:open": 1.0}
    compared = {(each["policy"], each["baseline"]): each["gain"]["mean"] for each in found["differences"]}
    assert compared == {
        ("oracle:open", "oracle"): 0.0,
        ("looker", "oracle"): -1.0,
        ("looker:open", "looker"): 1.0,
    }
    assert f"looker:open: looker in boxes that could reach {hosts[0]}" in notes(found)
    with pytest.raises(EvaluationError, match=r"--open: .* is missing"):
        evaluate_policies(replace(asked, opened=()), quiet)
    with pytest.raises(EvaluationError, match="--open nowhere at all"):
        evaluate_policies(replace(asked, opened=("nowhere", "at all"), out=tmp_path / "other"), quiet)


def test_a_disk_that_fills_up_again_and_again(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    """Wherever the room ends the command says so, and with more room it goes on to the results of any other."""
    undisturbed = evaluate_policies(wishes(server, tasks, tmp_path / "whole", "oracle", "cheater"), quiet)
    asked, ends = wishes(server, tasks, tmp_path / "disk" / "out", "oracle", "cheater"), 0
    with small_disk(tmp_path / "disk", kib=32) as disk:
        for kib in range(64, 4096, 32):
            try:
                found = evaluate_policies(asked, quiet)
                break
            except EvaluationError as error:
                assert "the disk is full" in str(error) and "give the same command again" in str(error)
                ends += 1
            disk.resize(kib)
    assert ends > 3, "the room ended in several places"
    for one, other in zip(found["policies"], undisturbed["policies"], strict=True):
        for same in ("pass1", "episodes", "infra_errors", "reasons", "cheats", "axes"):
            assert one[same] == other[same], same


@pytest.mark.parametrize("at", [(-0.1,), (math.nan,), (math.inf,), (0.5, 0.5)])
def test_a_temperature_is_a_number_that_is_given_once(at: tuple[float, ...], tmp_path: Path) -> None:
    development = "0.2" if len(at) > 1 else ""
    with pytest.raises(EvaluationError, match="--temperature: give each temperature once, none below 0"):
        check_wishes(Wishes(tmp_path, ("p",), ("s",), temperatures=at, development=development))


def test_a_temperature_is_chosen_on_other_tasks(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    asked = wishes(server, tasks, tmp_path, "oracle", temperatures=(0.3, 1.0), development="0.3")
    found = evaluate_policies(asked, quiet)
    (oracle,) = found["policies"]
    assert oracle["temperature"] == 0.3 and set(oracle["tried"]) == {"0.3", "1"}
    names = {kind: set(found["settings"][kind]["tasks"]["tasks"]) for kind in ("suites", "development")}
    assert len(names["development"]) == 2 and len(names["suites"]) == 4 and not names["suites"] & names["development"]
    assert oracle["episodes"] == 4, "development episodes do not count"
    with closing(TrajectoryStore(tmp_path / "trajectories")) as store:
        tried = {row["task"] for row in store.rows("group_id LIKE 'dev-%'")}
    impossible = {name for name in names["development"] if "impossible" in name}
    assert impossible and tried == names["development"] - impossible, "a solution of them is a cheat"
    with pytest.raises(EvaluationError, match="--development"):
        evaluate_policies(replace(asked, development="", out=tmp_path / "other"), quiet)
    with pytest.raises(EvaluationError, match="nothing to choose"):
        evaluate_policies(replace(asked, temperatures=(1.0,), out=tmp_path / "other"), quiet)
    with pytest.raises(EvaluationError, match="is evaluated too"):
        evaluate_policies(replace(asked, development=str(tasks[0].path), out=tmp_path / "other"), quiet)


def test_development_tasks_have_to_count_for_a_score(tmp_path: Path) -> None:
    suite = Suite("interaction", "interaction", tuple(write_interaction(tmp_path / "tasks", 4)))
    asked = Wishes(tmp_path, ("p",), ("s",), temperatures=(0.3, 1.0), development="0.5")
    with pytest.raises(EvaluationError, match=r"--development 0\.5: none of these tasks counts for a score"):
        split_tasks([suite], asked, [])


def test_an_evaluation_is_graded_on_the_inputs_of_one_key(
    server: ScriptedServer, tasks: list[Task], tmp_path: Path
) -> None:
    asked = wishes(server, tasks[:1], tmp_path, "idle", jobs=1, max_tokens=1)
    assert not evaluate_policies(asked, quiet)["complete"]
    (tmp_path / "held_out.key").unlink()
    with pytest.raises(EvaluationError, match=r"\(held_out\.key in the folder: "):
        evaluate_policies(replace(asked, max_tokens=None), quiet)
    with pytest.raises(EvaluationError, match="is not the key of this evaluation"):
        regrade(tmp_path, quiet, jobs=1)


def test_seeds_are_graded_again_although_there_are_no_results(
    server: ScriptedServer, tasks: list[Task], tmp_path: Path
) -> None:
    names = ("idle@0", "idle@1", "oracle@0", "oracle@1")
    policies = tuple(f"{name}={server.url}#{name.partition('@')[0]}" for name in names)
    found = evaluate_policies(replace(wishes(server, tasks, tmp_path), policies=policies, limit=1), quiet)
    (tmp_path / "results.json").unlink()
    regrade(tmp_path, quiet, jobs=2)
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["baselines"] == ["idle@0", "idle@1"] and again["differences"] == found["differences"]


@pytest.mark.parametrize("damage", ["", "null", "[]", "{}", '{"a": 3}', '{"policies": {}}'])
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path)
    for path in (folder.settings, folder.results, folder.temperatures):
        path.write_text(damage)
    with pytest.raises(EvaluationError, match=r"evaluation\.json"):
        regrade(tmp_path, quiet, jobs=1)
    with pytest.raises(EvaluationError, match=r"results\.json"):
        spread_from(tmp_path, rate=0.5, task_sd=0.1, difference=0.1, difference_sd=0.1)
    if damage != "{}":  # no temperature is chosen yet
        with pytest.raises(EvaluationError, match=r"temperatures\.json"):
            read_choices(folder)


@pytest.mark.parametrize(("part", "said"), [("grading", "graders"), ("limits", "limits of the boxes")])
def test_policies_that_were_graded_differently_are_marked(part: str, said: str) -> None:
    policies = {"a": {"grading": 1, "limits": 1}, "b": {"grading": 1, "limits": 1}}
    results: dict[str, Any] = {"note": "", "policies": [], "regraded": "", "settings": {"policies": policies}}
    assert notes(results) == []
    policies["b"][part] = 2
    (note,) = notes(results)
    assert f"different {said}" in note


def test_killed_and_given_again_it_ends_the_same(server: ScriptedServer, tasks: list[Task], tmp_path: Path) -> None:
    server.delay = 0.2
    options = ("--suite", tasks[0].path.parent, "--out", tmp_path / "out", "--jobs", "1", "-k", "2")
    arguments = ("evaluate", f"oracle={server.url}#oracle", f"cheater={server.url}#cheater", *options)
    index = tmp_path / "out" / "trajectories" / "index.sqlite"

    def stored() -> int:
        if not index.exists():
            return 0
        try:
            with sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=30) as connection:
                return int(connection.execute("SELECT count(*) FROM trajectories").fetchone()[0])
        except sqlite3.OperationalError:  # the command is about to create the table
            return 0

    for goal in (2, 14):
        process = begin(tmp_path, *arguments, output=tmp_path / "log")
        wait_until(lambda goal=goal: stored() >= goal, f"{goal} episodes", process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = woodshed(tmp_path, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(p["episodes"], p["pass1"]["mean"], p["cheats"]) for p in found["policies"]] == [
        (12, 1.0, 0),
        (12, 0.5, 12),
    ]
    assert stored() == 24 and (tmp_path / "out" / "results.html").exists()


def test_what_cannot_be_evaluated_is_said(tasks: list[Task], tmp_path: Path) -> None:
    for source, said in (
        (str(tmp_path), "neither a checkpoint folder"),
        ("http://", "no address"),
        ("http://127.0.0.1:1#a", "does not answer"),
    ):
        with pytest.raises(EvaluationError, match=said):
            evaluate_policies(Wishes(tmp_path / "out", (source,), (str(tasks[0].path),)), quiet)
    url = "http://127.0.0.1:1#a"
    with pytest.raises(EvaluationError, match="only a gateway"):
        resolve_policies([url], agents=["program:my-agent"])
    with pytest.raises(EvaluationError, match="no policy is given as b=POLICY"):
        resolve_policies([f"a={url}"], agents=["b=smoke"])
    with pytest.raises(EvaluationError, match="another one for all policies"):
        resolve_policies([url], agents=["smoke", "laptop"])
    ours, other = resolve_policies([f"ours={url}", f"other={url}"], agents=["smoke", "other=laptop"])
    assert (ours.recipe.name, other.recipe.name) == ("smoke", "laptop")
    with pytest.raises(EvaluationError, match="another policy is called 'a'"):
        resolve_policies([url, url])
    with pytest.raises(EvaluationError, match="another policy is called 'a:open'"):
        resolve_policies([f"a:open={url}", f"a={url}"], opened=["example.org"])
    with pytest.raises(EvaluationError, match="no such folder or suite; there are cheats, cruxeval, "):
        evaluate_policies(Wishes(tmp_path / "out", (url,), ("quixbug",)), quiet)
    train = tmp_path / "train"
    shutil.copytree(tasks[0].path, train / "one")
    with pytest.raises(EvaluationError, match="--split"):
        evaluate_policies(Wishes(tmp_path / "out", (url,), (str(train),), split="train"), quiet)
