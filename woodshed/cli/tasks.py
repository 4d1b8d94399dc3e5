"""``woodshed tasks``: arguments and screens of the task factory; no logic."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args

import typer
from rich.console import Console
from rich.text import Text

from woodshed.record.visible import visible
from woodshed.view.bar import Bar

from .options import (
    BackendOption,
    CodeOption,
    InstallOption,
    JsonOption,
    MarkersOption,
    NeedsOption,
    ParallelOption,
    RootOption,
    SuiteSecondsOption,
    TestsOption,
    wishes_of,
)

if TYPE_CHECKING:
    from woodshed.record.task import Task
    from woodshed.tasks.pipeline.pin import Wishes
    from woodshed.tasks.settings import PackageTaskSettings

app = typer.Typer(
    help="Make tasks from packages and repositories, check them, read them, count them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

T = TypeVar("T")


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


@app.command()
def build(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="pypi:NAME==VERSION, npm:NAME@VERSION, a folder or git repository (path or URL), optionally @COMMIT; "
            "exercism:PATH, humaneval:PATH, quixbugs:PATH, refactorbench:PATH; my_module:my_source"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives one task directory each")],
    per_source: Annotated[int, typer.Option(min=1, help="Tasks to keep from each source")] = 6,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="mutate (one line), delete_function, delete_class, delete_methods, delete_feature, combine, replay "
            "(of the commits of a git repository); repeatable; default: all"
        ),
    ] = None,
    prompt: Annotated[
        str,
        typer.Option(help="For mutate tasks: terse, located (says which function is wrong) or pointed (which line)"),
    ] = "terse",
    level: Annotated[
        str, typer.Option(help="How much instructions tell: precise (interface), normal, terse, or mixed")
    ] = "precise",
    prompt_policy: Annotated[
        str, typer.Option(help="Chat Completions server whose policy rewords normal and terse instructions")
    ] = "",
    prompt_model: Annotated[str, typer.Option(help="Model name to ask it for")] = "policy",
    prompt_key_env: Annotated[str, typer.Option(help="Environment variable with its API key")] = "",
    per_function: Annotated[int, typer.Option(min=1, help="Number of changes tried on each function")] = 1,
    multi_file_share: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of the tried deletions that must touch several files")
    ] = 0.0,
    mutants: Annotated[int, typer.Option(min=0, help="Mutants of each solution, for its mutation score")] = 4,
    exploits: Annotated[int, typer.Option(min=0, help="Exploits tried on a task of each source")] = 4,
    tests: TestsOption = None,
    code: CodeOption = None,
    needs: NeedsOption = None,
    root: RootOption = None,
    markers: MarkersOption = "",
    suite_seconds: SuiteSecondsOption = 300.0,
    guard_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Maximum duration of the tests that a task requires; the whole suite if it fits"),
    ] = 10.0,
    min_mutation_score: Annotated[
        float, typer.Option(min=0, max=1, help="Minimum share of the mutants that a task's tests must detect")
    ] = 0.5,
    install: InstallOption = None,
    heldout_share: Annotated[float, typer.Option(min=0, max=1, help="Share of functions kept for evaluation")] = 0.2,
    heldout: Annotated[
        list[str] | None, typer.Option(help="Source whose functions are all kept for evaluation; repeatable")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that chooses functions, kinds and changes")] = 0,
    catalogue: Annotated[str, typer.Option(help="Other catalogue of vetted packages and of the test runner")] = "",
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Turn packages and repositories with a pytest, mocha, tape or node:test suite into validated tasks.

    If interrupted, the same command continues. The sources are locked in OUT/sources.toml. Exit code 1 if a source
    could not be used, 2 if none could.
    """
    from woodshed.evaluate.suites.by_name import COLLECTIONS
    from woodshed.tasks.generators.packages.report import BuildReport
    from woodshed.tasks.generators.prompts.reword import reworder
    from woodshed.tasks.packages.index import PackageError
    from woodshed.tasks.pipeline.build import build_from_sources
    from woodshed.tasks.settings import Kind

    values = {
        "tasks_per_package": per_source,
        "kinds": kind or list(get_args(Kind)),
        "prompt": prompt,
        "heldout_share": heldout_share,
        "heldout_packages": heldout,
        "seed": seed,
        "catalogue": catalogue,
        "parallel": parallel or _cores(),
        "level": level,
        "per_function": per_function,
        "mutants": mutants,
        "exploits": exploits,
        "multi_file_share": multi_file_share,
        "suite_seconds": suite_seconds,
        "guard_seconds": guard_seconds,
        "min_mutation_score": min_mutation_score,
    }
    try:
        words = reworder(prompt_policy, prompt_model, prompt_key_env, out)
    except PackageError as error:
        raise _fail(error) from None
    settings = _package_settings({k: v for k, v in values.items() if v is not None})
    wishes = wishes_of(code=code, tests=tests, needs=needs, install=install, root=root, markers=markers)
    report = BuildReport()
    console = Console(stderr=True)
    with Bar(console) as progress:
        made = _in_boxes(
            lambda boxes, layers: build_from_sources(
                sources,
                settings,
                boxes,
                layers,
                out,
                progress,
                wishes=wishes,
                collections=COLLECTIONS,
                report=report,
                reworder=words,
            ),
            backend,
            out,
        )
    if json_:
        rows = [{**p.counts(), "notes": p.notes, "seconds": round(p.seconds, 2)} for p in report.packages]
        _print_json(
            {
                "out": str(out),
                "tasks": [str(t.path) for t in made],
                "sources": rows,
                "core_seconds": round(report.core_seconds, 2),
            }
        )
    else:
        _print(report.table())
        for why, count in (words.refused if words else {}).items():
            _print(f"note: {count} instructions kept the template's words: the policy's {why}")
        _print(last_line(report.tasks, made, out))
    raise typer.Exit(1 if any(p.error for p in report.packages) or not made else 0)


