"""CRUXEval's JSON lines as tasks that a literal answers, graded in real boxes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from woodshed.evaluate.suites.base import SuiteContext, SuiteError
from woodshed.evaluate.suites.by_name import load_suites
from woodshed.evaluate.suites.cruxeval import read_cruxeval
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend, probe_namespace
from woodshed.sandbox.layers import LayerStore

PROGRAMS = (
    ("def f(xs, n):\n    return sorted(xs)[:n]", "[3, 1, 2], 2", "[1, 2]"),
    ("def f(text):\n    return len(text), set(text)", "'aab'", "(3, {'a', 'b'})"),
    ("def f(d):\n    return d.get('a')", "dict(b=1)", "None"),
)
ROWS = [{"id": f"sample_{n}", "code": c, "input": i, "output": o} for n, (c, i, o) in enumerate(PROGRAMS)]


def copy_of(folder: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "cruxeval.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return folder


async def suites(tmp_path: Path, backend: NamespaceBackend, layers: LayerStore) -> tuple[list[Task], list[Task]]:
    place = copy_of(tmp_path / "copy")
    context = SuiteContext(backend, layers, tmp_path / "out", lambda *_: None)
    output, given = await load_suites([f"cruxeval:{place}", f"cruxeval-input:{place}"], context)
    again, _ = await load_suites([f"cruxeval:{place}", f"cruxeval-input:{place}"], context)
    assert again.digests == output.digests, "a second start uses the tasks that are there"
    rows = [{**ROWS[0], "input": "[3, 1, 4], 2", "output": "[1, 3]"}, *ROWS[1:]]
    (other,) = await load_suites([f"cruxeval:{copy_of(tmp_path / 'other', rows)}"], context)
    assert "[1, 3]" in other.tasks[0].solution_files()["answer.txt"].decode()
    assert other.tasks[1:] == output.tasks[1:]
    return list(output.tasks), list(given.tasks)


HOSTILE = [
    b"",
    b"__import__('os')._exit(0)",
    b"[1, 2] if True else 0",
    b"(" * 5000,
    b"9" * 500_000,
    b"\xff\xfe",
    b"[1, 2]\nimport os",
    b"[True, 2]",  # equal for Python, of another type
]


def test_answers_are_graded_by_value_and_never_run(tmp_path: Path) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))

    async def main() -> None:
        backend, layers = NamespaceBackend(tmp_path / "boxes"), LayerStore(tmp_path / "layers")

        async def passes(task: Task, answer: bytes) -> bool:
            return (await grade(task, {"answer.txt": answer}, backend, layers)).resolved

        try:
            output, given = await suites(tmp_path, backend, layers)
            assert [task.name for task in output] == [f"woodshed/cruxeval-sample-{n}" for n in range(3)]
            assert [task.name for task in given] == [f"woodshed/cruxeval-input-sample-{n}" for n in range(2)]
            for task in (*output, *given):
                assert await passes(task, task.solution_files()["answer.txt"]), task.name
                assert not await passes(task, task.workspace_files()["answer.txt"]), task.name
                shown = b"".join([task.instruction.encode(), *task.workspace_files().values()])
                assert (b"[1, 2]" in shown) is (task in given and task.name.endswith("0"))
            for answer in HOSTILE:
                assert not await passes(output[0], answer), answer[:40]
                assert not await passes(given[0], answer), answer[:40]
            assert await passes(output[1], b"3, {'b', 'a'}") and not await passes(output[1], b"[3, {'b', 'a'}]")
            assert await passes(given[0], b"(2, 1, 9), 2"), "any input will do"
            assert not await passes(given[0], b"[3, 1, 2], 3")
            # A program beside the answer does not cross into grading.
            forged = {"answer.txt": b"[9], 0", "program.py": b"def f(*_):\n    return [1, 2]\n"}
            assert not (await grade(given[0], forged, backend, layers)).resolved
        finally:
            await backend.close()

    asyncio.run(main())


def test_the_agents_own_check_and_the_script_for_other_tools(tmp_path: Path) -> None:
    async def main() -> tuple[list[Task], list[Task]]:
        backend = NamespaceBackend(tmp_path / "boxes")
        try:
            return await suites(tmp_path, backend, LayerStore(tmp_path / "layers"))
        finally:
            await backend.close()

    output, given = asyncio.run(main())
    for task, answer, said, reward in (
        (output[0], "[1, 2]", "answer.txt reads as [1, 2]", "1"),
        (output[0], "[2, 1]", "answer.txt reads as [2, 1]", "0"),
        (given[0], "[5, 1, 2], 2", "PASS 1", "1"),
        (given[0], "[5, 1, 2], 1", "FAIL: f([5, 1, 2], 1) is [1]", "0"),
    ):
        room = tmp_path / f"room-{task.info.kind}-{reward}"
        room.mkdir()
        for name, data in {**task.workspace_files(), "answer.txt": answer.encode()}.items():
            (room / name).write_bytes(data)
        done = subprocess.run(task.info.test_command, shell=True, cwd=room, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(said), done.stdout
        script = (task.path / "tests" / "test.sh").read_text().replace("/logs/verifier", f"{room}/logs")
        (room / "test.sh").write_text(script.replace('$(dirname "$0")', str(task.path / "tests")))
        subprocess.run(["sh", room / "test.sh"], env={**os.environ, "WORKDIR": str(room)}, check=True)
        assert (room / "logs" / "reward.txt").read_text().strip() == reward


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"output": 3}, "line 2: output is missing or no text"),
        ({"output": "f(1)"}, r"line 2: output 'f\(1\)' is no literal"),
        ({"id": "../x"}, r"line 2: id '\.\./x' is no name"),
    ],
)
def test_what_is_no_problem_is_named_by_line(tmp_path: Path, row: dict[str, str], said: str) -> None:
    place = copy_of(tmp_path / "copy", [ROWS[0], {**ROWS[1], **row}])
    with pytest.raises(SuiteError, match=said):
        read_cruxeval(f"cruxeval:{place}")


def test_only_a_line_feed_ends_a_problem(tmp_path: Path) -> None:
    row = {**ROWS[0], "input": "['\u2028'], 1", "output": "['\u2028']"}
    (tmp_path / "cruxeval.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", "utf-8")
    assert read_cruxeval(f"cruxeval:{tmp_path}")[0].output == "['\u2028']"


def test_what_is_no_such_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"give cruxeval\.jsonl or a copy of its repository"):
        read_cruxeval(f"cruxeval:{tmp_path / 'nowhere'}")
