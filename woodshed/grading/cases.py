"""The ``cases`` grader: functions are called in the box, their values are compared on the host.

``tests/cases.json`` of a task holds ``{module: {"function": name, "cases": [[args, want], ...]}}``; test ids are
``module::number``. Expected values never enter the box, and its inputs differ from those that an agent could see.
Values are compared as canonical text of their exact types, so no object of the submission takes part in a comparison.
"""

from __future__ import annotations

import json
import secrets
from functools import cache, lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

from woodshed.record.fault import is_shortage
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.protocol import Sandbox, SandboxError

from .cases_runner import encode
from .settings import GradingSettings

_MAX_OUTPUT = 1 << 20


async def grade_cases(task: Task, box: Sandbox, settings: GradingSettings) -> Outcome:
    """Grade the files in ``box``, a fresh box of ``task`` with only the submission put into it.

    Whatever the submission does (hang, crash, flood, forge) becomes failed tests. Raises SandboxError only if the
    sandbox itself fails, and TaskError if ``tests/cases.json`` is missing or malformed.
    """
    start = perf_counter()
    modules, expected = _load(str(task.path / "tests" / "cases.json"), task.digest)
    required = [*task.info.fail_to_pass, *task.info.pass_to_pass]
    nonce = secrets.token_hex(16)
    request = {"nonce": nonce, "seconds": settings.module_cpu_seconds, "modules": modules}
    done = await box.exec_python(
        _runner(),
        stdin=json.dumps(request).encode(),
        cwd=task.info.workdir,
        timeout=task.info.timeout_sec,
        max_output=_MAX_OUTPUT,
    )
    answers, problem = _parse(done.stdout, nonce, modules)
    if done.timed_out:
        problem = f"timed out after {task.info.timeout_sec:g} s"
    tests = {test: _judge(test, answers, expected) for test in required}
    resolved = bool(task.info.fail_to_pass) and all(status == "passed" for status in tests.values())
    return Outcome(resolved, tests, perf_counter() - start, problem)


def _judge(test: str, answers: dict[str, list[Any]], expected: dict[str, list[str]]) -> str:
    module, _, number = test.rpartition("::")
    if module not in answers:
        return "missing"
    text, error = answers[module][int(number)]
    if error is not None:
        return "error"
    return "passed" if text == expected[module][int(number)] else "failed"


@lru_cache(maxsize=256)
def _load(path: str, digest: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the request for the box, and the encoded expected values by module; cached by the task's digest."""
    try:
        data = json.loads(Path(path).read_bytes())
        modules = {
            module: {
                "path": f"{module.replace('.', '/')}.py",
                "function": entry["function"],
                "inputs": [args for args, _ in entry["cases"]],
            }
            for module, entry in data.items()
        }
        return modules, {m: [encode(want) for _, want in entry["cases"]] for m, entry in data.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError) and is_shortage(error):
            raise SandboxError(f"{path}: this machine cannot read it now: {error}") from error
        raise TaskError(f"{path}: not a table of cases ({type(error).__name__}: {error})") from None


def _parse(stdout: bytes, nonce: str, modules: dict[str, Any]) -> tuple[dict[str, list[Any]], str]:
    """Decode the only frame strictly; return its answers and '', or no answers and the problem."""
    frames = [line for line in stdout.split(b"\n") if line.startswith(f"{nonce} ".encode())]
    if len(frames) != 1:
        return {}, "the run ended without an answer" if not frames else "the run answered more than once"
    try:
        answers = json.loads(frames[0][len(nonce) + 1 :])
    except (ValueError, RecursionError):
        return {}, "the answer is not JSON"
    if not isinstance(answers, dict) or answers.keys() != modules.keys():
        return {}, "the answer names other modules than were asked"
    for module, entries in answers.items():
        if not isinstance(entries, list) or len(entries) != len(modules[module]["inputs"]):
            return {}, f"the answer has another number of cases for {module} than were asked"
        if not all(isinstance(e, list) and len(e) == 2 and _texts(*e) for e in entries):
            return {}, f"the answer has a malformed case for {module}"
    return answers, ""


def _texts(text: object, error: object) -> bool:
    return (isinstance(text, str) and error is None) or (text is None and isinstance(error, str))


@cache
def _runner() -> str:
    return Path(__file__).with_name("cases_runner.py").read_text("utf-8") + "\n\nmain()\n"
