"""Rating tasks: a scripted policy behind the real gateway, real boxes, the real store; and the command line."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.cluster.supervisor import Supervisor
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.grading.settings import GradingSettings
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.recipe.load import load_recipe
from woodshed.record.history import Mark, note_mark, read_history
from woodshed.record.run_directory import RunDirectory, key_file, write_json
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.forking import FORK_OF
from woodshed.rollout.rollout import Arena
from woodshed.run.rate import Plan, Rated, RatingError, chosen, rate, rate_from, rate_in, rollouts_of
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Egress
from woodshed.stages.tasks import built_tasks
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic


@pytest.fixture(scope="module")
def synthetic_tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    root = tmp_path_factory.mktemp("rate")
    specs = draw_synthetic(2, split="train", seed=5, workers=1)
    return [write_synthetic(spec, root / "tasks" / f"synthetic-{n}") for n, spec in enumerate(specs)]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


class Policy(ScriptedEngine):
    """Solves the first task in every second episode, and no other; ``episodes`` counts them."""

    def __init__(self, first: Task) -> None:
        super().__init__(self._reply, context=1 << 20)
        self.first, self.episodes = first, 0

    def _reply(self, tokens: list[int]) -> list[int]:
        text = HERMES.decode(tokens)
        if "<tool_response>" in text:
            return HERMES.encode(call("finish"), allow_special=True)
        self.episodes += 1
        (path, gold), *_ = self.first.solution_files().items()
        solves = self.first.instruction.strip() in text and self.episodes % 2
        said = call("write_file", path=path, content=gold.decode()) if solves else call("list_dir", path=".")
        return HERMES.encode(said, allow_special=True)


def rated(
    engine: ScriptedEngine,
    tasks: Sequence[Task],
    store: Path,
    rollouts: int,
    checkpoint: str = "c",
    **settings: Any,
) -> Rated:
    async def main() -> Rated:
        backend = open_backend()
        server = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://gateway") as client:
            arena = Arena(
                backend=backend,
                layers=LayerStore(store / "layers"),
                admin=GatewayAdmin("http://gateway", ADMIN, client=client),
                base_url="http://gateway",
                agent=BuiltinAgent(HarnessSettings(), client),
                policy="scripted",
                attempts=1,
                **settings,
            )
            kept = TrajectoryStore(store / "trajectories")
            try:
                return await rate_in(arena, tasks, kept, "scripted", checkpoint, rollouts, 1, lambda *_: None)
            finally:
                kept.close()
                await backend.close()

    return asyncio.run(main())


def test_a_policy_is_run_and_what_is_known_is_not_run_again(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    engine = Policy(synthetic_tasks[0])
    found = rated(engine, synthetic_tasks, tmp_path, 2)
    assert engine.episodes == 4 and found.known == 0 and found.lost == 0 and found.left_out == {}
    by_task = {name: rating for name, rating in found.new}
    assert by_task[synthetic_tasks[0].name].solved == 1 and by_task[synthetic_tasks[1].name].solved == 0
    first = read_history(synthetic_tasks[0]).ratings
    assert [(r.rollouts, r.solved, r.version, r.kind) for r in first] == [(2, 1, 3, "rate")]
    assert first[0].turns == 2.0 and first[0].policy == "scripted" and first[0].checkpoint == "c"

    assert rated(engine, synthetic_tasks, tmp_path, 2).new == [] and engine.episodes == 4, "nothing is done twice"
    more = rated(engine, synthetic_tasks[1:], tmp_path, 3)
    assert engine.episodes == 5 and [r.rollouts for _, r in more.new] == [3], "only what is missing is run"
    other = rated(engine, synthetic_tasks[1:], tmp_path, 1, checkpoint="another")
    assert len(other.new) == 1 and len(read_history(synthetic_tasks[1]).ratings) == 2, "a new policy adds"

    open_box, lenient = Egress(("pypi.org",)), GradingSettings(held_out_share=0.0)
    for setting in ({"egress": open_box}, {"egress": Egress()}, {"grading": lenient}):
        assert len(rated(engine, synthetic_tasks[1:], tmp_path, 1, **setting).new) == 1, setting
    same = GradingSettings(held_out_key="ab" * 16)
    assert rated(engine, synthetic_tasks[1:], tmp_path, 1, grading=same).new == [], "a key is of the folder"
    engine.episodes = 6

    changed = synthetic_tasks[1].path / "instruction.md"
    text = changed.read_text()
    changed.write_text(text + "\nIt is urgent.\n")
    again = rated(engine, [Task.load(synthetic_tasks[1].path)], tmp_path, 1)
    assert engine.episodes == 7 and len(again.new) == 1, "rollouts are of the task as it is"
    changed.write_text(text)


def test_what_infrastructure_errors_cost_is_run_again(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    layers = LayerStore(tmp_path / "layers")
    layer, away = layers.add("extra", lambda root: None), tmp_path / "away"
    shutil.copytree(synthetic_tasks[1].path, tmp_path / "task")
    toml = tmp_path / "task" / "task.toml"
    toml.write_text(toml.read_text().replace("layers = []", f'layers = ["{layer}"]'))
    task, engine = Task.load(tmp_path / "task"), Policy(synthetic_tasks[0])
    assert task.info.layers == (layer,)
    layers.path(layer).rename(away)
    for _ in range(2):  # a layer that is missing is what a sandbox fails on, however often
        found = rated(engine, [task], tmp_path, 2)
        assert found.left_out == {task.name: "every rollout ended in an infrastructure error"} and found.lost == 2
    away.rename(tmp_path / "layers" / layer)
    found = rated(engine, [task], tmp_path, 2)
    assert [r.rollouts for _, r in found.new] == [2] and found.lost == 0 and engine.episodes == 2
    assert rated(engine, [task], tmp_path, 2).known == 1 and engine.episodes == 2
    layers.path(layer).rename(away)
    assert rated(engine, [task], tmp_path, 3).lost == 1 and [r.rollouts for r in read_history(task).ratings] == [2]
    away.rename(tmp_path / "layers" / layer)
    assert [r.rollouts for _, r in rated(engine, [task], tmp_path, 3).new] == [3] and engine.episodes == 3


def test_rollouts_are_stored_in_the_folder_that_is_given(synthetic_tasks: list[Task]) -> None:
    folder = synthetic_tasks[0].path.parent
    assert rollouts_of(folder) == rollouts_of(synthetic_tasks[0].path) == folder / ".rollouts"
    assert rollouts_of(folder.parent) == folder.parent / ".rollouts", "wherever in it the first task lies"


def test_from_what_a_run_has_stored(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    root = tmp_path / "mine"
    rated(Policy(synthetic_tasks[0]), [synthetic_tasks[0]], root, 2, checkpoint="of the run")
    run = RunDirectory(root)
    run.recipe.write_text('name = "mine"\n')
    before = read_history(synthetic_tasks[0]).ratings
    found = rate_from(run, synthetic_tasks)
    ((name, rating),) = found.new
    assert name == synthetic_tasks[0].name and (rating.rollouts, rating.solved, rating.policy) == (2, 1, "mine")
    assert rate_from(run, synthetic_tasks).new == [], "reading a run again adds nothing"
    assert read_history(synthetic_tasks[0]).ratings == (*before, rating)
    changed = SimpleNamespace(**{"name": name, "instruction": "another one", "path": synthetic_tasks[0].path})
    assert rate_from(run, [changed]).left_out == {name: "its instruction was another one in that run"}  # type: ignore[list-item]


def test_forks_are_no_rollouts_of_a_task(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    run, task = RunDirectory(tmp_path), synthetic_tasks[1]
    run.recipe.write_text('name = "mine"\n')
    store = TrajectoryStore(run.trajectories)
    for id, solved, labels in (("g0-00", True, {}), ("g0-01", False, {}), ("g0-01.f0", True, {FORK_OF: "g0-01"})):
        told = [{"role": "user", "content": task.instruction}]
        store.add(
            Trajectory(
                id,
                task.name,
                "g0",
                "train",
                "h",
                "p",
                "submitted",
                messages=told,
                outcome=Outcome(solved),
                labels=labels,
            )
        )
    store.close()
    ((_, rating),) = rate_from(run, [task]).new
    assert (rating.solved, rating.rollouts) == (1, 2)


@pytest.mark.parametrize("same", [True, False])
def test_a_group_that_infrastructure_errors_ended_says_nothing_of_the_others(
    synthetic_tasks: list[Task], tmp_path: Path, same: bool
) -> None:
    run, task = RunDirectory(tmp_path), synthetic_tasks[1]
    run.recipe.write_text('name = "mine"\n')
    told = [{"role": "user", "content": task.instruction if same else "another one"}]
    store = TrajectoryStore(run.trajectories)
    for group, status in (("g0", "infra_error"), ("g1", "submitted"), ("g2", "infra_error")):
        store.add(
            Trajectory(group, task.name, group, "train", "h", "p", status, messages=told, outcome=Outcome(True))  # type: ignore[arg-type]
        )
    store.close()
    found = rate_from(run, [task])
    assert [rating.solved for _, rating in found.new] == ([1] if same else [])
    assert list(found.left_out.values()) == ([] if same else ["its instruction was another one in that run"])


def test_runs_leave_out_what_is_marked_and_the_screens_say_so(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    folder = synthetic_tasks[0].path.parent
    note_mark(synthetic_tasks[0], Mark("retired", "solved 8 of 8", "2026-01-01T00:00:00Z"))
    assert built_tasks(str(folder)) == ([Task.load(synthetic_tasks[1].path.absolute())], "1 retired left out")
    assert chosen(synthetic_tasks, "train") == [synthetic_tasks[1]]
    with pytest.raises(TaskError, match="none of 2 tasks is of the split 'heldout'"):
        chosen(synthetic_tasks, "heldout")
    run = CliRunner().invoke
    shown = run(app, ["tasks", "show", str(synthetic_tasks[0].path)]).output
    assert "difficulty (shares with 95 % intervals)" in shown and "retired: solved 8 of 8" in shown
    assert "scripted version 3 (rate): 1 of 2, 0.50 [0.09, 0.91] solved; 2.0 turns" in shown
    stats = run(app, ["tasks", "stats", str(folder)]).output
    assert "Status: retired 1, in use 1" in stats or "Status: in use 1, retired 1" in stats
    assert "scripted version 3 (rate): " in stats
    as_json = json.loads(run(app, ["tasks", "show", str(synthetic_tasks[0].path), "--json"]).output)
    assert as_json["status"] == "retired" and as_json["ratings"][0]["solved"] == 1


def test_wrong_arguments_are_named(synthetic_tasks: list[Task], tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(
            app, ["tasks", "rate", str(synthetic_tasks[0].path.parent), *arguments], env={"COLUMNS": "400"}
        )
        assert done.exit_code == 2, done.output
        return done.output

    assert "give one of --policy (run it) and --from" in said()
    assert "no config.json there; give a Hugging Face directory" in said("--policy", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "say with --recipe in which harness" in said("--policy", str(tmp_path))
    assert "no run directory with trajectories" in said("--from", str(tmp_path))
    assert "--split some: there are train, heldout, all" in said("--policy", str(tmp_path), "--split", "some")


def test_a_folder_of_rollouts_has_one_writer(tmp_path: Path) -> None:
    store = tmp_path / ".rollouts"
    store.mkdir()
    policy, recipe = tmp_path / "absent", load_recipe("smoke")
    with (store / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RatingError, match=r"another rating stores its rollouts in .*; wait for it"):
            rate(Plan(policy, recipe, 1, store), [], lambda *_: None)
    with pytest.raises(FileNotFoundError, match="absent"):  # it goes on to read the policy
        rate(Plan(policy, recipe, 1, store), [], lambda *_: None)


def test_a_missing_key_of_the_judge_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "served")
    write_json(run.root / "server" / "ready.json", {})
    address = {"url": "http://127.0.0.1:1", "admin_key_file": str(key_file(run.root / "server" / "admin.key"))}
    write_json(run.root / "server" / "address.json", address)
    monkeypatch.setattr("woodshed.run.rate.served", lambda recipe, policy: nullcontext((run, Supervisor())))
    judge = "rl.judge={base_url='http://127.0.0.1:1', model='m', key_variable='NOT_SET_HERE'}"
    recipe = load_recipe("smoke", ["rl.monitors.judge='flag'", judge])
    tmp_path.joinpath("config.json").write_text("{}")
    with pytest.raises(RatingError, match=r"rl\.judge\.key_variable: NOT_SET_HERE is not set"):
        rate(Plan(tmp_path, recipe, 1, tmp_path / "store"), [], lambda *_: None)
