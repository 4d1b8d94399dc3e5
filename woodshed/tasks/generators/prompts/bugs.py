"""Reports of one wrong line, less precise than ``packages/instruction.py`` writes them."""

from __future__ import annotations

import random

from woodshed.tasks.generators.packages.instruction import module_name, without_addresses

_NORMAL = (
    "`{module}` misbehaves. A check that should hold says:\n\n    {observed}\n\nFind out why and fix it; "
    "{file} has the expectations.\n",
    "Something in `{module}` broke ({file} shows it):\n\n    {observed}\n\nPlease repair the library, not the tests.\n",
)
_TERSE = (
    "{module} gives wrong results since the last change, pls fix\n",
    "something is off with {area} in {module}, can you have a look and fix it?\n",
    "{file} is red again. The library is at fault.\n",
)


def vague_report(rng: random.Random, level: str, module: str, name: str, test: str, observed: str) -> str:
    """``name``: the function at fault, of which at most the last part is told; ``observed``: what a test says."""
    lines = [line.strip() for line in without_addresses(observed).splitlines() if line.strip()]
    values = {
        "module": module_name(module), "file": test.partition("::")[0], "area": name.rpartition(".")[2].strip("_"),
        "observed": (lines or ["a test fails"])[0][:160],
    }  # fmt: skip
    return rng.choice(_NORMAL if level == "normal" else _TERSE).format(**values)
