"""``woodshed run``: the stages of a recipe, watched, interruptible, continued where they were."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live

from ..cluster.supervisor import ProgramFailed, Supervisor
from ..recipe.load import RecipeError, dump_recipe, load_recipe
from ..recipe.recipe import Recipe
from .cache import backend_of
from .directory import RunDirectory
from .screen import Screen
from .stages import Stage, plan


class RunError(Exception):
    """The run cannot start or go on; the message says why and what to do."""


def run_recipe(recipe_path: Path, *, out: Path | None, overrides: Sequence[str], fresh: bool, console: Console) -> None:
    recipe, run = _open(recipe_path, out, overrides, fresh)
    lock = _lock(run)
    try:
        check_machine(recipe, run)
        console.print(f"[bold]{recipe.name}[/] in {run.root}  ({recipe.description or 'no description'})")
        _run_stages(recipe, run, console)
        write_report(run.root, console)
    except ProgramFailed as error:
        raise RunError(f"{error}\nlogs are in {run.root / 'logs'}; the same command continues the run") from None
    finally:
        lock.close()


def _open(recipe_path: Path, out: Path | None, overrides: Sequence[str], fresh: bool) -> tuple[Recipe, RunDirectory]:
    if recipe_path.is_dir():
        out, recipe_path = recipe_path, recipe_path / "recipe.toml"
    try:
        recipe = load_recipe(recipe_path, overrides)
        run = RunDirectory((out or Path("runs") / recipe.name).absolute())
        if fresh and run.root.exists():
            if not run.recipe.exists():
                raise RunError(f"{run.root} is not a run directory; --fresh does not delete it")
            shutil.rmtree(run.root)
        resolved = dump_recipe(recipe)
        if run.recipe.exists():
            if dump_recipe(load_recipe(run.recipe)) != resolved:
                raise RunError(
                    f"{run.root} holds a run of another recipe (see {run.recipe}); continue it with "
                    f"`woodshed run {run.root}`, choose another directory with --out, or start over with --fresh"
                )
        else:
            run.root.mkdir(parents=True, exist_ok=True)
            run.recipe.write_text(resolved)
    except RecipeError as error:
        raise RunError(str(error)) from None
    except OSError as error:
        raise RunError(f"cannot make the run directory: {error}") from None
    return recipe, run


def _lock(run: RunDirectory) -> IO[str]:
    file = (run.root / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{run.root} is being run by another process") from None
    return file


def check_machine(recipe: Recipe, run: RunDirectory) -> None:
    """Refuse before anything starts what would fail in an hour."""

    free = shutil.disk_usage(run.root).free
    if free < 1 << 30:
        raise RunError(f"{run.root}: only {free >> 20} MiB free on this disk; a run needs at least 1 GiB")
    source = recipe.policy.source
    if source not in ("scratch", "smollm2") and not (Path(source) / "config.json").exists():
        raise RunError(f'policy.source: {source} has no config.json; give a Hugging Face directory, or "scratch"')
    probe = backend_of(recipe.sandbox).probe()
    if not probe.ok:
        raise RunError("sandboxes do not work here: " + "\n".join(probe.reasons))


def _run_stages(recipe: Recipe, run: RunDirectory, console: Console) -> None:
    waiting = [s for s in plan(recipe, run) if run.stage_result(s.name) is None]
    finished = {s.name for s in plan(recipe, run)} - {s.name for s in waiting}
    running: dict[str, tuple[Stage, Supervisor, float]] = {}
    screen = Screen(run, plan(recipe, run))
    try:
        with Live(screen.render(running, finished), console=console, refresh_per_second=2, transient=False) as live:
            while waiting or running:
                for stage in [s for s in waiting if _may_start(s, running, finished)]:
                    waiting.remove(stage)
                    supervisor = Supervisor()
                    running[stage.name] = (stage, supervisor, time.time())
                    for program in stage.programs():
                        supervisor.start(program)
                    break
                for name, (stage, supervisor, started) in list(running.items()):
                    for died in supervisor.check():
                        screen.notice(f"{died} died and was started again (see {run.log(died)})")
                    if all(supervisor.programs[p].done for p in stage.until):
                        supervisor.stop()
                        del running[name]
                        finished.add(name)
                        result = run.read_result_of(name)
                        run.finish_stage(name, {**result, "seconds": time.time() - started})
                live.update(screen.render(running, finished))
                time.sleep(0.2)
    finally:
        for _, supervisor, _ in running.values():
            supervisor.stop()


def _may_start(stage: Stage, running: dict[str, tuple[Stage, Supervisor, float]], finished: set[str]) -> bool:
    if not set(stage.needs) <= finished:
        return False
    alone = stage.heavy or any(s.heavy for s, _, _ in running.values())
    return not running if alone else len(running) < 2


def write_report(root: Path, console: Console) -> None:
    """``report.html`` and the closing table."""
    from ..view.report import ReportError, build_report

    try:
        build_report(RunDirectory(root.absolute()), console)
    except ReportError as error:
        raise RunError(str(error)) from None
