"""The stages of a recipe: what each needs, and which programs it consists of, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from woodshed.cluster.supervisor import Program
from woodshed.evaluate.arms import ADOPT, AFTER, ALONE, BEFORE, OTHER, REJECTION, SOLVED, stage_of, titles
from woodshed.recipe.load import earlier_run, first_source
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import Round, rounds_of
from woodshed.record.run_directory import RunDirectory, write_json
from woodshed.stages.servers import cores, server_programs, threads_of
from woodshed.train.worker_config import WorkerConfig


@dataclass(frozen=True)
class Stage:
    """A stage of a run. ``needs``: names of the stages that must be finished before. ``programs()`` returns the
    programs to start; the stage is over when those named in ``until`` have succeeded. ``heavy`` stages use all cores
    and run alone; of the others, two may run at a time."""

    name: str
    title: str
    needs: tuple[str, ...]
    programs: Callable[[], list[Program]]
    until: tuple[str, ...]
    heavy: bool = False


def plan(recipe: Recipe, run: RunDirectory) -> list[Stage]:
    """Return the stages in order of priority: of those whose ``needs`` are finished, the first ones run."""
    main = "packages" if recipe.tasks.main == "packages" else "tasks"
    threads = min(cores(), 4) if first_source(recipe) == "scratch" else cores()
    goes_on = _goes_on(recipe, run)
    stages, last = _taken_over(recipe, run) if goes_on else _supervised(recipe, run, main, threads)
    drafts = recipe.learn.mtp.steps and recipe.learn.demonstrations.any
    if drafts:
        stages.append(_simple(run, "mtp", "distil the draft (MTP) head", (last,), threads))
    before = ("mtp" if drafts else last, main, *(("packages",) if recipe.tasks.packages else ()))
    stages.append(_served(recipe, run, BEFORE, "evaluate before RL", before, "sft"))
    last = BEFORE
    for each in rounds_of(recipe):
        stages += _reinforced(recipe, run, each, last, threads)
        last = stages[-1].name
    if recipe.evaluate.baselines:
        stages += _baselines(recipe, run, threads)
    return stages


def _supervised(recipe: Recipe, run: RunDirectory, main: str, threads: int) -> tuple[list[Stage], str]:
    """Return the stages up to SFT, and the name of the last."""
    scratch = recipe.policy.source == "scratch"
    start = "corpus" if scratch else "convert"
    stages = []
    if scratch:
        stages.append(_simple(run, "corpus", "train tokenizer, write corpus", ()))
    else:
        stages.append(_simple(run, "convert", "prepare the pretrained policy", ()))
    if main == "tasks":
        stages.append(_simple(run, "tasks", "make and check tasks", ()))
    title = "run demonstrations in sandboxes" if recipe.learn.demonstrations.episodes else "read conversations"
    demos = [_simple(run, "demos", title, (main, start))] if recipe.learn.demonstrations.any else []
    needs = ("pretrain" if scratch else "convert", *(stage.name for stage in demos))
    packages = _packages(recipe, run)
    stages += [*packages, *demos] if main == "packages" else [*demos, *packages]
    if scratch:
        stages.append(_simple(run, "pretrain", "pretrain", ("corpus",), threads))
    return [*stages, _simple(run, "sft", "fine-tune on demonstrations", needs, threads)], "sft"


def _goes_on(recipe: Recipe, run: RunDirectory) -> bool:
    """Return whether the run goes on from an earlier one (which may be deleted once its result was taken over)."""
    return run.stage_result(ADOPT) is not None or earlier_run(recipe) is not None


def _taken_over(recipe: Recipe, run: RunDirectory) -> tuple[list[Stage], str]:
    """Return the stages before RL of a run that goes on from an earlier one, and the name of the last."""
    tasks = _simple(run, "tasks", "make and check tasks", ())
    taken = _simple(run, ADOPT, "take over the result of the earlier run", ())
    return [tasks, *_packages(recipe, run), taken], ADOPT


def _packages(recipe: Recipe, run: RunDirectory) -> list[Stage]:
    return [_simple(run, "packages", "turn real packages into tasks", ())] if recipe.tasks.packages else []


def _reinforced(recipe: Recipe, run: RunDirectory, each: Round, after: str, threads: int) -> list[Stage]:
    """Return the stages of one round of RL: rollouts and training, SFT on solved rollouts, evaluation."""
    stages = [_rl(recipe, run, each, after)]
    if recipe.learn.solved.after_rl:
        title = f"fine-tune on what RL solved{each.title}"
        stages.append(_simple(run, each.own(SOLVED), title, (stages[-1].name,), threads))
    if each.last or recipe.evaluate.rounds:
        needs, title = (stages[-1].name, BEFORE), f"evaluate after RL{each.title}"
        stages.append(_served(recipe, run, each.own(AFTER), title, needs, each.ends_with))
    return stages


def _baselines(recipe: Recipe, run: RunDirectory, threads: int) -> list[Stage]:
    """Return the stages of the baselines that RL has to beat. They run after RL and do not affect its result."""

    def evaluated(name: str, title: str) -> Stage:
        return _served(recipe, run, stage_of(name), f"evaluate {title}", (name, AFTER), name)

    title = titles(recipe.learn.sft.verified)
    solved = recipe.learn.solved.after_rl
    alone = [_served(recipe, run, stage_of(ALONE), "evaluate RL alone", (AFTER,), "rl")] if solved else []
    other = [
        _simple(run, OTHER, f"baseline: {title[OTHER]}", (AFTER,), threads),
        evaluated(OTHER, title[OTHER]),
    ]
    return [
        *alone,
        *(other if recipe.learn.demonstrations.episodes and not _goes_on(recipe, run) else []),
        _served(recipe, run, "sample", "sample RL's tasks without RL", (AFTER,), "sft"),
        _simple(run, REJECTION, f"baseline: {title[REJECTION]}", ("sample",), threads),
        evaluated(REJECTION, title[REJECTION]),
    ]


def _simple(run: RunDirectory, name: str, title: str, needs: tuple[str, ...], threads: int = 1) -> Stage:
    return Stage(name, title, needs, lambda: [_stage_program(run, name, threads)], (name,), heavy=threads > 1)


def _served(recipe: Recipe, run: RunDirectory, name: str, title: str, needs: tuple[str, ...], policy: str) -> Stage:
    def programs() -> list[Program]:
        return [*server_programs(recipe, run, run.policy(policy)), _stage_program(run, name)]

    return Stage(name, title, needs, programs, (name,), heavy=True)


def _rl(recipe: Recipe, run: RunDirectory, each: Round, after: str) -> Stage:
    rollouts = each.own("rollouts")

    def programs() -> list[Program]:
        chain = each.beside(run.chain(recipe.weights.store))
        servers = server_programs(recipe, run, run.policy(each.begins_with), weights=chain)
        argv = ["-m", "woodshed.train.worker", str(trainer_config(recipe, run, each))]
        trainer = Program("trainer", argv, run.log("trainer"), env=threads_of(trainer_threads(recipe)))
        return [*servers, trainer, _stage_program(run, rollouts)]

    title = f"asynchronous RL{each.title}"
    return Stage(each.own("rl"), title, (after,), programs, (rollouts, "trainer"), heavy=True)


def _stage_program(run: RunDirectory, name: str, threads: int = 1) -> Program:
    return Program(
        name, ["-m", "woodshed.stages", name, str(run.root)], run.log(name), env=threads_of(threads, alone=threads > 1)
    )


def trainer_config(recipe: Recipe, run: RunDirectory, each: Round) -> Path:
    path = run.root / "server" / "trainer.json"
    config = WorkerConfig(
        policy=run.policy(each.begins_with),
        start=each.start,
        batches=run.batches,
        weights=each.beside(run.chain(recipe.weights.store)),
        checkpoints=Path(each.beside(str(run.checkpoints))),
        metrics=run.stage_metrics("trainer"),
        train=recipe.train,
        chain=recipe.weights,
        steps=each.end,
        threads=trainer_threads(recipe),
        lock=run.trainer_lock,
        device=recipe.policy.device,
        delete_batches=True,
    )
    write_json(path, config.model_dump(mode="json"))
    return path


def trainer_threads(recipe: Recipe) -> int:
    """Return the trainer's number of threads: 1 for a tiny network, which leaves the other cores to the server. With a
    larger one training takes several times as long as sampling and the server often waits, so the trainer gets every
    core, and shares them while both work."""
    return 1 if first_source(recipe) == "scratch" else cores()
