"""``woodshed run``: run the stages of a recipe under supervision; an interrupted run continues where it was."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from woodshed.cluster.supervisor import ProgramFailed, Supervisor
from woodshed.evaluate.arms import ADOPT
from woodshed.harness.registry import harness_hash
from woodshed.monitors.judge import JudgeError, judge_key
from woodshed.policy.config import ConfigError, DecoderConfig
from woodshed.recipe.load import RecipeError, dump_recipe, earlier_run, load_recipe, recipe_of
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import rounds_of
from woodshed.record.atomic import locked
from woodshed.record.cache import cache_directory
from woodshed.record.run_directory import DirectoryError, RunDirectory, write_text
from woodshed.record.settings import is_reference
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import TaskError
from woodshed.sandbox.protocol import SandboxError
from woodshed.stages.adopt import refusal
from woodshed.stages.boxes import check_boxes, layer_store
from woodshed.stages.conversations import ConversationError, read_conversations
from woodshed.stages.demonstrator import must_search
from woodshed.stages.failures import disk_problem
from woodshed.stages.tasks import built_tasks, lacking_packages, settle_key, split_of
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.index import Index, PackageError
from woodshed.tasks.packages.source import is_cached
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.view.expected import Expected, ExpectedError
from woodshed.weights.errors import ChainError
from woodshed.weights.fence import Head

from .curves import CurveWatch, expected_curves
from .placed import PlacedBoxes, placed_boxes
from .plan import Stage, plan
from .screen import AlarmNews, screen_for

CHANGEABLE = ("rl.alarms.", "rl.dynamic_sampling.", "rl.max_infra_rate", "rl.infra_window")
"""Fields of the recipe that may be changed in an existing run: they decide when the run stops, and no finished work
depends on them."""


class RunError(Exception):
    """The run cannot start or go on; the message says why and what to do."""


def run_recipe(recipe_path: Path, *, out: Path | None, overrides: Sequence[str], fresh: bool, console: Console) -> None:
    if recipe_path.is_dir():
        here, recipe_path = recipe_path, recipe_path / "recipe.toml"
        if not recipe_path.exists():
            raise RunError(f"{here} is not a run directory (it has no recipe.toml); give a recipe, such as laptop")
        if out is not None and out.resolve() != here.resolve():
            raise RunError(
                f"--out {out}: {here} is a run directory, which is continued where it is; leave --out away, or start "
                f"another run of its recipe: `woodshed run {recipe_path} --out {out}`"
            )
        out = here
    try:
        recipe = load_recipe(recipe_path, overrides)
    except RecipeError as error:
        raise RunError(str(error)) from None
    run = RunDirectory((out or Path("runs") / recipe.name).absolute())
    try:
        check_machine(recipe, run, fresh=fresh)
    except DirectoryError as error:
        raise RunError(str(error)) from None
    with claim(run, recipe, fresh=fresh):
        title = Text.assemble((recipe.name, "bold"), f" in {run.root}  ({recipe.description or 'no description'})")
        console.print(title, soft_wrap=True)
        try:
            with placed_boxes(recipe, run, console) as boxes:
                _run_stages(recipe, run, console, boxes)
            write_report(run.root, console)
        except RunError:
            raise
        except Exception as error:
            if problem := disk_problem(run.root, str(error)):
                raise RunError(problem) from None
            if isinstance(error, ProgramFailed):
                logs = f"logs are in {run.root / 'logs'}; the same command continues the run"
                raise RunError(f"{error}\n{logs}") from None
            if isinstance(error, (DirectoryError, SandboxError, ExpectedError, OSError)):
                raise RunError(str(error)) from None
            raise


@contextmanager
def claim(run: RunDirectory, recipe: Recipe, *, fresh: bool) -> Iterator[None]:
    """Lock the run directory for this process and this recipe. ``fresh``: empty it first. Raises RunError if another
    process runs in it, or it holds a run of another recipe."""
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        ours = run.recipe.exists() or (run.root / _AWAY).is_dir()
        # A process that was killed before the recipe was there has left its temporary file.
        left = (".lock", f".{run.recipe.name}.")
        if not ours and not all(path.name.startswith(left) for path in run.root.iterdir()):
            raise RunError(f"{run.root} is not empty and is not a run directory; choose another with --out")
        busy = f"{run.root} is being run by another process; wait for it, or choose another directory with --out"
        with locked(run.root, RunError(busy)):
            if fresh or (run.root / _AWAY).is_dir():
                _empty(run.root)
            _settle_recipe(run, recipe)
            _check_own_tools(run, recipe)
            settle_key(recipe.grading, run.root)
            yield
    except DirectoryError as error:
        raise RunError(str(error)) from None
    except OSError as error:
        problem = disk_problem(run.root, str(error))
        raise RunError(problem or f"{run.root} cannot be used as run directory: {error}") from None


_AWAY = ".deleted"
"""Folder of a run directory in which ``--fresh`` collects what it deletes."""


def _empty(root: Path) -> None:
    """Delete everything but the lock. All of it is first put aside, and as long as that folder is there, ``claim``
    deletes the rest: nobody can go on with the half of a run that a kill has left."""
    away = root / _AWAY
    away.mkdir(exist_ok=True)
    for path in list(root.iterdir()):
        if path.name not in (".lock", _AWAY):
            path.rename(away / secrets.token_hex(8))
    shutil.rmtree(away)


def _settle_recipe(run: RunDirectory, recipe: Recipe) -> None:
    resolved = dump_recipe(recipe)
    if not run.recipe.exists():
        write_text(run.recipe, resolved)
        return
    try:
        known = dump_recipe(load_recipe(run.recipe))
    except RecipeError as error:
        raise RunError(f"{error}\nthis is the recipe of an earlier run; start over with --fresh") from None
    if known != resolved:
        different = _differences(tomllib.loads(known), tomllib.loads(resolved))
        if all(field.startswith(CHANGEABLE) for field in different):
            write_text(run.recipe, resolved)
            return
        fields = ", ".join(different[:8])
        raise RunError(
            f"{run.root} holds a run of another recipe (different: {fields}); continue it with "
            f"`woodshed run {run.root}`, choose another directory with --out, or start over with --fresh"
        )


def _check_own_tools(run: RunDirectory, recipe: Recipe) -> None:
    """Raise RunError if tools of the user's are not those of the trajectories that the run has so far."""
    own = [name for name in recipe.harness.tools if is_reference(name)]
    if not own or recipe.harness.program is not None or not run.trajectories.exists():
        return
    store = TrajectoryStore(run.trajectories)
    try:
        known = {row["harness_hash"] for row in store.rows()}
    finally:
        store.close()
    if known - {harness_hash(recipe.harness)}:
        raise RunError(
            f"harness.tools: {', '.join(own)}: the source, or Woodshed, was changed since this run began, and "
            "trajectories of different tools are not compared; restore it, choose another directory with --out, or "
            "start over with --fresh"
        )


