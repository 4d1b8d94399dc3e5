"""Make the tasks of a run (synthetic, real packages, or a source of the user's own) and check them with the gates."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory, write_json
from woodshed.record.task import Task
from woodshed.tasks.generators.packages.build import build_package_tasks
from woodshed.tasks.generators.synthetic.function import Split
from woodshed.tasks.generators.synthetic.spec import draw_synthetic
from woodshed.tasks.generators.synthetic.write import write_synthetic
from woodshed.tasks.sources.custom import draw_tasks
from woodshed.tasks.validate.check import Verdict, check_folders
from woodshed.tasks.validate.gates import check_task

from .boxes import backend_of, layer_store
from .demonstrator import must_search
from .failures import StageFailed
from .tasks import built_tasks, check_label, lacking_packages, split_of, task_folder


def make_tasks(recipe: Recipe, run: RunDirectory) -> None:
    if recipe.tasks.family == "custom":
        make_custom(recipe, run)
    else:
        make_synthetic(recipe, run)


def make_synthetic(recipe: Recipe, run: RunDirectory) -> None:
    settings = recipe.tasks.synthetic
    counts: dict[Split, int] = {
        "train": settings.train,
        "sft": settings.sft,
        "dev": settings.dev if len(recipe.evaluate.temperatures) > 1 else 0,
        "heldout": settings.heldout,
    }
    total, done = sum(counts.values()), 0
    sample: list[Task] = []
    kinds: dict[str, str] = {}
    labels: set[str] = set()
    for split, count in counts.items():
        # These do not depend on the seed of the run, so that runs are compared on the same tasks.
        seed = settings.seed if split in ("dev", "heldout") else settings.seed + recipe.seed
        run.write_progress("tasks", done, total, f"drawing {count} {split} synthetic tasks")
        specs = draw_synthetic(count, split=split, seed=seed, two_bugs=0.0 if split == "train" else settings.two_bugs)
        for number, spec in enumerate(specs):
            path = task_folder(run, "synthetic", split) / spec.name.split("/")[-1]
            task = write_synthetic(spec, path) if not (path / "task.toml").exists() else Task.load(path)
            done += 1
            if split == "train":
                labels |= set(task.labels)
            if split == "heldout":
                kinds[task.name] = "two bugs" if len(spec.bugs) > 1 else task.info.kind
            if done % 50 == 0:
                run.write_progress("tasks", done, total, f"writing {split} synthetic tasks")
            if number < settings.checked:
                sample.append(task)
    check_label(labels, recipe)
    write_json(run.root / "tasks" / "kinds.json", kinds)
    run.write_progress("tasks", done, total, f"gates: {len(sample)} synthetic tasks")
    failed = asyncio.run(_gate(recipe, run, sample))
    if failed:
        raise StageFailed("synthetic tasks failed their gates: " + "; ".join(failed))
    run.write_result_of(
        "tasks", {"synthetic": total, "note": f"{total} synthetic tasks; {len(sample)} went through every gate"}
    )


def make_custom(recipe: Recipe, run: RunDirectory) -> None:
    """Draw the tasks of the source ``"module:function"`` and check each with every gate. Raises StageFailed if one
    fails."""
    source, settings = recipe.tasks.main, recipe.tasks.custom
    counts = {"train": settings.train, "heldout": settings.heldout}
    if len(recipe.evaluate.temperatures) > 1:
        counts = {"train": settings.train, "dev": settings.dev, "heldout": settings.heldout}
    total = sum(counts.values())
    tasks: list[Task] = []
    for split, count in counts.items():
        # These do not depend on the seed of the run, so that runs are compared on the same tasks.
        seed = settings.seed if split in ("dev", "heldout") else settings.seed + recipe.seed
        run.write_progress("tasks", len(tasks), total, f"{source}: {count} {split} tasks")
        for task in draw_tasks(source, task_folder(run, "custom", split), split=split, count=count, seed=seed):
            tasks.append(task)
            run.write_progress("tasks", len(tasks), total, f"{source}: wrote {task.path.name}")
    repeated = [name for name, number in Counter(task.name for task in tasks).items() if number > 1]
    if repeated:
        raise StageFailed(f"{source}: tasks of two splits are both called {repeated[0]}")
    check_label((label for task in tasks if task.info.split == "train" for label in task.labels), recipe)
    if recipe.learn.demonstrations.episodes and "grep" not in recipe.harness.tools:
        for task in tasks:
            if task.info.split == "train" and must_search(task):
                raise StageFailed(
                    f"{source}: {task.path}: the instruction does not name the file to change, and the policy has "
                    'nothing to search with: add "grep" to harness.tools, or name the file'
                )
    write_json(run.root / "tasks" / "kinds.json", {t.name: t.info.kind for t in tasks if t.info.split == "heldout"})
    failed = [verdict for verdict in asyncio.run(_check(recipe, run, list(counts))) if not verdict.passed]
    if failed:
        told = "; ".join(str(verdict) for verdict in failed[:5])
        raise StageFailed(f"{len(failed)} of {total} tasks of {source} failed their gates: {told}")
    note = f"{total} tasks of {source}, all through every gate"
    run.write_result_of("tasks", {"custom": total, "note": note})


async def _check(recipe: Recipe, run: RunDirectory, splits: list[str]) -> list[Verdict]:
    backend = backend_of(recipe.sandbox, placed=run.placed_boxes)
    folders = [task_folder(run, "custom", split) for split in splits]
    try:
        return await check_folders(
            folders,
            backend,
            layer_store(),
            parallel=os.cpu_count() or 1,
            progress=lambda done, total, note: run.write_progress("tasks", done, total, f"gates: {note}"),
        )
    finally:
        await backend.close()


def make_packages(recipe: Recipe, run: RunDirectory) -> None:
    settings = recipe.tasks.packages
    assert settings is not None
    out = run.root / "tasks" / "packages"

    async def build() -> list[Task]:
        backend = backend_of(recipe.sandbox, placed=run.placed_boxes)
        try:
            return await build_package_tasks(
                settings,
                backend,
                layer_store(),
                out,
                progress=lambda done, total, note: run.write_progress("packages", done, total, note),
            )
        finally:
            await backend.close()

    tasks, left_out = built_tasks(settings.folder) if settings.folder else (asyncio.run(build()), "")
    splits: Counter[str] = Counter()
    for task in tasks:
        split = split_of(task, recipe)
        splits[split] += 1
        folder = task_folder(run, "packages", split)
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / task.path.name
        if not link.exists():
            link.symlink_to(os.path.relpath(task.path, folder))  # the run directory may be moved
    if lacking := lacking_packages(splits, recipe):
        raise StageFailed(f"tasks.packages {lacking}")
    if recipe.tasks.main == "packages":
        check_label((label for task in tasks if split_of(task, recipe) == "train" for label in task.labels), recipe)
    packages = len({t.info.provenance.get("package", "") for t in tasks})
    parts = f"{splits['train']} train, {splits['heldout']} held out"
    parts += f", {splits['dev']} for development" if splits["dev"] else ""
    note = f"{len(tasks)} tasks from {packages} packages ({parts})"
    note += f"; {left_out}" if left_out else ""
    run.write_result_of("packages", {"tasks": len(tasks), "packages": packages, "note": note})


async def _gate(recipe: Recipe, run: RunDirectory, tasks: list[Task]) -> list[str]:
    backend = backend_of(recipe.sandbox, placed=run.placed_boxes)
    try:
        reports = [await check_task(task, backend, layer_store()) for task in tasks]
    finally:
        await backend.close()
    return [f"{t.name}: {', '.join(r.failures)}" for t, r in zip(tasks, reports, strict=True) if r.failures]
