"""What crosses into grading, what a grade says, and when the cache answers."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from limits import soft_limit

from woodshed.grading.crossing import Submission, collected, crossed_digest, crossing, matches_any
from woodshed.grading.settings import GradingSettings
from woodshed.grading.verify import GradeCache, grade, submission_from
from woodshed.record.fault import HostFault
from woodshed.record.task import WITHHELD, Task, TaskError, TaskInfo
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.protocol import BoxSpec, SandboxError
from woodshed.sandbox.taskbox import box_spec
from woodshed.tasks.generators.synthetic import SyntheticSpec

from . import toy


@pytest.mark.parametrize(
    ("path", "pattern", "match"),
    [("a.py", "**/*.py", True), ("x/y/a.py", "**/*.py", True), ("x/a.py", "*.py", False), ("a.pyc", "*.py", False),
     ("src/p/m.py", "src/**", True), ("src", "src/**", False), ("xsrc/m.py", "src/**", False), ("a.b", "a?b", True),
     ("a/b", "a?b", False), ("a1.py", "a[0-9].py", True), ("ax.py", "a[!0-9].py", True), ("a+b.py", "a+b.py", True),
     ("x/tests/y/t.py", "**/tests/**/*.py", True)],
)  # fmt: skip
def test_globs(path: str, pattern: str, match: bool) -> None:
    assert matches_any(path, (pattern,)) is match


def test_only_allow_listed_files_cross() -> None:
    info = TaskInfo(submission=("**/*.py",), protected=("tests/**", "keep.py"))
    names = ["a.py", "p/b.py", "keep.py", "tests/t.py", "a.json", "../a.py", "/a.py", "p/../c.py", "./d.py", "e\0.py"]
    files = dict.fromkeys(names, b"x")
    assert list(crossing(info, files)) == ["a.py", "p/b.py"]


def test_names_that_no_host_could_take_do_not_cross() -> None:
    info = TaskInfo(submission=("**/*.py",))
    long = "/".join(["d" * 200] * 5)
    names = ["a.py", "bad-\udcff.py", "\ud800/a.py", f"{long}/{'f' * 16}.py", f"{long}/{'f' * 17}.py"]
    crossed = crossing(info, dict.fromkeys(names, b"x"))
    assert list(crossed) == ["a.py", names[3]] and len(names[3]) == 1024
    assert crossed_digest(crossed)


def test_sizes_and_counts_are_capped() -> None:
    info = TaskInfo(submission=("*.py",))
    files = {f"{n}.py": b"x" * n for n in range(1, 9)}
    assert list(crossing(info, files, GradingSettings(max_file_bytes=4))) == ["1.py", "2.py", "3.py", "4.py"]
    assert list(crossing(info, files, GradingSettings(max_total_bytes=6))) == ["1.py", "2.py", "3.py"]
    assert len(crossing(info, files, GradingSettings(max_files=5))) == 5


def test_what_an_agent_deleted_is_known(synthetic_tasks: list[Task]) -> None:
    task = synthetic_tasks[0]
    files = task.workspace_files()
    gone = task.info.submission[1]
    del files[gone]
    found = collected(task, files)
    assert found.deleted == (gone,) and set(found) == set(task.info.submission) - {gone}
    assert crossed_digest(found, found.deleted) != crossed_digest(found)
    assert crossed_digest({"a": b"bc"}) != crossed_digest({"ab": b"c"})


def test_files_that_an_agent_left_alone_are_not_deleted(synthetic_tasks: list[Task]) -> None:
    task = synthetic_tasks[0]
    files = task.workspace_files()
    first, second, third = sorted(task.info.submission)
    tight = GradingSettings(max_file_bytes=max(len(files[name]) for name in task.info.submission) + 10)
    for settings in (GradingSettings(max_files=1), GradingSettings(max_file_bytes=1)):
        assert collected(task, files, settings).deleted == (), "nothing was changed"
    files[third] += b"# fixed\n"
    found = collected(task, files, GradingSettings(max_files=1))
    assert set(found) == {third} and not found.deleted
    del files[second]
    files[first] += b"#" * tight.max_file_bytes
    found = collected(task, files, tight)
    assert found.deleted == (first, second)


def test_cache_is_bounded_and_gives_copies() -> None:
    cache = GradeCache(entries=2)
    for n in range(3):
        cache.put(("t", str(n)), Outcome(True, {"a": "passed"}))
    assert cache.get(("t", "0")) is None
    first = cache.get(("t", "2"))
    assert first is not None
    first.tests["a"] = "failed"
    again = cache.get(("t", "2"))
    assert again is not None and again.tests == {"a": "passed"}
    assert (cache.hits, cache.misses) == (2, 1)


def test_grades_of_synthetic_tasks(
    synthetic_tasks: list[Task], synthetic_specs: list[SyntheticSpec], in_boxes: Callable[[Any], Any]
) -> None:
    async def run(backend: Any, layers: Any) -> None:
        for task, spec in zip(synthetic_tasks[:6], synthetic_specs):
            fixed = await grade(task, task.solution_files(), backend, layers)
            assert fixed.resolved and set(fixed.tests.values()) == {"passed"} and not fixed.detail
            start = await grade(task, task.workspace_files(), backend, layers)
            assert not start.resolved
            passed = {t for t, status in start.tests.items() if status == "passed"}
            assert passed == set(task.info.pass_to_pass)
            everything = Submission({}, task.info.submission)
            emptied = await grade(task, everything, backend, layers)
            assert not emptied.resolved and set(emptied.tests.values()) == {"error"}
            whole = {**task.workspace_files(), **task.solution_files()}
            other = f"{spec.modules[(spec.bugs[0].module + 1) % 3]}.py"
            del whole[other]
            assert not (await grade(task, collected(task, whole), backend, layers)).resolved

    in_boxes(run)


def test_submission_comes_from_the_box_and_the_cache_answers_twice(
    synthetic_tasks: list[Task], in_boxes: Callable[[Any], Any]
) -> None:
    task = synthetic_tasks[1]

    async def run(backend: Any, layers: Any) -> None:
        box = await backend.create(box_spec(task, layers))
        try:
            await box.put({**task.solution_files(), "extra.py": b"x = 1\n"})
            await box.exec(["ln", "-s", "/etc/passwd", "link.py"])
            submission = await submission_from(box, task)
        finally:
            await box.close()
        assert set(submission) == set(task.info.submission) and not submission.deleted
        cache = GradeCache()
        first = await grade(task, submission, backend, layers, cache=cache)
        second = await grade(task, dict(submission), backend, layers, cache=cache)
        assert first.resolved and second == first
        assert (cache.hits, cache.misses) == (1, 1)

    in_boxes(run)


def test_malformed_tasks_say_so(synthetic_tasks: list[Task], tmp_path: Path, in_boxes: Callable[[Any], Any]) -> None:
    source = synthetic_tasks[2]
    for name in ("task.toml", "instruction.md"):
        (tmp_path / name).write_bytes((source.path / name).read_bytes())

    async def run(backend: Any, layers: Any) -> None:
        with pytest.raises(TaskError, match=r"cases\.json"):
            await grade(Task.load(tmp_path), {}, backend, layers)
        toml = (tmp_path / "task.toml").read_text().replace('grader = "cases"', 'grader = "vibes"')
        (tmp_path / "task.toml").write_text(toml)
        with pytest.raises(TaskError, match="vibes"):
            await grade(Task.load(tmp_path), {}, backend, layers)

    in_boxes(run)


@pytest.mark.parametrize("boxes", [0, 1])
def test_a_machine_without_descriptors_is_no_fault_of_a_submission(
    boxes: int, tmp_path: Path, in_boxes: Callable[[Any], Any]
) -> None:
    """In the box of the tests, and in those that have other inputs: no verdict, and none is kept for later."""

    async def run(backend: Any, layers: Any) -> None:
        task, create, left = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers)), backend.create, boxes

        async def until_none_is_left(spec: BoxSpec) -> Any:
            nonlocal left
            left -= 1
            with soft_limit(resource.RLIMIT_NOFILE, 3) if left < 0 else nullcontext():
                return await create(spec)

        await (await create(box_spec(task, layers))).close()
        backend.create = until_none_is_left
        with pytest.raises(SandboxError, match=r"this machine makes no box: .*Too many open files"):
            await grade(task, task.solution_files(), backend, layers)
        with (
            soft_limit(resource.RLIMIT_NOFILE, 3),
            pytest.raises(HostFault, match=r"tests: cannot be read now: .*Too many"),
        ):
            task.test_files()
        backend.create = create
        assert (await grade(task, task.solution_files(), backend, layers)).resolved

    in_boxes(run)


NAMES = """
import os, sys
os.chdir("shapes")
open(b"bad-\\xff.py", "w").close()
for n in range(19):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
    open("f.py", "w").close()