def _differences(known: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*known, *wanted}):
        left, right = known.get(key), wanted.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += _differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(prefix + key)
    return found


def check_machine(recipe: Recipe, run: RunDirectory, *, fresh: bool = False) -> None:
    """Check what would otherwise make the run fail much later. ``fresh``: nothing of an earlier run in its directory
    will be left. Raises RunError."""

    def over(stage: str) -> bool:
        return not fresh and run.stage_result(stage) is not None

    if fresh:
        _check_sources(recipe, run)
    place = next(p for p in (run.root, *run.root.parents) if p.is_dir())
    free = shutil.disk_usage(place).free
    if free < 1 << 30:
        raise RunError(f"{run.root}: only {free >> 20} MiB free on this disk; a run needs at least 1 GiB; make space")
    if over(ADOPT):
        pass  # everything needed from the earlier run was already taken over
    elif (earlier := earlier_run(recipe)) is not None:
        _check_earlier(recipe, earlier)
    elif not over("sft"):
        _check_given(recipe, read=over("demos"))
    if recipe.policy.device == "cuda":
        from woodshed.policy.device import resolve  # imports torch, which takes a second

        try:
            resolve("cuda")
        except ValueError as error:
            raise RunError(f"policy.{error}") from None
    try:
        recipe.rl.make_algorithm()
        recipe.rl.make_reward()
    except ValueError as error:
        raise RunError(str(error)) from None
    try:
        if recipe.rl.judge is not None and recipe.rl.monitors.judge != "off":
            judge_key(recipe.rl.judge)
        if recipe.rl.reader is not None:
            judge_key(recipe.rl.reader, "rl.reader")
    except JudgeError as error:
        raise RunError(str(error)) from None
    if recipe.tasks.packages and not over("packages"):
        if recipe.tasks.packages.folder:
            _check_folder(recipe, recipe.tasks.packages.folder)
        else:
            _check_packages(recipe.tasks.packages)
    if recipe.weights.store:
        _check_store(recipe, begun=over("sft") or over(ADOPT))
    try:
        cache_directory()
        check_boxes(recipe.sandbox)
    except (OSError, SandboxError) as error:
        raise RunError(str(error)) from None


