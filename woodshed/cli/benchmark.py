"""``woodshed benchmark``: arguments and screens of the benchmark builder; no logic."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from woodshed.view.bar import Bar

from .options import BackendOption, JsonOption, ParallelOption, SuiteSecondsOption
from .tasks import _cores, _fail, _in_boxes, _print, _print_json

if TYPE_CHECKING:
    from woodshed.evaluate.builder.build import Inputs, Round

app = typer.Typer(
    help="Build a benchmark from your own repositories and recorded sessions, keep it fresh, read it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
T = TypeVar("T")

TrajectoriesOption = Annotated[
    list[Path] | None,
    typer.Option(help="Folder of stored trajectories; commits are traced to the live ones in it; repeatable"),
]
JournalOption = Annotated[
    list[Path] | None, typer.Option(help="Journal of a gateway (open.journal), for its live conversations")
]
CorpusOption = Annotated[
    list[Path] | None, typer.Option(help="Folder of training texts; tasks contained in them are left out; repeatable")
]
TrainingOption = Annotated[
    list[Path] | None, typer.Option(help="Folder of training tasks; tasks contained in them are left out; repeatable")
]
EndpointOption = Annotated[
    str, typer.Option(help="Chat Completions server that samples solutions from each query to check if they agree")
]
ModelOption = Annotated[str, typer.Option(help="Model name to ask it for")]
KeyEnvOption = Annotated[str, typer.Option(help="Environment variable with its API key")]
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a benchmark (with benchmark.lock)")]


@app.command()
def build(
    sources: Annotated[list[str], typer.Argument(help="Git repositories: path or URL; @COMMIT for an older state")],
    out: Annotated[Path, typer.Option(help="Folder of the benchmark")],
    trajectories: TrajectoriesOption = None,
    journal: JournalOption = None,
    per_source: Annotated[int, typer.Option(min=1, help="Tasks to keep from the history of each repository")] = 20,
    since: Annotated[str, typer.Option(help="Only commits of this date (YYYY-MM-DD) or later")] = "",
    query: Annotated[
        str, typer.Option(help="terse (title), named (also new names), full (also body); auto: the least that suffices")
    ] = "auto",
    min_stated: Annotated[
        float, typer.Option(help="Share (0 to 1) of what the tests need but no file tells that a query must state")
    ] = 0.8,
    corpus: CorpusOption = None,
    training: TrainingOption = None,
    endpoint: EndpointOption = "",
    model: ModelOption = "policy",
    key_env: KeyEnvOption = "",
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other setting: --set min_lines=20, --set trace.days=7"),
    ] = None,
    suite_seconds: SuiteSecondsOption = 300.0,
    catalogue: Annotated[str, typer.Option(help="Other catalogue of the test runner")] = "",
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Make a benchmark from commits whose tests fail before and pass after them, with queries as people ask them.

    A commit that a recorded session wrote gets the user's own first message as query; others get the title of their
    commit or merge. If interrupted, the same command continues. Tasks are locked in OUT/benchmark.lock.

        woodshed benchmark build ~/src/mine --out my-bench --trajectories serve/sessions
    """
    from woodshed.evaluate.builder.build import build_benchmark
    from woodshed.evaluate.builder.settings import BenchmarkSettings
    from woodshed.record.overrides import validated

    values = {
        "per_source": per_source,
        "since": since,
        "query": query,
        "min_stated": min_stated,
        "suite_seconds": suite_seconds,
        "catalogue": catalogue,
        "parallel": parallel or _cores(),
    }
    try:
        settings = validated(BenchmarkSettings, values, set or [])
    except ValueError as error:
        raise _fail(error) from None
    inputs = _inputs(sources, trajectories, journal, corpus, training, endpoint, model, key_env)
    with Bar(Console(stderr=True)) as progress:
        made = _run(lambda boxes, layers: build_benchmark(inputs, settings, out, boxes, layers, progress), backend, out)
    _print_round(made, out, json_)


