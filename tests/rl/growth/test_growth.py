"""A real controller whose tasks grow: what is made is dispatched once, outlives a kill, and what cannot be solved by
its own solution is taken out."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateway.parts import HERMES

from woodshed.record.jsonl import read_jsonl
from woodshed.record.task import Task, TaskError, save_task
from woodshed.rl.growth import growth as growth_module
from woodshed.rl.growth.choose import GrowthSettings
from woodshed.rl.growth.growth import Growth
from woodshed.rl.growth.record import GrowthRecord, read_growth
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.tasks.generators.synthetic import bugs_of
from woodshed.view.health import health_section

from ..trained import DONE, Trained, by_number, trained


@pytest.fixture(autouse=True)
def boxes() -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))


class Killed(Exception):
    pass


def settings(**growth: Any) -> RLSettings:
    return RLSettings(
        steps=4, groups_per_step=2, group_size=2, concurrency=4, growth=GrowthSettings.model_validate(growth)
    )


GROWING = settings(make=1, window=2, least=2, check=1)


class Solving:
    """Plays a policy that knows the fix of one task: it writes the file, then finishes."""

    task: Task | None = None

    def __call__(self, tokens: list[int]) -> list[int]:
        assert self.task is not None
        ((path, fix),) = self.task.solution_files().items()
        call = json.dumps({"name": "write_file", "arguments": {"path": path, "content": fix.decode()}})
        if call in HERMES.decode(tokens):
            return list(DONE)
        return HERMES.encode(f"<tool_call>\n{call}\n</tool_call><|im_end|>", allow_special=True)


def wait_for_what_is_made(at: Trained) -> None:
    """The trainer takes a batch only once what was planned is made, so that it can go into a later one."""
    train = at.head

    def head() -> int:
        grown = read_growth(at.folder / "state.sqlite")
        return len(at.trained) if grown is not None and grown.counts["planned"] else train()

    at.head = head  # type: ignore[method-assign]


def made_in(folder: Path) -> dict[str, str]:
    record = GrowthRecord(folder / "state.sqlite")
    try:
        return record.made()
    finally:
        record.close()


def growth_over(at: Trained) -> Growth:
    ledger, record = Ledger(at.folder / "state.sqlite"), GrowthRecord(at.folder / "state.sqlite")
    tasks = {task.name: task for task in at.tasks}
    parts: dict[str, Any] = {"backend": at.arena.backend, "layers": at.arena.layers, "grading": at.arena.grading}
    store: Any = None  # nothing is planned
    return Growth(GROWING.growth, tasks, ledger, record, store, folder=at.folder / "grown", seed=0, **parts)


def test_harder_tasks_are_made_trained_once_and_outlive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, say = growth_module.write_synthetic, Solving()

    def killed(spec: Any, path: Path) -> Task:
        whole(spec, path)
        raise Killed

    async def main(folder: Path, *, kill: bool) -> None:
        async with trained(folder, 8, say=say, reward=by_number(set())) as at:
            say.task = at.tasks[0]
            wait_for_what_is_made(at)
            if kill:
                monkeypatch.setattr(growth_module, "write_synthetic", killed)
                with pytest.raises(Killed):
                    await at.run(GROWING)
                monkeypatch.setattr(growth_module, "write_synthetic", whole)
                grown = read_growth(folder / "state.sqlite")
                assert grown is not None and grown.counts["planned"] and not grown.counts["made"]
                assert len(list((folder / "grown").iterdir())) == 1, "the files are there and do not count"
            controller = await at.run(GROWING)
            found = at.conserved()
            assert found.trained == 16 and not found.undecided
            again(at)
            with sqlite3.connect(folder / "state.sqlite") as db:
                order = [name for (name,) in db.execute("SELECT task FROM groups ORDER BY position")]
            others = [name for name in order if name not in made_in(folder)]
            assert others == controller.order[: len(others)], "what was made takes the place of none"

    def again(at: Trained) -> None:
        """A further start has the same tasks, in the same order, and refuses files that are not what they were."""
        made = made_in(at.folder)
        growth = growth_over(at)
        assert [growth.tasks[name].digest for name in made] == list(made.values())
        first, *_ = made
        chosen = growth.choose(set())
        assert chosen is not None and chosen.name == first and growth.choose(set(made)) is None
        text = growth.tasks[first].path / "instruction.md"
        whole_text = text.read_text()
        text.write_text("fix: something else")
        with pytest.raises(TaskError, match=r"made this task and its files have changed since.*--fresh"):
            growth_over(at)
        text.write_text(whole_text)

    asyncio.run(main(tmp_path / "killed", kill=True))
    asyncio.run(main(tmp_path / "whole", kill=False))
    for folder in (tmp_path / "killed", tmp_path / "whole"):
        made = made_in(folder)
        with sqlite3.connect(folder / "state.sqlite") as db:
            states = dict(db.execute("SELECT task, state FROM groups"))
            checks = dict(db.execute("SELECT step, COUNT(*) FROM checked GROUP BY step"))
        grown = {name: state for name, state in states.items() if name in made}
        assert grown and set(grown.values()) <= {"batched", "unused"} and "batched" in grown.values()
        assert list(states.values()).count("batched") == 8, "single epoch: a group is a task that no other group has"
        lines = [line["growth"] for line in read_jsonl(folder / "metrics" / "rollouts.jsonl")]
        assert lines[0]["made"] == 0 < lines[-1]["made"]
        assert lines[-1]["hard"] == lines[-1]["checked"] and max(checks.values()) == 1, "nobody solves what is made"
        assert [line["taken_out"] for line in lines] == [0] * 4
    first, second = (made_in(tmp_path / name) for name in ("killed", "whole"))
    name = "woodshed/synthetic-train-0-grown-000001-00"
    assert first[name] == second[name], "the same files, whether a kill came between or not"
    task = Task.load(tmp_path / "whole" / "grown" / "synthetic-train-0-grown-000001-00")
    assert say.task is not None and bugs_of(task) == (say.task.info.kind,) * 2


def test_a_task_whose_solution_fails_is_taken_out_and_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained(tmp_path, 14, reward=by_number(set())) as at:
            good = at.tasks[0]
            bad = broken(good, tmp_path / "bad")
            at.tasks = [replace(bad, name=t.name) if n % 3 == 0 else t for n, t in enumerate(at.tasks)]
            await at.run(settings(check=20))
            found = at.conserved()
            grown = read_growth(tmp_path / "state.sqlite")
            assert grown is not None and grown.taken_out, "some of them were dispatched"
            names = {t.name for t in at.tasks if t.path == bad.path}
            with sqlite3.connect(tmp_path / "state.sqlite") as db:
                dispatched = dict(db.execute("SELECT task, state FROM groups WHERE finished IS NOT NULL"))
            taken = {name for name, state in dispatched.items() if name in names and state != "unused"}
            assert set(grown.taken_out) == taken and {dispatched[name] for name in taken} == {"failed"}
            assert all("its solution fails: " in why for why in grown.taken_out.values())
            assert found.trained == 16 and found.dropped["broken_task"] == 2 * len(taken)
            assert grown.counts["hard"] >= 8, "the solutions of the others pass"
            last = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")[-1]["growth"]
            assert last["checked"] == last["hard"] + last["taken_out"] and last["taken_out"] > 0
            page = health_section(None, grown, tmp_path / "metrics")
            assert all(name in page for name in taken) and "taken out" in page and "tasks made and checked" in page

    asyncio.run(main())


def broken(task: Task, path: Path) -> Task:
    """The task with a solution that repairs nothing."""
    solution = {name: task.workspace_files()[name] for name in task.solution_files()}
    return save_task(
        path,
        name=task.name,
        instruction=task.instruction,
        info=task.info,
        workspace=task.workspace_files(),
        tests=task.test_files(),
        solution=solution,
    )


@pytest.mark.parametrize("passes", [0, 1])
def test_one_grading_that_fails_takes_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """A busy machine may let one time out; and what was found stays so, also for a later start."""
    real, calls = growth_module.grade, 0

    async def once_without(task: Task, solution: Any, *parts: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return await real(task, solution if calls > 1 and passes else {}, *parts, **named)

    async def main() -> None:
        async with trained(tmp_path, 2) as at:
            monkeypatch.setattr(growth_module, "grade", once_without)
            growth = growth_over(at)
            one, two = at.tasks
            assert await growth.sound(one, 1) == bool(passes) and calls == 2
            assert await growth.sound(two, 1) and calls == 2, "one a step"
            again = growth_over(at)
            assert await again.sound(one, 2) == bool(passes) and calls == 2
            assert again.taken_out() == (set() if passes else {one.name})

    asyncio.run(main())


def test_the_same_prompt_is_not_trained_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with trained(tmp_path, 2) as at:
            growth = growth_over(at)
            same: Callable[..., Task] = lambda spec, path: save_copy(at.tasks[0], spec.name, path)  # noqa: E731
            monkeypatch.setattr(growth_module, "write_synthetic", same)
            growth.record.plan(1, [("compare", "binop")])
            making = asyncio.create_task(growth.run())
            while growth.record.planned():
                assert not making.done(), making.exception()
                await asyncio.sleep(0.01)
            making.cancel()
            grown = read_growth(tmp_path / "state.sqlite")
            assert grown is not None and grown.counts["refused"] == 1 and not growth.record.made()
            assert grown.refused["compare+binop"] == f"{at.tasks[1].name} has the same files"

    asyncio.run(main())


def save_copy(task: Task, name: str, path: Path) -> Task:
    return save_task(
        path,
        name=name,
        instruction=task.instruction,
        info=task.info,
        workspace=task.workspace_files(),
        tests=task.test_files(),
        solution=task.solution_files(),
    )