def _check_sources(recipe: Recipe, run: RunDirectory) -> None:
    """Raise RunError if ``--fresh`` would delete what the recipe starts from."""
    named = [("learn.demonstrations.conversations", path) for path in recipe.learn.demonstrations.conversations]
    if recipe.policy.source not in ("scratch", "smollm2"):
        named.append(("policy.source", Path(recipe.policy.source)))
    if recipe.tasks.packages and recipe.tasks.packages.folder:
        named.append(("tasks.packages.folder", Path(recipe.tasks.packages.folder)))
    for field, path in named:
        if path.resolve().is_relative_to(run.root.resolve()):
            raise RunError(f"{field}: --fresh would delete {path}, which lies in {run.root}; choose another --out")


def _check_store(recipe: Recipe, *, begun: bool) -> None:
    """Raise RunError unless the bucket answers and the chains in it are this run's own, which may have ``begun``
    them."""
    for url in (each.beside(recipe.weights.store) for each in rounds_of(recipe)):
        try:
            head = Head(url)()
        except (ChainError, OSError) as error:
            raise RunError(f"weights.store: {error}") from None
        if head is not None and not begun:
            raise RunError(
                f"weights.store: {url} already has versions up to {head}, of another run; choose another prefix"
            )


def _check_packages(settings: PackageTaskSettings) -> None:
    """Raise RunError unless the packages are in the catalogue and either one of them is cached or the package index
    answers."""
    try:
        chosen = load_catalogue(Path(settings.catalogue) if settings.catalogue else None).select(settings.packages)
        if not any(is_cached(package.file, package.sha256) for package in chosen):
            Index().files(chosen[0].name)
    except PackageError as error:
        raise RunError(f"tasks.packages: {error}") from None


def _check_folder(recipe: Recipe, folder: str) -> None:
    """Raise RunError unless the tasks in ``folder`` can be read, there are enough of them, and their layers are on this
    machine."""
    try:
        tasks, left_out = built_tasks(folder)
        for name in sorted({layer for task in tasks for layer in task.info.layers}):
            layer_store().path(name)
    except (TaskError, SandboxError) as error:
        raise RunError(f"tasks.packages.folder: {error}") from None
    count = Counter(split_of(task, recipe) for task in tasks)
    if lacking := lacking_packages(count, recipe):
        out = f" ({left_out})" if left_out else ""
        raise RunError(f"tasks.packages.folder: {folder}{out} {lacking} (`woodshed tasks build --per-source`)")
    if recipe.tasks.main == "packages" and "grep" not in recipe.harness.tools:
        lost = [task for task in tasks if must_search(task)]
        if lost:
            raise RunError(
                f"tasks.packages.folder: {lost[0].path}: the instruction does not name the file to change, and the "
                'policy has nothing to search with: add "grep" to harness.tools, or build with --prompt located'
            )
    if not count["heldout"]:
        raise RunError(
            f"tasks.packages.folder: {folder} has no held-out tasks to evaluate on; build more, or into a new "
            "folder with --heldout NAME or a larger --heldout-share"
        )


def _check_earlier(recipe: Recipe, earlier: RunDirectory) -> None:
    try:
        problem = refusal(recipe, earlier)
    except (RecipeError, DirectoryError) as error:
        raise RunError(f"policy.source: {error}") from None
    if problem:
        raise RunError(problem)