def _package_settings(values: dict[str, Any]) -> PackageTaskSettings:
    from woodshed.record.overrides import validated
    from woodshed.tasks.settings import PackageTaskSettings

    try:
        return validated(PackageTaskSettings, values, ())
    except ValueError as error:
        raise _fail(ValueError(re.sub(r"^--kinds(\.\d+)?", "--kind", str(error)))) from None


def last_line(count: int, made: Sequence[Task], out: Path) -> str:
    """Return the last line of a build. ``count``: number of tasks in ``out``; ``made``: those of its sources."""
    advice = f"; look at one with `woodshed tasks show {quote(str(made[0].path))}`" if made else ""
    return f"{count} tasks in {out}{advice}"


@app.command()
def check(
    folders: Annotated[list[Path], typer.Argument(help="Task directories, or folders of them")],
    exploits: Annotated[int, typer.Option(min=0, help="Exploits of the battery tried on each task")] = 4,
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Run every gate on Harbor task directories, in boxes; one line for each task. Exit code 1 if one fails."""
    from woodshed.tasks.validate.check import check_folders, summary

    with Bar(Console(stderr=True)) as progress:
        verdicts = _in_boxes(
            lambda boxes, layers: check_folders(
                folders, boxes, layers, parallel=parallel or _cores(), exploits=exploits, progress=progress
            ),
            backend,
            Path(),
        )
    if json_:
        _print_json([v.as_json() for v in verdicts])
    else:
        for verdict in verdicts:
            _print(str(verdict))
        _print(summary(verdicts))
    raise typer.Exit(0 if all(v.passed for v in verdicts) else 1)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Task directory")],
    json_: JsonOption = False,
    full: Annotated[bool, typer.Option(help="Do not shorten long diffs and lists of tests")] = False,
) -> None:
    """Print a task for reading: instruction, what is broken, tests, origin, limits."""
    from woodshed.record.task import Task, TaskError
    from woodshed.tasks.library.describe import describe

    try:
        found = describe(Task.load(folder), limit=None if full else 60)
    except (TaskError, OSError) as error:
        raise _fail(error) from None
    if json_:
        _print_json(found.as_json())
    else:
        _print(found.text())


@app.command()
def stats(
    folders: Annotated[list[Path], typer.Argument(help="Task directories, or folders of them")],
    json_: JsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw the distributions (.svg, .png or .pdf)")] = None,
) -> None:
    """Count tasks and compare their size with published benchmarks."""
    from woodshed.record.task import TaskError
    from woodshed.tasks.library.statistics import collect, draw

    try:
        found = collect(folders)
        if plot is not None:
            draw(found, plot)
    except (TaskError, OSError, ValueError) as error:
        raise _fail(error) from None
    if json_:
        _print_json(found.as_json())
    else:
        _print(found.text())


@app.command()
def export(
    folders: Annotated[list[Path], typer.Argument(help="Task directories, or folders of them")],
    out: Annotated[Path, typer.Option(help="Folder for instances.jsonl and the repositories that it refers to")],
    format_: Annotated[str, typer.Option("--format", help="swebench or swesmith")] = "swebench",
) -> None:
    """Write tasks as instances of SWE-bench or SWE-smith, with their commits in bare git repositories.

    Tasks that are not graded by tests with ids cannot be exported and are listed. Exit code 1 if none could be written.
    """
    from woodshed.record.task import TaskError
    from woodshed.tasks.find import task_folders
    from woodshed.tasks.library.exchange.export import FORMATS, export_tasks, load_all

    chosen = next((known for known in FORMATS if known == format_), None)
    if chosen is None:
        raise _fail(ValueError(f"--format {format_}: there are {', '.join(FORMATS)}"))
    try:
        with Bar(Console(stderr=True)) as progress:
            found = export_tasks(load_all(task_folders(folders)), chosen, out, progress)
    except (TaskError, OSError) as error:
        raise _fail(error) from None
    _left_out(found.left_out)
    _print(f"{len(found.instances)} instances in {found.path}, their commits in {out / 'repositories'}")
    raise typer.Exit(0 if found.instances else 1)


@app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder that `tasks export` wrote; or, with --repositories, instances of SWE-bench or SWE-smith as "
            ".jsonl, .json or .parquet"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives one task directory each")],
    repositories: Annotated[
        Path | None,
        typer.Option(help="Folder of git repositories, bare or not: OWNER__NAME.git, OWNER/NAME or NAME.git"),
    ] = None,
    instance: Annotated[list[str] | None, typer.Option(help="Only the instance with this id; repeatable")] = None,
    tests: TestsOption = None,
    code: CodeOption = None,
    needs: NeedsOption = None,
    root: RootOption = None,
    markers: MarkersOption = "",
    suite_seconds: SuiteSecondsOption = 300.0,
    install: InstallOption = None,
    mutants: Annotated[int, typer.Option(min=0, help="Mutants of each solution, for its mutation score")] = 4,
    exploits: Annotated[int, typer.Option(min=0, help="Exploits tried on a task of each repository")] = 4,
    heldout_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of functions kept for evaluation (of SWE-smith instances)")
    ] = 0.2,
    catalogue: Annotated[str, typer.Option(help="Other catalogue of the test runner")] = "",
    parallel: ParallelOption = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Make task directories from instances: of our own exports, or of SWE-bench and SWE-smith.

    The latter need --repositories but no image: their tests run in boxes with the dependencies that the repository
    states. An instance whose tests do not behave there as it lists them is left out, with the reason. SWE-bench
    instances are held out from training. If interrupted, the same command continues. Exit code 1 if no task was made.
    """
    if repositories is not None:
        values = {
            "catalogue": catalogue,
            "mutants": mutants,
            "exploits": exploits,
            "heldout_share": heldout_share,
            "parallel": parallel or _cores(),
            "suite_seconds": suite_seconds,
        }
        wishes = wishes_of(code=code, tests=tests, needs=needs, install=install, root=root, markers=markers)
        _import_datasets(source, repositories, out, values, wishes, instance or [], backend, json_)
    if source.is_file():
        raise _fail(ValueError(f"{source}: give the folder that holds the repositories with --repositories"))
    from woodshed.record.task import TaskError
    from woodshed.tasks.library.exchange.export import import_tasks

    try:
        with Bar(Console(stderr=True)) as progress:
            made, left_out = import_tasks(source, out, progress)
    except (TaskError, OSError) as error:
        raise _fail(error) from None
    _left_out(left_out)
    _print(f"{len(made)} tasks in {out}; 'woodshed tasks check {out}' runs every gate on them")
    raise typer.Exit(0 if made else 1)


def _import_datasets(
    file: Path,
    repositories: Path,
    out: Path,
    values: dict[str, Any],
    wishes: Wishes,
    only: list[str],
    backend: str,
    json_: bool,
) -> NoReturn:
    from woodshed.tasks.generators.packages.report import BuildReport
    from woodshed.tasks.library.exchange.build import build_from_instances

    settings, report = _package_settings(values), BuildReport()
    with Bar(Console(stderr=True)) as progress:
        made, left_out = _in_boxes(
            lambda boxes, layers: build_from_instances(
                file,
                repositories,
                settings,
                boxes,
                layers,
                out,
                progress,
                wishes=wishes,
                report=report,
                only=only,
            ),
            backend,
            out,
        )
    if json_:
        rows = [{**p.counts(), "notes": p.notes, "seconds": round(p.seconds, 2)} for p in report.packages]
        _print_json(
            {
                "out": str(out),
                "tasks": [str(t.path) for t in made],
                "sources": rows,
                "left_out": left_out,
                "core_seconds": round(report.core_seconds, 2),
            }
        )
    else:
        _left_out(left_out)
        _print(report.table())
        _print(f"{len(made)} tasks in {out}; 'woodshed tasks check {out}' runs every gate on them")
    raise typer.Exit(0 if made else 1)


def _left_out(reasons: dict[str, str]) -> None:
    for name, why in reasons.items():
        _print(f"left out: {name}: {why}")


def _in_boxes(work: Callable[[Any, Any], Coroutine[Any, Any, T]], name: str, place: Path) -> T:
    """Run ``work(backend, layers)``; an error that a person can fix ends the command with exit code 2 and one
    message."""
    from woodshed.harness.errors import EndpointLost
    from woodshed.record.cache import cache_directory
    from woodshed.record.fault import HostFault
    from woodshed.record.task import TaskError
    from woodshed.sandbox.backends.by_name import open_backend
    from woodshed.sandbox.layers import LayerStore
    from woodshed.sandbox.protocol import SandboxError
    from woodshed.stages.failures import disk_problem
    from woodshed.tasks.packages.index import PackageError

    async def main() -> T:
        backend = open_backend(name)
        try:
            probe = backend.probe()
            if not probe.ok:
                raise SandboxError("sandboxes do not work here: " + "\n".join(probe.reasons))
            return await work(backend, LayerStore(cache_directory() / "layers"))
        finally:
            await backend.close()

    try:
        return asyncio.run(main())
    except (PackageError, TaskError, HostFault, EndpointLost) as error:
        raise _fail(error) from None
    except OSError as error:
        raise _fail(Exception(disk_problem(place.absolute(), str(error)) or str(error))) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command goes on where it was")
        raise typer.Exit(130) from None


def _print(text: str) -> None:
    """Print text of tasks and packages without control characters, and without interpreting it as markup."""
    sys.stdout.write(visible(text) + "\n")


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _fail(error: Exception) -> typer.Exit:
    text = Text.assemble(("woodshed: ", "bold red"), visible(str(error)))
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
    return typer.Exit(2)
