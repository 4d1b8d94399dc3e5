"""``woodshed tasks rate`` and ``refresh``: arguments and screens; no logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from woodshed.view.bar import Bar

from .tasks import BackendOption, JsonOption, ParallelOption, _cores, _fail, _in_boxes, _print, _print_json, app

if TYPE_CHECKING:
    from woodshed.record.task import Task
    from woodshed.run.rate import Rated

SPLITS = ("train", "heldout", "all")


@app.command()
def rate(
    folders: Annotated[list[Path], typer.Argument(help="Task directories, or folders of them")],
    policy: Annotated[Path | None, typer.Option(help="Hugging Face directory of the policy to run")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Run directory whose stored rollouts are used, without running any")
    ] = None,
    rollouts: Annotated[int, typer.Option("--rollouts", "-k", min=1, help="Rollouts per task")] = 8,
    split: Annotated[str, typer.Option(help=f"Which tasks to run the policy on: {', '.join(SPLITS)}")] = "train",
    recipe: Annotated[
        Path | None,
        typer.Option(help="Recipe whose harness, limits and boxes are used; default: that of the run with POLICY"),
    ] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="Override a field of the recipe")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Where rollouts are stored; default: .rollouts in the first folder")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Measure how often a policy solves each task, and store the rating with the task (history.jsonl).

    With --policy the policy is served and run as in an evaluation; if interrupted, the same command continues. With
    --from the evaluations and training groups of a run are used. Ratings are added, never replaced:
    `woodshed tasks show` prints those of a task, `stats` those of each policy, and `refresh` acts on them.

        woodshed tasks rate my-tasks --policy runs/mine/policy/final -k 8

        woodshed tasks rate my-tasks --from runs/mine

    Exit code 1 if a task could not be rated.
    """
    from woodshed.record.run_directory import DirectoryError, RunDirectory
    from woodshed.record.task import Task, TaskError
    from woodshed.run.rate import RatingError, chosen, plan, rate, rate_from, rollouts_of
    from woodshed.sandbox.protocol import SandboxError
    from woodshed.tasks.find import task_folders

    if (policy is None) == (from_ is None):
        raise _fail(ValueError("give one of --policy (run it) and --from (use what a run has stored)"))
    if split not in SPLITS:
        raise _fail(ValueError(f"--split {split}: there are {', '.join(SPLITS)}"))
    try:
        tasks = [Task.load(path) for path in task_folders(folders)]
        with Bar(Console(stderr=True)) as progress:
            if policy is not None:
                wanted = plan(policy, recipe, set or [], rollouts, store or rollouts_of(folders[0]))
                found = rate(wanted, chosen(tasks, split), progress)
            else:
                assert from_ is not None
                found = rate_from(RunDirectory(from_.absolute()), tasks)
    except (RatingError, TaskError, SandboxError, DirectoryError, OSError) as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command goes on where it was")
        raise typer.Exit(130) from None
    if json_:
        rows = [{"task": name, **asdict(rating)} for name, rating in found.new]
        _print_json({"new": rows, "known": found.known, "lost": found.lost, "left_out": found.left_out})
    else:
        _print_rated(found, tasks)
    raise typer.Exit(1 if found.left_out else 0)


@app.command()
def refresh(
    folder: Annotated[Path, typer.Argument(help="Folder of rated tasks, as `tasks build` makes it")],
    out: Annotated[Path, typer.Option(help="Folder that receives the harder tasks, such as FOLDER/harder")],
    too_easy: Annotated[
        float, typer.Option(help="A task is too easy if the 95 % interval of its pass rate is above this")
    ] = 0.6,
    unsolved: Annotated[
        int, typer.Option(min=1, help="Rollouts, over all policies, after which a task that none solved is checked")
    ] = 8,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="How to harden, in this order: cone (delete more around it), combine (several changes in one), terse "
            "(tell less); repeatable; default: all"
        ),
    ] = None,
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Refresh training tasks by their ratings: harden or retire too easy tasks, check tasks that no policy solves.

    Harder tasks are new tasks with new names, made from the same locked sources and checked with every gate; the tasks
    that they were made from are retired. The gates of a task that no policy solved are run again: it is marked as
    quarantined if they pass, else as broken. Nothing is moved or deleted: marks are stored with the task, and runs
    leave out tasks that are not in use. A quarantined task is used again once a policy has solved it. If interrupted,
    the same command continues.

        woodshed tasks refresh my-tasks --out my-tasks/harder
    """
    from woodshed.tasks.library.refresh.decide import Limits
    from woodshed.tasks.library.refresh.harder import WAYS
    from woodshed.tasks.library.refresh.run import Wishes
    from woodshed.tasks.library.refresh.run import refresh as run

    if unknown := sorted(set(way or []) - set(WAYS)):
        raise _fail(ValueError(f"--way {unknown[0]}: there are {', '.join(WAYS)}"))
    try:
        limits = Limits(too_easy, unsolved)
    except ValueError as error:
        raise _fail(ValueError(f"--{str(error).replace('_', '-')}")) from None
    wishes = Wishes(limits, [w for w in WAYS if not way or w in way], parallel or _cores())
    with Bar(Console(stderr=True)) as progress:
        found = _in_boxes(lambda boxes, layers: run(folder, out, wishes, boxes, layers, progress), backend, out)
    if json_:
        _print_json(found.as_json())
    else:
        _print(found.text())


def _print_rated(found: Rated, tasks: Sequence[Task]) -> None:
    from woodshed.record.history import read_history
    from woodshed.tasks.library.difficulty import solved, spread

    for name, rating in found.new:
        _print(f"{name}  {solved(rating)} solved, {rating.turns:.1f} turns  ({rating.kind}, version {rating.version})")
    for name, why in found.left_out.items():
        _print(f"left out: {name}: {why}")
    lost = f"; {found.lost} rollouts lost to infrastructure errors, not counted" if found.lost else ""
    _print(f"{len(found.new)} ratings added, {found.known} known before{lost}")
    for each in spread(read_history(task) for task in tasks):
        _print(str(each))