os.mkdir("e" * 200)
os.chdir("e" * 200)
open("f" * 40 + ".py", "w").close()
"""


def test_names_and_folders_of_a_box_are_at_most_a_rejected_submission(
    tmp_path: Path, in_boxes: Callable[[Any], Any]
) -> None:
    fix = {"shapes/measure.py": toy.SHAPES.replace("width + height", "width * height").encode()}

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))
        box = await backend.create(box_spec(task, layers))
        try:
            await box.put(fix)
            assert (await box.exec_python(NAMES)).returncode == 0
            taken = await box.get(task.info.submission)
            submission = await submission_from(box, task)
        finally:
            await box.close()
        assert "shapes/bad-\udcff.py" in taken and max(map(len, taken)) <= 1024, "longer ones stay there"
        assert {*fix, "shapes/__init__.py"} < set(submission) < set(taken)
        assert (await grade(task, submission, backend, layers)).resolved

        task = replace(task, info=replace(task.info, submission=("**/*",), protected=()))
        for name, why in {
            "pytest.ini/x.py": "pytest.ini",
            "tests/test_measure.py/y/x.py": "tests/test_measure.py",
            # beside the tests of the grader, where altered ones go
            "tests/test_measure_with_other_numbers.py/x.py": "tests/test_measure_with_other_numbers.py",
        }.items():
            outcome = await grade(
                task, Submission({**fix, name: b""}, ["pytest.ini", "tests/test_measure.py"]), backend, layers
            )
            assert not outcome.resolved and set(outcome.tests.values()) == {"error"}, name
            assert "does not fit" in outcome.detail and why in outcome.detail, outcome.detail
        alone = await grade(task, Submission({**fix, "tests": b""}, ["tests/test_measure.py"]), backend, layers)
        assert not alone.resolved and "does not fit" in alone.detail

    in_boxes(run)


TEST_BESIDE = """import pytest
from unittest import mock

