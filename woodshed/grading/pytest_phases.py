"""Several pytest runs in one box that differ in a file or two, so that pytest starts only once.

Used only for trusted code while tasks are generated; ``pytest_grader.py`` grades each submission in a box of its own.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Literal

from woodshed.sandbox.protocol import Sandbox

from .pytest_grader import MAX_OUTPUT, TestRun, read_run, runner_source

BUSY = 8
"""On a busy machine, a run may take this many times as long as on an idle one before it counts as slow."""

StopAt = Literal["", "failure", "hang"]


@dataclass(frozen=True)
class Phase:
    """One run: first ``delete`` and ``write`` (paths relative to the workdir), then the tests ``ids`` of ``files``.

    ``timeout``: seconds for the run, ``test_timeout`` for one test; time for which the run or the test waited for a
    processor does not count, up to ``BUSY`` times the limit in all. ``bytecode``: keep compiled files beside the
    sources for later runs. ``ids`` None: all tests; empty: the files are only collected.
    """

    files: Sequence[str]
    ids: Sequence[str] | None
    write: Mapping[str, bytes] = field(default_factory=dict)
    delete: Sequence[str] = ()
    timeout: float = 60.0
    test_timeout: float = 10.0
    bytecode: bool = False
    reverse: bool = False
    fresh: bool = False
    """Run in a new interpreter, with other string hashes and addresses than the other runs."""
    encoder: str = ""
    """Source of an encoder for the values that altered tests record."""
    stop_at: StopAt = ""
    """End the run, which is then not ``complete``, at the first ``failure`` or the first ``hang`` (a test beyond its
    time limit)."""


async def run_phases(
    box: Sandbox, phases: Sequence[Phase], *, path: Sequence[str], workdir: str = "/workspace"
) -> list[TestRun]:
    """Run all phases; return one TestRun for each, in order. ``path`` as for ``run_pytest``.

    Raises SandboxError only if the sandbox itself fails. A phase that only collects is never ``complete``; read its
    ``problems``.
    """
    nonces = [secrets.token_hex(16) for _ in phases]
    request = {
        "runner": runner_source(),
        "path": list(path),
        "workdir": workdir,
        "phases": [_phase(p, nonce, path, workdir) for p, nonce in zip(phases, nonces)],
    }
    start = perf_counter()
    done = await box.exec(
        ["python3", "-I", "-B", "-c", _source()],
        stdin=json.dumps(request).encode(),
        cwd=workdir,
        timeout=10.0 + BUSY * sum(p.timeout for p in phases),
        max_output=MAX_OUTPUT * len(phases),
    )
    seconds = (perf_counter() - start) / max(1, len(phases))
    return [
        read_run(done.stdout, nonce, _ended(done.stdout, nonce, p), b"", seconds) for p, nonce in zip(phases, nonces)
    ]


def _phase(phase: Phase, nonce: str, path: Sequence[str], workdir: str) -> dict[str, object]:
    run = {
        "nonce": nonce,
        "files": list(phase.files),
        "ids": None if phase.ids is None else list(phase.ids),
        "path": list(path),
        "workdir": workdir,
        "test_timeout": phase.test_timeout,
        "reverse": phase.reverse,
        "trace": [],
        "encoder": phase.encoder,
        "bytecode": phase.bytecode,
        "stop_at": phase.stop_at,
        "busy": BUSY,
    }
    write = {name: base64.b64encode(data).decode() for name, data in phase.write.items()}
    return {"run": run, "write": write, "delete": list(phase.delete), "timeout": phase.timeout, "fresh": phase.fresh}


def _ended(stdout: bytes, nonce: str, phase: Phase) -> int | str:
    found = re.search(rf"^{nonce}: (null|-?\d+)$".encode(), stdout, re.MULTILINE)
    if found is None:
        return "the box ended before the run did"
    return f"timed out after {phase.timeout:g} s" if found[1] == b"null" else int(found[1])


@cache
def _source() -> str:
    return Path(__file__).with_name("pytest_phases_runner.py").read_text("utf-8")
