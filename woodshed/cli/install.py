"""``woodshed tasks install`` and ``remove``: arguments, and tables of results; no logic."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from woodshed.view.bar import Bar

from .options import BackendOption, CodeOption, JsonOption, MarkersOption, RootOption, TestsOption, paths_of
from .tasks import _fail, _in_boxes, _print, _print_json, app

if TYPE_CHECKING:
    from woodshed.record.task import Task
    from woodshed.sandbox.layers import LayerStore
    from woodshed.sandbox.protocol import Backend
    from woodshed.tasks.install.kit import Pinned
    from woodshed.tasks.install.run import Outcome


PolicyOption = Annotated[
    str | None, typer.Option(help="URL of an OpenAI-compatible server, such as a gateway, whose policy does the work")
]
ModelOption = Annotated[str, typer.Option(help="Name of the model there")]
KeyOption = Annotated[str, typer.Option(help="Environment variable that holds the key for it")]


@app.command()
def install(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="pypi:NAME==VERSION, npm:NAME@VERSION, or a folder or repository (path or URL), optionally @COMMIT"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder that receives one folder for each install")],
    policy: PolicyOption = None,
    model: ModelOption = "policy",
    key_env: KeyOption = "OPENAI_API_KEY",
    judge: Annotated[bool, typer.Option(help="The policy also judges outputs; it can only reject")] = False,
    tests: TestsOption = None,
    code: CodeOption = None,
    needs: Annotated[
        list[str] | None, typer.Option(help="Package that the source does not name and the rules shall install")
    ] = None,
    root: RootOption = None,
    markers: MarkersOption = "",
    passing_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Minimum share of the executed tests that must pass, by rule")
    ] = 0.8,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder that receives a task for each install: to set the repository up")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that chooses the three targets among the goals")] = 0,
    catalogue: Annotated[str, typer.Option(help="Other catalogue, for the test runner")] = "",
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Find out how to set repositories up: goals, a recipe that reaches three of them, proved by replaying it.

    Without --policy, rules over the project's own files play both roles. Use the result with
    `woodshed tasks build SOURCE --install OUT`. With --tasks each install also becomes a task, whose solution is the
    recipe. Exit code 1 if a source was discarded, 2 if nothing could start.
    """
    from woodshed.tasks.install.command import InstallWishes, PolicyPlace, install_sources
    from woodshed.tasks.install.task import install_tasks

    if judge and policy is None:
        raise _fail(ValueError("--judge needs --policy: there is nobody to judge"))
    place = PolicyPlace(policy, model, _key(key_env)) if policy is not None else None
    wishes = InstallWishes(
        paths_of(code),
        paths_of(tests),
        tuple(needs or ()),
        seed,
        catalogue,
        place,
        judge,
        passing_share,
        roots=paths_of(root),
        markers=markers,
    )
    with Bar(Console(stderr=True)) as progress:

        async def work(boxes: Backend, layers: LayerStore) -> tuple[list[Outcome], list[Task], dict[str, str]]:
            found = await install_sources(sources, boxes, layers, out, wishes, progress)
            if tasks is None:
                return found, [], {}
            return found, *await install_tasks(found, boxes, layers, out, tasks, wishes, progress)

        found, made, refused = _in_boxes(work, backend, out)
    if json_:
        rows = [json_of(outcome) for outcome in found]
        _print_json(
            rows if tasks is None else {"installs": rows, "tasks": [str(t.path) for t in made], "refused": refused}
        )
    else:
        _print(text_of(found))
        done = sum(outcome.install is not None for outcome in found)
        _print(f"{done} of {len(found)} installed in {out}; use them with `woodshed tasks build ... --install {out}`")
        for source, why in refused.items():
            _print(f"no task of {source}: {why}")
        if tasks is not None:
            _print(f"{len(made)} tasks in {tasks}; look at one with `woodshed tasks show`")
    raise typer.Exit(0 if all(outcome.install is not None for outcome in found) and not refused else 1)


