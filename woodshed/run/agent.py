"""``woodshed agent``: run the policy of a run, or any endpoint, in a box on a task or a folder, in the terminal."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from woodshed.cluster.supervisor import ProgramFailed
from woodshed.gateway.client import GatewayAdmin
from woodshed.grading.settings import GradingSettings
from woodshed.grading.verify import grade, submission_from
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.errors import EndpointLost
from woodshed.harness.terminal import FolderError, agent_main, read_folder, work_on_folder
from woodshed.recipe.load import RecipeError, recipe_of
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import DirectoryError, RunDirectory
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.protocol import Backend, BoxSpec, SandboxError
from woodshed.sandbox.services import create_box
from woodshed.sandbox.settings import RAY
from woodshed.sandbox.taskbox import agent_box_spec
from woodshed.stages.boxes import backend_of, layer_store
from woodshed.stages.servers import address_of
from woodshed.stages.tasks import load_split, with_key

from .placed import served

_PROBLEMS = (DirectoryError, RecipeError, TaskError, FolderError, EndpointLost, SandboxError, ProgramFailed)


class AgentError(Exception):
    """The agent cannot start; the message says what to do."""


@dataclass(frozen=True)
class FolderWork:
    """A folder of one's own to work on. ``tests``: command that runs its tests; ``yes``: write changes back without
    asking."""

    folder: Path
    prompt: str
    tests: str = ""
    yes: bool = False


def drive(
    root: Path,
    *,
    task: Path | None,
    work: FolderWork | None = None,
    stage: str,
    endpoint: str | None,
    model: str,
    step: bool,
    temperature: float,
) -> None:
    run = RunDirectory(root.absolute())
    console = Console()
    try:
        recipe = recipe_of(run)
        if (program := recipe.harness.program) is not None and endpoint is None:
            raise AgentError(
                f"the agent of this run is another program ({program.command.split()[0]}): serve the policy with "
                f"'woodshed serve {run.policy(stage)}' and start that program against it"
            )
        chosen: Task | FolderWork
        if work is not None:
            read_folder(work.folder)  # what is wrong with it is said before a server starts
            chosen = work
        else:
            chosen = Task.load(task) if task else random.choice(load_split(run, recipe.tasks.family, "heldout"))
            console.print(str(chosen.path), style="dim", markup=False)
        grading = with_key(recipe.grading, run.root)
        with ExitStack() as stack:
            key = os.environ.get("OPENAI_API_KEY", "none")
            if endpoint is None:
                if not (run.policy(stage) / "config.json").exists():
                    have = sorted(p.name for p in (run.root / "policy").glob("*")) or ["none"]
                    raise AgentError(f"{run.policy(stage)} does not exist; this run has: {', '.join(have)} (--stage)")
                folder, _ = stack.enter_context(served(recipe, run.policy(stage)))
                endpoint, key = _open_trajectory(folder)
            asyncio.run(_episode(recipe, grading, chosen, endpoint, key, model, step, temperature, console))
    except _PROBLEMS as error:
        raise AgentError(str(error)) from None


def _open_trajectory(folder: RunDirectory) -> tuple[str, str]:
    """Open a trajectory on our policy server; return its URL and key."""
    url, admin_key = address_of(folder)

    async def opened() -> str:
        async with GatewayAdmin(url, admin_key) as admin:
            return await admin.open("agent", task="agent", group="agent", source="live")

    return url, asyncio.run(opened())


async def _episode(
    recipe: Recipe,
    grading: GradingSettings,
    chosen: Task | FolderWork,
    url: str,
    key: str,
    model: str,
    step: bool,
    temperature: float,
    console: Console,
) -> None:
    sandbox = recipe.sandbox
    if RAY in sandbox.hosts:
        console.print("[dim]the box is made on this machine; only a run places boxes on a Ray cluster[/]")
        sandbox = sandbox.model_copy(update={"hosts": ()})
    backend = backend_of(sandbox)
    endpoint = HttpEndpoint(url, key, model, sampling={"temperature": temperature})
    try:
        if isinstance(chosen, Task):
            await _on_task(recipe, grading, chosen, endpoint, backend, step, console)
        else:
            await _on_folder(recipe, chosen, endpoint, backend, step, console)
    finally:
        await endpoint.close()
        await backend.close()


async def _on_task(
    recipe: Recipe,
    grading: GradingSettings,
    task: Task,
    endpoint: HttpEndpoint,
    backend: Backend,
    step: bool,
    console: Console,
) -> None:
    layers = layer_store()
    spec = agent_box_spec(task, layers, limits=recipe.sandbox.limits(), egress=recipe.sandbox.egress())
    box = await create_box(backend, spec, task.info.start)
    try:
        episode = await agent_main(
            endpoint,
            box,
            task.instruction,
            recipe.harness,
            console,
            test_command=task.info.test_command,
            step=step,
            talk=step,
        )
        submission = await submission_from(box, task, grading)
    finally:
        await box.close()
    outcome = await grade(task, submission, backend, layers, settings=grading)
    verdict = "[green]resolved[/]" if outcome.resolved else "[red]not resolved[/]"
    console.print(f"{episode.status}, graded in a fresh box: {verdict}")


async def _on_folder(
    recipe: Recipe, work: FolderWork, endpoint: HttpEndpoint, backend: Backend, step: bool, console: Console
) -> None:
    sandbox, harness = recipe.sandbox, recipe.harness
    box = await backend.create(BoxSpec(workdir=harness.workdir, limits=sandbox.limits(), egress=sandbox.egress()))
    try:
        await work_on_folder(
            work.folder,
            work.prompt,
            endpoint,
            box,
            harness,
            console,
            test_command=work.tests,
            step=step,
            talk=step,
            yes=work.yes,
        )
    finally:
        await box.close()