from shapes.measure import area


def test_area():
    assert area(2, 3) == pytest.approx(6) == mock.ANY
"""


def test_an_agents_own_test_beside_the_code_is_no_reason_to_refuse_its_fix(
    tmp_path: Path, in_boxes: Callable[[Any], Any]
) -> None:
    fixed = toy.SHAPES.replace("width + height", "width * height")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))

        async def graded(name: str, code: str = fixed) -> Outcome:
            files = {"shapes/measure.py": code.encode(), name: TEST_BESIDE.encode()}
            return await grade(task, files, backend, layers)

        for name in ("shapes/test_new.py", "shapes/new_test.py"):
            assert (await graded(name)).resolved, name
        refused = await graded("shapes/testing.py")
        assert not refused.resolved and "shapes/testing.py: use of pytest.approx" in refused.detail
        # An exception would count as a failure of this machine and void the episode.
        deep = f"class A:\n    def __eq__(self, other):\n        return {'not ' * 1500}True\n"
        outcome = await grade(task, {"shapes/test_new.py": deep.encode()}, backend, layers)
        assert outcome.tests[toy.FAILING[0]] == "failed"
        importing = await graded("shapes/test_new.py", f"from . import test_new\n{fixed}")
        assert not importing.resolved and "test_new" in importing.detail, "it is not there"

    in_boxes(run)


CALLER = """

def caller():
    return sys._getframe(1).f_locals["want"]
"""


def test_code_that_moves_to_a_file_with_the_name_of_a_test_is_not_left_out(
    tmp_path: Path, in_boxes: Callable[[Any], Any]
) -> None:
    """A withheld task allows code to move to a new file, even one with the name of a test."""
    start, fixed = f"import sys\n{toy.SHAPES}{CALLER}", toy.SHAPES.replace("width + height", "width * height")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers), shapes=start)
        shutil.rmtree(task.path / "solution")
        task = replace(Task.load(task.path), info=replace(task.info, provenance={"reference": WITHHELD}))
        assert task.withheld
        moved = {
            "shapes/measure.py": f"from .test_support import caller\n{fixed}".encode(),
            "shapes/test_support.py": f"import sys\n{CALLER}".encode(),
        }
        outcome = await grade(task, moved, backend, layers)
        assert outcome.resolved, outcome.detail
        beside = {
            "shapes/measure.py": f"import sys\n{fixed}{CALLER}".encode(),
            "shapes/test_new.py": TEST_BESIDE.encode(),
        }
        assert (await grade(task, beside, backend, layers)).resolved, "what is refused is still left out"

    in_boxes(run)