def _check_given(recipe: Recipe, *, read: bool) -> None:
    """Raise RunError unless the policy and the conversations to start from can be read. ``read``: the latter were read
    already."""
    if recipe.policy.source not in ("scratch", "smollm2"):
        _check_policy(Path(recipe.policy.source))
    try:
        for _ in read_conversations(() if read else recipe.learn.demonstrations.conversations):
            pass
    except ConversationError as error:
        raise RunError(f"learn.demonstrations.conversations: {error}") from None


def _check_policy(source: Path) -> None:
    path = source / "config.json"
    if not path.exists():
        raise RunError(
            f'policy.source: {source} has no config.json; give a Hugging Face directory, a finished run, or "scratch"'
        )
    try:
        DecoderConfig.from_hf(json.loads(path.read_text(encoding="utf-8")))
    except ConfigError as error:
        raise RunError(f"policy.source: {path}: {error}") from None
    except (ValueError, AttributeError) as error:
        raise RunError(f"policy.source: {path}: not JSON of a model: {error}") from None


def _run_stages(recipe: Recipe, run: RunDirectory, console: Console, boxes: PlacedBoxes) -> None:
    from woodshed.view.tensorboard import TensorBoardMirror  # imports tensorboard, which takes a while

    waiting = [s for s in plan(recipe, run) if run.stage_result(s.name) is None]
    finished = {s.name for s in plan(recipe, run)} - {s.name for s in waiting}
    running: dict[str, tuple[Stage, Supervisor, float]] = {}
    mirror, noted = TensorBoardMirror(run.root), 0.0
    alarms = AlarmNews(run.stage_metrics("alarms"))
    curves = CurveWatch(run.root, expected_curves(recipe))
    before = run.read_clock()
    try:
        with screen_for(run, plan(recipe, run), curves, console) as screen:
            while waiting or running:
                for stage in [s for s in waiting if _may_start(s, running, finished)]:
                    waiting.remove(stage)
                    supervisor = Supervisor()
                    running[stage.name] = (stage, supervisor, time.monotonic() - before.get(stage.name, 0.0))
                    for program in stage.programs():
                        supervisor.start(program)
                    break
                for news in (*boxes.check(), *alarms.check(), *curves.news()):
                    screen.notice(news)
                for name, (stage, supervisor, started) in list(running.items()):
                    for died in supervisor.check():
                        if problem := disk_problem(run.root):
                            raise RunError(problem)
                        screen.notice(f"{died} died and was started again (see {run.log(died)})")
                    if all(supervisor.programs[p].done for p in stage.until):
                        supervisor.stop()
                        del running[name]
                        finished.add(name)
                        result = run.read_result_of(name)
                        run.finish_stage(name, {**result, "seconds": time.monotonic() - started})
                if time.monotonic() - noted > 5 or not (waiting or running):
                    mirror.update()
                    run.write_clock({name: time.monotonic() - started for name, (_, _, started) in running.items()})
                    noted = time.monotonic()
                screen.update(running, finished)
                time.sleep(0.2)
    finally:
        for _, supervisor, _ in running.values():
            supervisor.stop()
        with contextlib.suppress(OSError):  # for example a full disk, which is what ended the run
            run.write_clock({name: time.monotonic() - started for name, (_, _, started) in running.items()})


def _may_start(stage: Stage, running: dict[str, tuple[Stage, Supervisor, float]], finished: set[str]) -> bool:
    if not set(stage.needs) <= finished:
        return False
    alone = stage.heavy or any(s.heavy for s, _, _ in running.values())
    return not running if alone else len(running) < 2


def write_report(root: Path, console: Console) -> None:
    """Write ``report.html`` and print the final table. Raises RunError."""
    from woodshed.view.report import ReportError, build_report

    try:
        run = RunDirectory(root.absolute())
        build_report(run, console, _expected(run))
    except (ReportError, DirectoryError, ExpectedError, RecipeError) as error:
        raise RunError(str(error)) from None


def _expected(run: RunDirectory) -> Expected | None:
    """Return the expected curves of a run; None also for a recipe that cannot be used here, such as one that names a
    module of the user's and is reported in another folder: the report needs only the records. Raises RecipeError."""
    try:
        return expected_curves(recipe_of(run))
    except RecipeError:
        with contextlib.suppress(OSError, ValueError):  # there is no recipe, or it is no TOML
            tomllib.loads(run.recipe.read_text(encoding="utf-8"))
            return None
        raise
