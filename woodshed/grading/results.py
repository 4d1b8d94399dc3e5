"""Results of a test run, read from the frames that the runner in the box writes to its own channel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from woodshed.sandbox.protocol import ExecResult

Place = tuple[str, str, int]
"""File, qualified name and first line of a function that was run."""


@dataclass
class TestResult:
    """Result of one test. ``status``: passed, failed, error, skipped. ``covered``: the functions that it ran.

    ``seen``: encoded values that an altered test recorded. ``cpu``: seconds of processor time, if known.
    """

    __test__ = False

    status: str
    seconds: float = 0.0
    text: str = ""
    covered: list[Place] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    cpu: float | None = None


@dataclass
class TestRun:
    """One run of tests in a box. ``complete`` is False if it ended early, timed out or contradicts itself.

    ``problems``: files that could not be collected, and why. ``status``: the exit status, None if the runner announced
    none. ``imported``: functions that ran before the first test, as in ``TestResult.covered``.
    """

    __test__ = False

    results: dict[str, TestResult]
    complete: bool
    detail: str = ""
    collected: int = 0
    seconds: float = 0.0
    problems: tuple[str, ...] = ()
    status: int | None = None
    imported: tuple[Place, ...] = ()


def how_it_ended(done: ExecResult, timeout: float) -> int | str:
    """Return the exit status, or a text that says that the ``timeout`` (seconds) was reached."""
    return f"timed out after {timeout:g} s" if done.timed_out else done.returncode


def read_run(stdout: bytes, nonce: str, ended: int | str, stderr: bytes, seconds: float) -> TestRun:
    """Read a run from its frames, marked by ``nonce``. ``ended``: its exit status, or why it was ended.

    The run is complete if it ended by itself, with the status that its results imply.
    """
    results, end, problems = _parse(stdout, nonce)
    failed = any(r.status != "passed" and r.status != "skipped" for r in results.values())
    if isinstance(ended, str):
        detail = ended
    elif end is None:
        detail = f"ended early with status {ended}"
        detail += f": {stderr[-300:].decode('utf-8', 'replace').strip()}" if stderr else ""
    elif end["end"] != ended:
        detail = f"reported status {end['end']} but ended with {ended}"
    elif ended not in (0, 1) or (ended == 1) != (failed or bool(problems)):
        detail = f"status {ended} does not follow from the results; " + "; ".join(problems)
        detail += stderr[-600:].decode("utf-8", "replace").strip()
    else:
        return TestRun(
            results, True, "; ".join(problems), end["collected"], seconds, tuple(problems), ended, end["imported"]
        )
    status = ended if isinstance(ended, int) and end is not None and end["end"] == ended else None
    return TestRun(results, False, detail, 0, seconds, tuple(problems), status)


def _parse(stdout: bytes, nonce: str) -> tuple[dict[str, TestResult], dict[str, Any] | None, list[str]]:
    """Parse the frames up to the first end frame; a test named twice keeps its worse result.

    Code under test may have found the nonce and write frames of its own: a malformed one ends the reading, so that
    the run counts as ended early.
    """
    results: dict[str, TestResult] = {}
    problems: list[str] = []
    mark = f"{nonce} ".encode()
    for line in stdout.split(b"\n"):
        if not line.startswith(mark):
            continue
        try:
            record = json.loads(line[len(mark) :])
            if "end" in record:
                end = {"end": int(record["end"]), "collected": int(record["collected"])}
                return results, {**end, "imported": tuple(_places(record.get("imported", ())))}, problems
            if "collect" in record:
                problems.append(f"{record['collect']}: {record['text'].strip()[-300:]}")
                continue
            test, made = _result(record)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
            return results, None, [*problems, "malformed result"]
        if test not in results or results[test].status == "passed":
            results[test] = made
    return results, None, problems


def _result(record: dict[str, Any]) -> tuple[str, TestResult]:
    covered = _places(record.get("covered", ()))
    seen = [str(text) for text in record.get("seen", ())]
    text = str(record.get("text", ""))
    cpu = float(record["cpu"]) if "cpu" in record else None
    return str(record["test"]), TestResult(str(record["status"]), float(record["seconds"]), text, covered, seen, cpu)


def _places(found: Iterable[Any]) -> list[Place]:
    return [(str(file), str(name), int(line)) for file, name, line in found]
