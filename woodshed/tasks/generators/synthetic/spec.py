"""Synthetic tasks as pure data, before they are written to disk; worker processes draw and validate them.

Module names are common English nouns, each likely to be one token of a tokenizer trained on these tasks: small policies
recombine names of several tokens instead of copying them. The list is short, so that each noun is seen often: with 226
nouns, one in sixteen first reads went to a file that does not exist.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from woodshed.tasks.languages.python import Mutation

from .function import Case, Split, SyntheticFunction


@dataclass(frozen=True)
class Bug:
    """``mutation`` was made in module number ``module``. ``failing``: case numbers of that module which it breaks, at
    least one of them visible and one hidden."""

    module: int
    mutation: Mutation
    failing: tuple[int, ...]


@dataclass(frozen=True)
class SyntheticSpec:
    """Modules ``modules[i].py`` with one function each. ``bugs`` are in different modules and independent of each
    other: one or two if the task is drawn before a run, up to ``rl.growth.max_bugs`` if it is made during one."""

    name: str
    split: Split
    seed: int
    modules: tuple[str, ...]
    functions: tuple[SyntheticFunction, ...]
    bugs: tuple[Bug, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f.key for f in self.functions)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each bug, sorted."""
        return tuple(sorted(bug.mutation.kind for bug in self.bugs))

    def sources(self, *, repaired: bool) -> dict[str, str]:
        """Source by file name, as the task is given or with every bug repaired."""
        found = {f"{module}.py": f.source for module, f in zip(self.modules, self.functions)}
        for bug in () if repaired else self.bugs:
            found[f"{self.modules[bug.module]}.py"] = bug.mutation.source
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> SyntheticSpec:
        functions = tuple(
            SyntheticFunction(f["key"], f["name"], f["source"], tuple(Case(c["args"], c["want"]) for c in f["cases"]))
            for f in data["functions"]
        )
        plain = {k: data[k] for k in ("name", "split", "seed")}
        bugs = tuple(Bug(b["module"], Mutation(**b["mutation"]), tuple(b["failing"])) for b in data["bugs"])
        return SyntheticSpec(**plain, modules=tuple(data["modules"]), functions=functions, bugs=bugs)


TASKS_PER_WORKER = 32
"""A further worker process costs more than it saves below this many synthetic tasks."""


def draw_synthetic(
    n: int, *, split: Split, seed: int, start: int = 0, two_bugs: float = 0.0, workers: int | None = None
) -> list[SyntheticSpec]:
    """Return the synthetic tasks number ``start`` to ``start + n - 1`` of (``split``, ``seed``).

    Each has one mutation that a visible and a hidden case kill, and a share ``two_bugs`` of them a second one, in
    another module. The result does not depend on ``workers`` (default: the CPUs this process may use). Raises
    RuntimeError if a worker fails.
    """
    if n <= 0:
        return []
    available = workers or len(os.sched_getaffinity(0))
    count = max(1, min(available, -(-n // TASKS_PER_WORKER)))
    requests = [
        {
            "split": split,
            "seed": seed,
            "start": start + worker,
            "stop": start + n,
            "step": count,
            "two_bugs": two_bugs,
        }
        for worker in range(count)
    ]
    found = dict(_drawn_by_workers(requests))
    return [found[index] for index in range(start, start + n)]


def draw_combined(name: str, kinds: Sequence[str], *, split: Split, seed: int) -> SyntheticSpec:
    """Draw the synthetic task ``name`` with a bug of each of ``kinds`` (at least two), each in a module of its own.

    The result depends on the arguments only. The functions are drawn from ``split`` like those of any other synthetic
    task. Raises RuntimeError if no such task is found, or if the worker fails.
    """
    request = {"split": split, "seed": seed, "name": name, "kinds": list(kinds)}
    ((_, spec),) = _drawn_by_workers([request])
    return spec


def _drawn_by_workers(requests: Sequence[dict[str, Any]]) -> list[tuple[int, SyntheticSpec]]:
    """Run each request in its own process; return (index, task) of every task. Raises RuntimeError if one fails."""
    command = [sys.executable, "-m", "woodshed.tasks.generators.synthetic.worker"]
    running = []
    for request in requests:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None
        running.append(process)
    found: list[tuple[int, SyntheticSpec]] = []
    errors = []
    for process in running:
        out, err = process.communicate()
        if process.returncode != 0:
            errors.append(err.decode(errors="replace").strip()[-500:])
            continue
        for line in out.splitlines():
            index, data = json.loads(line)
            found.append((index, SyntheticSpec.from_dict(data)))
    if errors:
        raise RuntimeError(f"synthetic tasks: a worker process failed: {errors[0]}")
    return found


_TEXT = """
acorn apron bagel beacon blanket bottle breeze cabin candle carpet chair circle cloud cobalt cream curtain diamond
drum falcon field flute ginger glove hammer hill ivory jelly ladder lily lotus marble mirror nectar ocean orange
parrot pepper planet poppy rabbit ridge rose shore snow star stream thunder tower
"""
NOUNS: tuple[str, ...] = tuple(_TEXT.split())
