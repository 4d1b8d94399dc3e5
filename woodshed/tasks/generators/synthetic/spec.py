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
from dataclasses import asdict, dataclass
from typing import Any

from woodshed.tasks.languages.python import Mutation

from .function import Case, Split, SyntheticFunction


@dataclass(frozen=True)
class SyntheticSpec:
    """Three modules ``modules[i].py``, each one function; ``mutation`` was made in module number ``broken``.

    ``failing`` are the case numbers of that module which the mutation breaks (at least one is visible).
    """

    name: str
    split: Split
    seed: int
    modules: tuple[str, ...]
    functions: tuple[SyntheticFunction, ...]
    broken: int
    mutation: Mutation
    failing: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f.key for f in self.functions)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> SyntheticSpec:
        functions = tuple(
            SyntheticFunction(f["key"], f["name"], f["source"], tuple(Case(c["args"], c["want"]) for c in f["cases"]))
            for f in data["functions"]
        )
        plain = {k: data[k] for k in ("name", "split", "seed", "broken")}
        return SyntheticSpec(
            **plain,
            modules=tuple(data["modules"]),
            functions=functions,
            mutation=Mutation(**data["mutation"]),
            failing=tuple(data["failing"]),
        )


TASKS_PER_WORKER = 32
"""A further worker process costs more than it saves below this many synthetic tasks."""


def draw_synthetic(
    n: int, *, split: Split, seed: int, start: int = 0, workers: int | None = None
) -> list[SyntheticSpec]:
    """Synthetic tasks number ``start`` to ``start + n`` of (``split``, ``seed``).

    Each has one mutation that a visible case kills. The result does not depend on ``workers`` (default: the CPUs this
    process may use). Raises RuntimeError where a worker fails.
    """
    if n <= 0:
        return []
    available = workers or len(os.sched_getaffinity(0))
    count = max(1, min(available, -(-n // TASKS_PER_WORKER)))
    command = [sys.executable, "-m", "woodshed.tasks.generators.synthetic.worker"]
    running = []
    for worker in range(count):
        request = {"split": split, "seed": seed, "start": start + worker, "stop": start + n, "step": count}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None
        running.append(process)
    found: dict[int, SyntheticSpec] = {}
    errors = []
    for process in running:
        out, err = process.communicate()
        if process.returncode != 0:
            errors.append(err.decode(errors="replace").strip()[-500:])
            continue
        for line in out.splitlines():
            index, data = json.loads(line)
            found[index] = SyntheticSpec.from_dict(data)
    if errors:
        raise RuntimeError(f"synthetic tasks: a worker process failed: {errors[0]}")
    return [found[index] for index in range(start, start + n)]


_TEXT = """
acorn apron bagel beacon blanket bottle breeze cabin candle carpet chair circle cloud cobalt cream curtain diamond
drum falcon field flute ginger glove hammer hill ivory jelly ladder lily lotus marble mirror nectar ocean orange
parrot pepper planet poppy rabbit ridge rose shore snow star stream thunder tower
"""
NOUNS: tuple[str, ...] = tuple(_TEXT.split())