@app.command()
def remove(
    sources: Annotated[list[str], typer.Argument(help="Sources as for `tasks build`")],
    out: Annotated[Path, typer.Option(help="Folder that receives one task directory each")],
    policy: Annotated[str, typer.Option(help="URL of an OpenAI-compatible server, such as a gateway")],
    model: ModelOption = "policy",
    key_env: KeyOption = "OPENAI_API_KEY",
    per_source: Annotated[int, typer.Option(min=1, help="Tasks to keep from each source")] = 6,
    installs: Annotated[
        Path | None, typer.Option("--install", help="Folder of installs, as `tasks install` makes it")
    ] = None,
    catalogue: Annotated[str, typer.Option(help="Other catalogue of vetted packages and of the test runner")] = "",
    backend: BackendOption = "namespace",
) -> None:
    """Have a policy remove features, and keep what passes the gates of every other deletion.

    If interrupted, the same command continues and asks for nothing twice. Exit code 1 if a source could not be used or
    no task was kept.
    """
    from woodshed.tasks.generators.packages.report import BuildReport
    from woodshed.tasks.install.command import PolicyPlace
    from woodshed.tasks.pipeline.agentic import removals
    from woodshed.tasks.pipeline.pin import Wishes
    from woodshed.tasks.settings import PackageTaskSettings

    settings = PackageTaskSettings(tasks_per_package=per_source, catalogue=catalogue, parallel=1, mutants=4, exploits=4)
    place, report = PolicyPlace(policy, model, _key(key_env)), BuildReport()
    with Bar(Console(stderr=True)) as progress:
        made = _in_boxes(
            lambda boxes, layers: removals(
                sources, settings, boxes, layers, out, place, progress, wishes=Wishes(installs=installs), report=report
            ),
            backend,
            out,
        )
    _print(report.table())
    _print(f"{len(made)} tasks in {out}")
    raise typer.Exit(1 if any(p.error for p in report.packages) or not made else 0)


def _key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        raise _fail(
            ValueError(f"--key-env {variable}: this environment variable is not set; put the server's key there")
        )
    return key


def text_of(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each source, followed by its targets, the resolved packages, and notes."""
    return "\n".join(line for outcome in outcomes for line in _lines(outcome))


def _lines(outcome: Outcome) -> list[str]:
    done = outcome.install
    state = "installed" if done else "discarded"
    lines = [f"{state:<10} {outcome.source}  {outcome.tries} {'try' if outcome.tries == 1 else 'tries'}"]
    why = {reached.goal: reached.why for reached in outcome.last}
    lines += [f"  target    {goal.command}" + (f"  ({why[goal]})" if why.get(goal) else "") for goal in outcome.targets]
    if done:
        lines.append(f"  resolved  {', '.join(map(_pinned, done.installed)) or 'nothing needed'}")
        lines += [f"  plugins   {', '.join(done.plugins)}"] if done.plugins else []
        lines += [f"  files     {', '.join(sorted(done.added))}"] if done.added else []
        lines += ["  services  started by start.sh"] if done.recipe.start else []
        lines += [f"  note      {note}" for note in done.notes]
    return lines + ([f"  why       {outcome.error}"] if outcome.error else [])


def json_of(outcome: Outcome) -> dict[str, Any]:
    from woodshed.tasks.packages.catalogue import Module, Wheel

    done = outcome.install
    return {
        "source": outcome.source,
        "installed": done is not None,
        "tries": outcome.tries,
        "error": outcome.error,
        "targets": [g.table() for g in outcome.targets],
        "wheels": [vars(p) for p in done.installed if isinstance(p, Wheel)] if done else [],
        "modules": [vars(p) for p in done.installed if isinstance(p, Module)] if done else [],
        "plugins": list(done.plugins) if done else [],
        "files": sorted(done.added) if done else [],
        "notes": list(done.notes) if done else [],
    }


def _pinned(one: Pinned) -> str:
    from woodshed.tasks.packages.catalogue import Wheel

    return f"{one.name if isinstance(one, Wheel) else one.package} {one.version}"
