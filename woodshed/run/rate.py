"""``woodshed tasks rate``: measure how often a policy solves each task, by running it or from a run's trajectories."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.cluster.supervisor import ProgramFailed, Supervisor
from woodshed.evaluate.run import Sofar, evaluate, group_name
from woodshed.monitors.judge import JudgeError
from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.atomic import locked
from woodshed.record.history import Rating, at, note_rating, read_history
from woodshed.record.run_directory import DirectoryError, RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskError
from woodshed.rollout.agent import ProgramFailed as AgentProgramFailed
from woodshed.rollout.failures import INFRA, RunFailing
from woodshed.rollout.forking import FORK_OF
from woodshed.rollout.rollout import Arena
from woodshed.sandbox.settings import RAY
from woodshed.sandbox.taskbox import box_spec
from woodshed.stages.arena import open_arena
from woodshed.stages.programs import ProgramError
from woodshed.stages.tasks import settle_key, with_key

from .placed import served

Progress = Callable[[int, int, str], None]


class RatingError(Exception):
    """Nothing can be rated; the message says what to do."""


@dataclass
class Rated:
    """Result of rating. ``new``: added ratings with the names of their tasks; ``known``: number of ratings that existed
    before. ``lost``: number of rollouts lost to infrastructure errors; ``left_out``: reason by task for tasks without
    a rating. ``rated``: names of tasks with one."""

    new: list[tuple[str, Rating]] = field(default_factory=list)
    known: int = 0
    lost: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    rated: set[str] = field(default_factory=set)

    def note(
        self, task: Task, rows: list[dict[str, Any]], *, group: str, policy: str, kind: str, checkpoint: str = ""
    ) -> None:
        """Rate ``task`` by the rollouts in ``rows`` and store the rating with the task. ``group``: id of the rating;
        ``policy``, ``kind``, ``checkpoint``: see ``Rating``."""
        graded = [row for row in rows if row["status"] != INFRA]
        self.lost += len(rows) - len(graded)
        count = len(graded)
        if not count:
            if task.name not in self.rated:
                self.left_out[task.name] = "every rollout ended in an infrastructure error"
            return
        self.rated.add(task.name)
        self.left_out.pop(task.name, None)
        rating = Rating(
            group,
            policy,
            max(row["version_max"] for row in graded),
            count,
            sum(bool(row["resolved"]) for row in graded),
            kind,
            at(max(row["ended"] for row in graded)),
            graded[0]["harness_hash"],
            checkpoint,
            round(sum(row["effort"]["turns"] for row in graded) / count, 2),
            round(sum(row["effort"]["thinking_tokens"] for row in graded) / count, 1),
        )
        if note_rating(task, rating):
            self.new.append((task.name, rating))
        else:
            self.known += 1


@dataclass(frozen=True)
class Plan:
    """Plan of a rating: ``rollouts`` per task of the policy in ``folder``, in the harness of ``recipe``. They are
    stored in ``store``, so that the same command continues where it was."""

    folder: Path
    recipe: Recipe
    rollouts: int
    store: Path


def rollouts_of(folder: Path) -> Path:
    """Return where rollouts on the tasks of ``folder`` are stored: in ``folder``, or beside it if it is itself a
    task."""
    return (folder.parent if (folder / "task.toml").is_file() else folder) / ".rollouts"


def plan(policy: Path, recipe: Path | None, overrides: Sequence[str], rollouts: int, store: Path) -> Plan:
    """Make the plan. If ``recipe`` is None, the recipe of the run that contains the policy is used. Raises
    RatingError."""
    if not (policy / "config.json").exists():
        raise RatingError(f"--policy {policy}: no config.json there; give a Hugging Face directory")
    own = policy.absolute().parent.parent / "recipe.toml"  # RUN/policy/STAGE
    if recipe is None and not own.exists():
        raise RatingError(
            f"--policy {policy} does not lie in a run directory: say with --recipe in which harness, with which limits "
            "and in which boxes it works"
        )
    try:
        loaded = load_recipe(recipe or own, overrides)
    except RecipeError as error:
        raise RatingError(str(error)) from None
    if RAY in loaded.sandbox.hosts:
        raise RatingError("sandbox.hosts: only a run places boxes on a Ray cluster; add --set 'sandbox.hosts=[]'")
    return Plan(policy, loaded, rollouts, store)


def rate(plan: Plan, tasks: Sequence[Task], progress: Progress) -> Rated:
    """Serve the policy, run it on the tasks, and store the ratings; if killed, the same call continues where it was.
    Raises RatingError, also if another process stores rollouts in the same folder, and SandboxError if a task's layer
    is missing."""
    busy = f"another rating stores its rollouts in {plan.store}; wait for it, or choose another folder with --store"
    plan.store.mkdir(parents=True, exist_ok=True)
    try:
        with locked(plan.store, RatingError(busy)):  # two that compact one store delete each other's shards
            progress(0, 0, f"reading {plan.folder}")
            checkpoint = checkpoint_digest(plan.folder)
            progress(0, 0, "starting the policy server")
            with served(plan.recipe, plan.folder) as (folder, supervisor):
                return asyncio.run(_rate(plan, tasks, checkpoint, folder, supervisor, progress))
    except (AgentProgramFailed, DirectoryError, JudgeError, ProgramError, ProgramFailed, RunFailing) as error:
        raise RatingError(str(error)) from None


async def _rate(
    plan: Plan,
    tasks: Sequence[Task],
    checkpoint: str,
    folder: RunDirectory,
    supervisor: Supervisor,
    progress: Progress,
) -> Rated:
    async def watch() -> None:
        while True:
            supervisor.check()
            await asyncio.sleep(0.5)

    # The key is stored with the rollouts, so that every policy rated on these tasks is graded on the same inputs.
    settle_key(plan.recipe.grading, plan.store)
    grading = with_key(plan.recipe.grading, plan.store)
    async with open_arena(plan.recipe, folder, grading=grading, training=False) as arena:
        if not (probe := arena.backend.probe()).ok:
            raise RatingError(f"no sandbox here: {'; '.join(probe.reasons)}")
        for task in tasks:
            box_spec(task, arena.layers)  # report a missing layer before anything runs
        store = TrajectoryStore(plan.store)
        concurrency = plan.recipe.evaluate.concurrency
        rating = asyncio.create_task(
            rate_in(arena, tasks, store, str(plan.folder), checkpoint, plan.rollouts, concurrency, progress)
        )
        watching = asyncio.create_task(watch())
        try:
            await asyncio.wait({rating, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # raises: the server does not come back
            return await rating
        finally:
            for each in (rating, watching):
                each.cancel()
            await asyncio.gather(rating, watching, return_exceptions=True)
            store.close()


async def rate_in(
    arena: Arena,
    tasks: Sequence[Task],
    store: TrajectoryStore,
    policy: str,
    checkpoint: str,
    rollouts: int,
    concurrency: int,
    progress: Progress,
) -> Rated:
    """Run the policy of ``arena`` like an evaluation until each task has ``rollouts``, and store the ratings.

    Rollouts that an earlier start lost to infrastructure errors are run again.
    """
    hosts = (arena.egress.allow, arena.egress.private) if arena.egress is not None else None
    grading = arena.grading.model_dump(exclude={"held_out_key"})
    settings = (checkpoint, arena.harness_hash, arena.temperature, arena.limits, hosts, sorted(grading.items()))
    name = f"rate-{hashlib.sha256(repr(settings).encode()).hexdigest()[:16]}"
    missing = [task for task in tasks if not _has(task, group_name(name, _label(task)), rollouts)]

    def say(sofar: Sofar) -> None:
        progress(sofar.done, sofar.total, str(sofar))

    await evaluate(
        arena,
        missing,
        store,
        name=name,
        samples=rollouts,
        concurrency=concurrency,
        progress=say,
        label=_label,
        retried=True,
    )
    by_group = _groups(store, f"source = 'eval' AND group_id LIKE '{name}:%'")
    found = Rated(known=len(tasks) - len(missing))
    for task in missing:
        group = group_name(name, _label(task))
        rows = sorted(by_group[group], key=lambda row: row["status"] == INFRA)[:rollouts]  # graded ones first
        found.note(task, rows, group=group, policy=policy, kind="rate", checkpoint=checkpoint)
    return found


def rate_from(run: RunDirectory, tasks: Sequence[Task]) -> Rated:
    """Rate ``tasks`` from the trajectories of a run: of its evaluations and of the groups it trained on, without forks.
    A task whose instruction has changed since is left out. Raises RatingError if no trajectory is of these tasks."""
    if not run.recipe.exists() or not run.trajectories.is_dir():
        raise RatingError(f"--from {run.root}: no run directory with trajectories")
    named, found = {task.name: task for task in tasks}, Rated()
    same: dict[str, bool] = {}
    store = TrajectoryStore(run.trajectories)
    try:
        for everyone in _groups(store, "source IN ('eval', 'train')").values():
            rows = [row for row in everyone if FORK_OF not in row["labels"]]  # a fork begins in the middle of another
            task = named.get(rows[0]["task"]) if rows else None
            if task is None:
                continue
            if task.name not in same and any(row["status"] != INFRA for row in rows):
                same[task.name] = _same_instruction(store, rows, task)
            if not same.get(task.name, True):
                found.left_out[task.name] = "its instruction was another one in that run"
                continue
            kind = rows[0]["labels"].get("evaluation", "train")
            group = f"{run.root.name}:{rows[0]['group_id']}:{min(row['started'] for row in rows):.0f}"
            found.note(task, rows, group=group, policy=run.root.name, kind=kind)
    finally:
        store.close()
    if not (found.new or found.known or found.left_out):
        raise RatingError(f"--from {run.root}: none of its trajectories is of these tasks")
    return found


def checkpoint_digest(folder: Path) -> str:
    """Return the digest (16 hex digits of a sha256) of everything that determines the samples of a policy: weights,
    configuration, tokenizer, chat format."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")):
        with path.open("rb") as file:
            digest.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}:".encode())
    return digest.hexdigest()[:16]


