"""``woodshed evaluate``: run every policy on every suite, store each finished episode once, then compute the results.

Policies run one after the other, because each needs its own server; episodes of a policy run ``jobs`` at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from woodshed.cluster.supervisor import ProgramFailed
from woodshed.evaluate.axes import Axis, axes_of
from woodshed.evaluate.cheating import scored
from woodshed.evaluate.pairs import NoBaseline, choose_baselines
from woodshed.evaluate.run import Sofar, evaluate, plan_samples
from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite, SuiteContext, SuiteError
from woodshed.evaluate.suites.by_name import load_suites
from woodshed.evaluate.sweep import check_told, choose_temperature
from woodshed.monitors.judge import JudgeError
from woodshed.record.run_directory import DirectoryError
from woodshed.record.task import Task, TaskError
from woodshed.rollout.agent import ProgramFailed as AgentProgramFailed
from woodshed.rollout.failures import RunFailing
from woodshed.rollout.rollout import Arena
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, SandboxError
from woodshed.sandbox.taskbox import box_spec
from woodshed.stages.boxes import backend_of, layer_store
from woodshed.stages.programs import ProgramError
from woodshed.stages.tasks import key_digest, settle_key, with_key

from .arenas import arena_of, hash_of, server_of, watched
from .aspects import agreements, ask_judge, episode_values, judge_server
from .budget import Budget, CountingStore
from .judge import judge_episodes, measure_axes
from .plan import (
    EvaluationFolder,
    Split,
    Wishes,
    check_wishes,
    development_share,
    settings_of,
    settle,
    split_tasks,
)
from .policies import Contestant, EvaluationError, resolve_policies
from .results import (
    Choice,
    collect_policies,
    compute_results,
    evaluation_name,
    label,
    last_regrade,
    note_choice,
    prices_of,
    read_choices,
    write_results,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Work:
    """State that all parts of an evaluation share."""

    wishes: Wishes
    folder: EvaluationFolder
    split: Split
    store: CountingStore
    budget: Budget
    progress: Progress


def evaluate_policies(wishes: Wishes, progress: Progress) -> dict[str, Any]:
    """Run the missing episodes, write the results and return them. If killed, the same call continues where it was.

    Raises EvaluationError, which says what to do.
    """
    check_wishes(wishes)
    contestants = resolve_policies(
        wishes.policies,
        agents=wishes.agents,
        overrides=wishes.overrides,
        key_env=wishes.key_env,
        opened=wishes.opened,
    )
    names = [contestant.name for contestant in contestants]
    prices = prices_of(wishes.prices, names)
    server = judge_server(wishes.judge, wishes.judge_key_env) if wishes.judge else None
    try:
        axes = axes_of(wishes.axes)
    except ValueError as error:
        raise EvaluationError(str(error)) from error
    strict = [contestant for contestant in contestants if not contestant.strict]
    try:
        baselines = choose_baselines([c.name for c in strict], [c.source for c in strict], wishes.baselines)
    except NoBaseline as error:
        raise EvaluationError(str(error)) from None
    folder = EvaluationFolder(wishes.out.absolute())
    try:
        with folder.claimed():
            grading = contestants[0].recipe.grading
            settle_key(grading, folder.root)
            suites, development = asyncio.run(_load(wishes, folder, contestants[0], progress))
            split = split_tasks(suites, wishes, development)
            hashes = {contestant.name: hash_of(contestant) for contestant in contestants}
            key = key_digest(with_key(grading, folder.root))
            settings = settings_of(wishes, contestants, hashes, split, key)
            settle(folder, settings)
            store = CountingStore(folder.trajectories)
            try:
                store.count_stored()
                budget = Budget(store, wishes.max_tokens, wishes.max_minutes)
                work = Work(wishes, folder, split, store, budget, progress)
                for number, contestant in enumerate(contestants):
                    budget.begin(contestant.name, len(contestants) - number)
                    _run_policy(work, number, contestant)
                _measure(work, settings, axes, server)
                values = episode_values(folder, wishes.judge)
                policies = collect_policies(folder, settings, store, split.suites, prices, values)
            finally:
                store.close()
            results = compute_results(
                policies,
                split.suites,
                settings,
                baselines=baselines,
                across_harnesses=wishes.across_harnesses,
                note="; ".join(budget.spent),
                regraded=last_regrade(folder),
                judge=wishes.judge,
                agreements=agreements(folder, wishes.judge),
            )
            write_results(folder, results)
            return results
    except (
        AgentProgramFailed,
        DirectoryError,
        JudgeError,
        ProgramError,
        ProgramFailed,
        RunFailing,
        SandboxError,
        SuiteError,
        TaskError,
        ValueError,
    ) as error:
        raise EvaluationError(str(error)) from error


def _measure(work: Work, settings: Mapping[str, Any], axes: Sequence[Axis], judge: tuple[str, str, str] | None) -> None:
    """Measure the axes other than correctness and ask the judge, once all episodes are stored."""
    parts = (work.folder, settings, work.store, work.split.suites)
    measure_axes(*parts, axes, work.progress, jobs=work.wishes.jobs)
    if judge is not None:
        asyncio.run(ask_judge(*parts, work.wishes.judge, judge, work.progress, jobs=work.wishes.jobs))


async def _load(
    wishes: Wishes, folder: EvaluationFolder, first: Contestant, progress: Progress
) -> tuple[list[Suite], list[Suite]]:
    """Load the suites, and those of ``--development`` if it names one. Raises EvaluationError without a sandbox."""
    backend = backend_of(first.recipe.sandbox)
    try:
        if not (probe := backend.probe()).ok:
            raise EvaluationError(f"no sandbox here: {'; '.join(probe.reasons)}")
        layers = layer_store()
        context = SuiteContext(
            backend, layers, folder.suites, progress, wishes.split, wishes.catalogue, parallel=wishes.jobs
        )
        progress(0, 0, "loading suites")
        suites = await load_suites(wishes.suites, context)
        development: list[Suite] = []
        if wishes.development and not development_share(wishes):
            aside = replace(context, out=folder.suites / "development")
            development = await load_suites([wishes.development], aside)
        for suite in (*suites, *development):
            for task in suite.tasks:
                box_spec(task, layers)  # report a missing layer before anything runs
        return suites, development
    finally:
        await backend.close()


def _run_policy(work: Work, number: int, contestant: Contestant) -> None:
    """Run the missing episodes of one policy, and judge all its episodes."""
    grading = with_key(contestant.recipe.grading, work.folder.root)
    settled = contestant.name in read_choices(work.folder)
    if settled and not any(_missing(work, _name(number, suite), suite.tasks) for suite in work.split.suites):
        asyncio.run(_judge_stored(work, number, contestant))
        return
    work.progress(0, 0, f"{contestant.name}: starting")
    with server_of(contestant) as server:

        async def main() -> None:
            async with arena_of(contestant, server, grading) as arena:
                keep = SubmissionStore(work.folder.submissions).put
                await watched(_episodes(work, number, contestant, replace(arena, keep_submission=keep)), server)

        asyncio.run(main())


async def _episodes(work: Work, number: int, contestant: Contestant, arena: Arena) -> None:
    """Choose the temperature, run the suites at this temperature, and judge the episodes."""
    choice = read_choices(work.folder).get(contestant.name) or await _choose(work, number, contestant, arena)
    if choice is not None:
        at = replace(arena, temperature=choice[0])
        for suite in work.split.suites:
            await _part(work, contestant, at, _name(number, suite), suite)
    await _judge(work, number, arena.backend, arena.layers)


async def _choose(work: Work, number: int, contestant: Contestant, arena: Arena) -> Choice | None:
    """Choose the temperature on the development tasks and store it. None, with nothing stored, if a budget was spent
    before the end."""

    async def on_development(at: float) -> dict[str, list[bool]]:
        tried_at = replace(arena, temperature=at)
        rates: dict[str, list[bool]] = {}
        for suite in map(_scored, work.split.development):
            found = await _part(work, contestant, tried_at, f"dev-{at:g}-{_name(number, suite)}", suite)
            rates |= {f"{suite.name}:{task}": passed for task, passed in found.items()}
        return rates

    choice = await choose_temperature(work.wishes.temperatures, on_development)
    if choice[1] and not work.budget.may_start():
        return None
    check_told(choice[1])
    note_choice(work.folder, contestant.name, choice)
    return choice


def _scored(suite: Suite) -> Suite:
    """Return the suite without tasks that count for no score, such as those on which a solution is a cheat."""
    return replace(suite, tasks=tuple(filter(scored, suite.tasks)))


async def _part(work: Work, contestant: Contestant, arena: Arena, name: str, suite: Suite) -> dict[str, list[bool]]:
    def report(sofar: Sofar) -> None:
        work.progress(sofar.done, sofar.total, f"{contestant.name} on {suite.name}: {sofar}")

    return await evaluate(
        arena,
        suite.tasks,
        work.store,
        name=name,
        samples=work.wishes.samples,
        concurrency=work.wishes.jobs,
        progress=report,
        label=label,
        retried=True,
        seed=work.wishes.seed,
        may_start=work.budget.may_start,
    )


def _missing(work: Work, name: str, tasks: Sequence[Task]) -> bool:
    wanted, results = plan_samples(work.store, tasks, name=name, samples=work.wishes.samples, label=label, retried=True)
    return any(id not in results for _, id in wanted)


async def _judge_stored(work: Work, number: int, contestant: Contestant) -> None:
    """Judge the episodes that a killed process left without a verdict, if all are stored, so that no server is
    needed."""
    backend = backend_of(contestant.recipe.sandbox)
    try:
        await _judge(work, number, backend, layer_store())
    finally:
        await backend.close()


async def _judge(work: Work, number: int, backend: Backend, layers: LayerStore) -> None:
    names = {_name(number, suite): suite for suite in work.split.suites}
    await judge_episodes(work.folder, work.store, names, backend, layers, work.progress, jobs=work.wishes.jobs)


def _name(number: int, suite: Suite) -> str:
    return evaluation_name(number, suite.name)
