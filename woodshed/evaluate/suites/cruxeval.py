"""CRUXEval (Gu et al. 2024, arXiv:2401.03065): find what a short function returns for an input, or an input for which
it returns a given value. ``cruxeval:PATH`` and ``cruxeval-input:PATH`` read its JSON lines.

The answer is a literal in ``answer.txt``, the only file that crosses into grading, so nothing that a policy writes is
executed there. Values are compared including their types (in the published check, 1 equals True). An agent that can run
programs can run the function: the first suite is then easy, while the second still requires finding an input.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.grading.cases_runner import encode
from woodshed.record.task import Task, TaskInfo, save_task

from .base import LoadSuite, SuiteContext, SuiteError, text_fields

OUTPUT, INPUT = "cruxeval", "cruxeval-input"
_FIELDS = ("id", "code", "input", "output")
_FILES = ("cruxeval.jsonl", "data/cruxeval.jsonl")
_ANSWER = "answer.txt"

_READ = '''"""Reads answer.txt, which holds Python literals; nothing in it is run."""
import ast
import json


{encode}

def written():
    with open("answer.txt", encoding="utf-8") as file:
        return file.read().strip()


'''
_JUDGE_OUTPUT = """def judge():
    return encode(ast.literal_eval(written()))


if __name__ == "__main__":
    print("answer.txt reads as", repr(ast.literal_eval(written())), "(whether that is right is not told)")
"""
_JUDGE_INPUT = """def value():
    with open("program.py", encoding="utf-8") as file:
        space = {{"__name__": "program"}}
        exec(compile(file.read(), "program.py", "exec"), space)
    return space["f"](*ast.literal_eval("(" + written() + "\\n,)"))


def judge():
    return encode(value())


if __name__ == "__main__":
    found = value()
    print("PASS 1" if encode(found) == {want!r} else "FAIL: f(" + written() + ") is " + repr(found))
"""
_TEST_SH = b"""#!/bin/sh
# For other Harbor tools; Woodshed's own grader calls judge.py and compares out of process instead.
tests="$(cd "$(dirname "$0")" && pwd)"
cd "${WORKDIR:-/workspace}" || exit 1
cp "$tests/judge.py" "$tests/program.py" .
mkdir -p /logs/verifier
if [ "$(python -c 'import judge; print(judge.judge())')" = "$(cat "$tests/want.txt")" ]; then echo 1; else echo 0; fi \\
    > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Problem:
    """One problem: ``arguments`` and ``output`` are source text with ``f(*arguments) == output``."""

    id: str
    code: str
    arguments: str
    output: str

    @property
    def digest(self) -> str:
        """Digest of the problem, so that another version of it gets another task directory."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def cruxeval(asked: str) -> LoadSuite:
    """Return the suite that asks for the output (``OUTPUT``) or for an input (``INPUT``)."""

    async def load(source: str, context: SuiteContext) -> list[Task]:
        problems = read_cruxeval(source)
        if asked == INPUT:  # a few inputs are expressions, for which no literal is known to be right
            problems = [problem for problem in problems if _arguments(problem.arguments) is not None]
        found = []
        for number, problem in enumerate(problems, 1):
            place = context.out / asked / f"{problem.id.replace('_', '-')}-{problem.digest}"
            there = (place / "task.toml").is_file()
            found.append(Task.load(place) if there else write_task(place, problem, asked))
            context.progress(number, len(problems), f"writing {asked}")
        return found

    return load


def read_cruxeval(source: str) -> list[Problem]:
    """Read the problems of ``NAME:PATH``, a ``.jsonl`` file or a copy of the repository. Raises SuiteError."""
    place = Path(source.partition(":")[2]).expanduser()
    file = next((place / name for name in _FILES if (place / name).is_file()), place)
    try:
        lines = file.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"--suite {source}: give cruxeval.jsonl or a copy of its repository ({error})") from None
    return [_problem(line, f"--suite {source}: line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def _problem(line: str, where: str) -> Problem:
    problem = Problem(*text_fields(line, _FIELDS, where, SuiteError).values())
    if not problem.id.replace("_", "").replace("-", "").isalnum():
        raise SuiteError(f"{where}: id {problem.id!r} is no name")
    try:
        encode(ast.literal_eval(problem.output))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise SuiteError(f"{where}: output {problem.output[:60]!r} is no literal") from None
    return problem


def _arguments(text: str) -> tuple[Any, ...] | None:
    """Return the values of a call's arguments, or None if they are not all literals."""
    try:
        found = ast.literal_eval(f"({text}\n,)")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, tuple) else None


def write_task(place: Path, problem: Problem, asked: str) -> Task:
    """Write one task into ``place``; the reference is the published answer."""
    want = encode(ast.literal_eval(problem.output))
    if asked == INPUT:
        instruction = (
            f"Find arguments for which `f` in `program.py` returns {problem.output}. Write them into `{_ANSWER}`, as "
            "Python literals with commas between them.\n"
        )
        judge, answer = _JUDGE_INPUT.format(want=want), problem.arguments
    else:
        instruction = (
            f"What does `f` in `program.py` return for f({problem.arguments})? Write the value into `{_ANSWER}`, as a "
            "Python literal.\n"
        )
        judge, answer = _JUDGE_OUTPUT, problem.output
    program = f"{problem.code.rstrip()}\n".encode()
    source = (_READ.format(encode=inspect.getsource(encode).replace('"Any"', "object")) + judge).encode()
    return save_task(
        place,
        name=f"woodshed/{asked}-{problem.id.replace('_', '-')}",
        instruction=instruction,
        info=TaskInfo(
            family=asked,
            split="heldout",
            key=f"{asked}:{problem.id}",
            grader="cases",
            kind=asked,
            submission=(_ANSWER,),
            fail_to_pass=("judge::0",),
            test_command="python judge.py",
            timeout_sec=5.0,
        ),
        workspace={_ANSWER: b"?\n", "program.py": program, "judge.py": source},
        tests={
            "test.sh": _TEST_SH,
            "judge.py": source,
            "program.py": program,
            "want.txt": f"{want}\n".encode(),
            "cases.json": json.dumps({"judge": {"function": "judge", "cases": [[[], want]]}}).encode(),
        },
        solution={_ANSWER: f"{answer}\n".encode()},
    )