def _label(task: Task) -> str:
    """Return the task's label, with its digest, so that a task that was changed gets new rollouts."""
    return f"{task.name}@{task.digest[:12]}"


def _has(task: Task, group: str, rollouts: int) -> bool:
    return any(r.group == group and r.rollouts >= rollouts for r in read_history(task).ratings)


def _groups(store: TrajectoryStore, where: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in store.rows(where, order_by="id"):
        found[row["group_id"]].append(row)
    return found


def _same_instruction(store: TrajectoryStore, rows: list[dict[str, Any]], task: Task) -> bool:
    first = next(row for row in rows if row["status"] != INFRA)  # there is one
    trajectory = store.get(first["id"])
    return trajectory is None or any(
        task.instruction.strip() in str(message.get("content", "")) for message in trajectory.messages
    )


def chosen(tasks: Sequence[Task], split: str) -> list[Task]:
    """Return the tasks of a split (``all``: of every split) that are in use or quarantined, not retired or broken.
    Raises TaskError if there are none."""
    of_split = [task for task in tasks if split in ("all", task.info.split)]
    found = [task for task in of_split if read_history(task).status in ("in use", "quarantined")]
    if not found:
        raise TaskError(f"none of {len(tasks)} tasks is of the split {split!r} and in use or quarantined")
    return found
