"""Draws validated studies in worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .function import Split
from .spec import StudySpec

STUDIES_PER_WORKER = 32
"""Below this many studies a further process costs more than it saves."""


def draw_studies(n: int, *, split: Split, seed: int, start: int = 0, workers: int | None = None) -> list[StudySpec]:
    """Studies number ``start`` to ``start + n`` of (``split``, ``seed``).

    Each has one mutation that a visible case kills. The result does not depend on ``workers`` (default: the CPUs this
    process may use). Raises RuntimeError where a worker fails.
    """
    if n <= 0:
        return []
    available = workers or len(os.sched_getaffinity(0))
    count = max(1, min(available, -(-n // STUDIES_PER_WORKER)))
    command = [sys.executable, "-m", "woodshed.tasks.generators.studies.worker"]
    running = []
    for worker in range(count):
        request = {"split": split, "seed": seed, "start": start + worker, "stop": start + n, "step": count}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None
        running.append(process)
    found: dict[int, StudySpec] = {}
    errors = []
    for process in running:
        out, err = process.communicate()
        if process.returncode != 0:
            errors.append(err.decode(errors="replace").strip()[-500:])
            continue
        for line in out.splitlines():
            index, data = json.loads(line)
            found[index] = StudySpec.from_dict(data)
    if errors:
        raise RuntimeError(f"studies: a worker process failed: {errors[0]}")
    return [found[index] for index in range(start, start + n)]
