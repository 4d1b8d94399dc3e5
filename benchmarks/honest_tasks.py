"""Count honest submissions to built tasks that the graders refuse; writes benchmarks/results/honest_tasks.json.

    python benchmarks/honest_tasks.py TASKS_FOLDER [--tasks 60] [--out benchmarks/results/honest_tasks.json]

Each task is graded on its reference solution and, in Python, on another form of it: the files are regenerated from
their syntax trees (no comments, other quotes and line breaks), and the bodies of changed functions are moved into
helper functions.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import copy
import random
from pathlib import Path
from time import perf_counter
from typing import Any

from result import write_result

from woodshed.grading.verify import grade
from woodshed.record.cache import cache_directory
from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, SandboxError
from woodshed.tasks.find import task_folders
from woodshed.tasks.languages.python import changed_functions

_HELPED = "_worked_out"


def other_form(before: str, after: str) -> str:
    """Return a solution's file in another form."""
    tree = ast.parse(after)
    _move(tree, "", set(changed_functions(before, after)))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _move(body: Any, prefix: str, changed: set[str]) -> None:
    made: list[ast.stmt] = []
    for node in body.body:
        if isinstance(node, ast.ClassDef):
            _move(node, f"{prefix}{node.name}.", changed)
        if isinstance(node, ast.FunctionDef) and prefix + node.name in changed and _movable(node):
            helper = copy.deepcopy(node)
            helper.name, helper.decorator_list = f"_{node.name.strip('_')}{_HELPED}", []
            made.append(helper)
            node.body = [*_docstring(node), ast.Return(_call(node, helper.name, bool(prefix)))]
        made.append(node)
    body.body = made


def _movable(node: ast.FunctionDef) -> bool:
    """Return whether the body can become a helper function: False for dunder methods, and if it uses ``super``,
    ``locals``, frames or decorators."""
    special = {"super", "locals", "__class__", "warn", "_getframe"}
    names = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node)}
    return not node.decorator_list and not names & special and not node.name.startswith("__")


def _docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    return node.body[:1] if ast.get_docstring(node) is not None else []


def _call(node: ast.FunctionDef, helper: str, method: bool) -> ast.Call:
    a = node.args
    places: list[ast.expr] = [ast.Name(x.arg, ast.Load()) for x in (*a.posonlyargs, *a.args)]
    if a.vararg:
        places.append(ast.Starred(ast.Name(a.vararg.arg, ast.Load()), ast.Load()))
    keywords = [ast.keyword(x.arg, ast.Name(x.arg, ast.Load())) for x in a.kwonlyargs]
    if a.kwarg:
        keywords.append(ast.keyword(None, ast.Name(a.kwarg.arg, ast.Load())))
    if method and places and isinstance(places[0], ast.Name):
        return ast.Call(ast.Attribute(places[0], helper, ast.Load()), places[1:], keywords)
    return ast.Call(ast.Name(helper, ast.Load()), places, keywords)


def forms(task: Task) -> dict[str, dict[str, bytes]]:
    """Return the submissions by form."""
    gold, start = task.solution_files(), task.workspace_files()
    found = {"solution": gold}
    if task.info.grader == "pytest":
        found["other form"] = {
            name: other_form(start.get(name, b"").decode(), data.decode()).encode() if name.endswith(".py") else data
            for name, data in gold.items()
        }
    return found


async def tried(folders: list[Path], backend: Backend, layers: LayerStore) -> list[dict[str, Any]]:
    rows = []
    for folder in folders:
        task = Task.load(folder)
        for form, submission in forms(task).items():
            try:
                outcome = await grade(task, submission, backend, layers)
                refused = "" if outcome.resolved else outcome.detail or str(outcome.tests)[:300]
            except SandboxError as error:
                refused = f"no verdict: {error}"
            rows.append({"task": folder.name, "kind": task.info.kind, "form": form, "refused": refused})
            print(f"{folder.name}, {form}: {refused or 'accepted'}", flush=True)
    return rows


async def main_of(folders: list[Path]) -> list[dict[str, Any]]:
    layers, backend = LayerStore(cache_directory() / "layers"), open_backend()
    try:
        return await tried(folders, backend, layers)
    finally:
        await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `woodshed tasks build` made")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="instead of results/honest_tasks.json")
    options = parser.parse_args()
    folders = sorted(task_folders([options.folder]))
    chosen = sorted(random.Random(options.seed).sample(folders, min(options.tasks, len(folders))))
    start = perf_counter()
    rows = asyncio.run(main_of(chosen))
    figures: dict[str, float | None] = {
        "tasks": len({row["task"] for row in rows}),
        "honest_tried": len(rows),
        "honest_refused": sum(bool(row["refused"]) for row in rows),
        "other_forms_tried": sum(row["form"] != "solution" for row in rows),
        "seconds": round(perf_counter() - start, 1),
    }
    write_result("honest_tasks", figures, {"submissions": rows}, options.out)


if __name__ == "__main__":
    main()