@app.command()
def refresh(
    folder: FolderArgument,
    source: Annotated[list[str] | None, typer.Option(help="Repository; default: those of the last build")] = None,
    since: Annotated[
        str, typer.Option(help="Use commits from this date on (YYYY-MM-DD); default: date of the newest task")
    ] = "",
    most: Annotated[int, typer.Option(min=0, help="Number of tasks to keep in use, the newest; 0: all")] = 0,
    retire_before: Annotated[str, typer.Option(help="Retire tasks of commits before this date (YYYY-MM-DD)")] = "",
    trajectories: TrajectoriesOption = None,
    journal: JournalOption = None,
    corpus: CorpusOption = None,
    training: TrainingOption = None,
    endpoint: EndpointOption = "",
    model: ModelOption = "policy",
    key_env: KeyEnvOption = "",
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Add tasks of newer commits and retire old ones. Locked tasks never change; retired ones stay on disk.

    woodshed benchmark refresh my-bench --most 100
    """
    from woodshed.evaluate.builder.refresh import Retirement, refresh_benchmark

    try:
        retirement = Retirement(most, retire_before)
    except ValueError as error:
        raise _fail(error) from None
    inputs = _inputs(source or [], trajectories, journal, corpus, training, endpoint, model, key_env)
    with Bar(Console(stderr=True)) as progress:
        found = _run(
            lambda boxes, layers: refresh_benchmark(
                folder, inputs, retirement, boxes, layers, since=since, parallel=parallel or _cores(), progress=progress
            ),
            backend,
            folder,
        )
    if json_:
        _print_json({"added": sorted(found.made.entries), "retired": dict(found.retired), "since": found.since})
        return
    _print_round(found.made, folder, False)
    for name, why in found.retired.items():
        _print(f"retired: {name}: {why}")
    _print(f"{len(found.made.entries)} added, {len(found.retired)} retired")


@app.command()
def show(
    folder: FolderArgument,
    task: Annotated[str, typer.Argument(help="Folder name of one task")] = "",
    json_: JsonOption = False,
) -> None:
    """Print the tasks of a benchmark with published statistics to compare, or one task with its queries and solution.

    Exit code 2 if a task was changed since it was locked.
    """
    from dataclasses import asdict

    from woodshed.evaluate.builder.assemble import read_about
    from woodshed.evaluate.builder.describe import benchmark_text, figures, task_text
    from woodshed.evaluate.builder.lock import BenchmarkError, read_lock, verified

    try:
        lock, tasks = read_lock(folder), verified(folder)
        if task and task not in tasks:
            raise BenchmarkError(f"{folder} has no task {task!r}; give one of those that `show {folder}` lists")
    except BenchmarkError as error:
        raise _fail(error) from None
    if task:
        _print_json(read_about(tasks[task])) if json_ else _print(task_text(folder, tasks[task]))
    elif json_:
        _print_json({"figures": figures(lock), "tasks": {name: asdict(e) for name, e in lock.tasks.items()}})
    else:
        _print(benchmark_text(lock))


@app.command()
def accept(
    folder: FolderArgument,
    task: Annotated[str, typer.Argument(help="Folder name of the task")],
    files: Annotated[Path, typer.Argument(help="Folder with the changed files, at their paths in the workspace")],
    origin: Annotated[str, typer.Option(help="Where the solution comes from")] = "by hand",
    backend: BackendOption = "namespace",
) -> None:
    """Grade another solution of a task, and store it in addition to the reference if it passes every required test.

    Exit code 1 if it does not pass.
    """
    from woodshed.evaluate.builder.accepted import offer
    from woodshed.evaluate.builder.lock import BenchmarkError, verified
    from woodshed.tasks.packages.index import PackageError
    from woodshed.tasks.sources.repository import read_folder

    try:
        found = verified(folder).get(task)
        if found is None:
            raise BenchmarkError(f"{folder} has no task {task!r}; give one of those that `show {folder}` lists")
        given = dict(read_folder(files, outputs=True).files)  # they are only changed files, no whole project
    except (BenchmarkError, PackageError) as error:
        raise _fail(error) from None
    chosen = found
    outcome, digest = _run(lambda boxes, layers: offer(folder, chosen, given, origin, boxes, layers), backend, folder)
    failed = [f"{test} {status}" for test, status in outcome.tests.items() if status != "passed"]
    if not outcome.resolved:
        _print(f"not accepted: {', '.join(failed[:5]) or outcome.detail}")
        raise typer.Exit(1)
    _print(f"accepted: {digest[:12]}" if digest else "it passes, and is the reference or was accepted before")


def _inputs(
    sources: list[str],
    trajectories: list[Path] | None,
    journals: list[Path] | None,
    corpus: list[Path] | None,
    training: list[Path] | None,
    endpoint: str,
    model: str,
    key_env: str,
) -> Inputs:
    from woodshed.evaluate.builder.ambiguity import Endpoint
    from woodshed.evaluate.builder.build import Inputs
    from woodshed.evaluate.builder.lock import BenchmarkError
    from woodshed.evaluate.builder.sessions import read_sessions
    from woodshed.record.task import TaskError
    from woodshed.tasks.find import task_folders

    if key_env and key_env not in os.environ:
        raise _fail(ValueError(f"--key-env {key_env}: no such environment variable; export it, or leave it away"))
    try:
        task_folders(training or [])
        sessions = read_sessions(trajectories or [], journals or [])
    except (TaskError, BenchmarkError) as error:
        raise _fail(error) from None
    for folder in corpus or []:
        if not folder.is_dir():
            raise _fail(ValueError(f"--corpus {folder}: no such folder"))
    chat = Endpoint(endpoint, os.environ.get(key_env, "none"), model) if endpoint else None
    return Inputs(sources, sessions, [*(corpus or []), *(training or [])], chat)


def _run(work: Callable[[Any, Any], Coroutine[Any, Any, T]], backend: str, place: Path) -> T:
    from woodshed.evaluate.builder.lock import BenchmarkError

    try:
        return _in_boxes(work, backend, place)
    except (BenchmarkError, ValueError) as error:
        raise _fail(error) from None


def _print_round(made: Round, folder: Path, as_json: bool) -> None:
    if as_json:
        traced = {each.commit.id: each.session.id for each in made.traced}
        _print_json({"added": sorted(made.entries), "left_out": made.left_out, "traced": traced})
        return
    for table in made.tables:
        _print(table)
    for each in made.traced:
        told = f"{each.lines} of {each.added} lines"
        _print(f"traced: {each.commit.id[:12]} was written in session {each.session.id} ({told})")
    for name, why in made.left_out.items():
        _print(f"left out: {name}: {why}")
    _print(f"{len(made.entries)} tasks added to {folder}; look at them with `woodshed benchmark show {folder}`")
