"""The entry point of grading: puts the allow-listed files of a submission into a fresh box and calls the grader."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from woodshed.grading.install.grader import grade_install
from woodshed.grading.node.grader import NODE, grade_node
from woodshed.grading.node.screen import screen as screen_node
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, Sandbox, SandboxError
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import box_spec

from .cases import grade_cases
from .crossing import DEFAULTS, Submission, collected, crossed_digest, crossing, submittable
from .heldout import PYTEST, held_out
from .pytest_grader import Screen, changed_files, grade_pytest, known_versions
from .pytest_screen import elsewhere
from .pytest_screen import screen as screen_python
from .settings import GradingSettings

log = logging.getLogger(__name__)

GRADERS = ("cases", "pytest", "node", "install")
_SCREENS: dict[str, Screen] = {"pytest": screen_python, "node": screen_node}
_TESTS = re.compile(r"(^|/)(test[-_][^/]*|[^/]*[-_.](test|spec))\.(py|[cm]?js)$")


class GradeCache:
    """Outcomes of deterministic graders by (task digest, digest of the submission). Evicts the least recently used."""

    def __init__(self, entries: int = 4096) -> None:
        self.entries = entries
        self.hits = 0
        self.misses = 0
        self._outcomes: OrderedDict[tuple[str, str], Outcome] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Outcome | None:
        found = self._outcomes.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._outcomes.move_to_end(key)
        return Outcome(found.resolved, dict(found.tests), found.seconds, found.detail)

    def put(self, key: tuple[str, str], outcome: Outcome) -> None:
        self._outcomes[key] = Outcome(outcome.resolved, dict(outcome.tests), outcome.seconds, outcome.detail)
        self._outcomes.move_to_end(key)
        while len(self._outcomes) > self.entries:
            self._outcomes.popitem(last=False)


async def submission_from(box: Sandbox, task: Task, settings: GradingSettings = DEFAULTS) -> Submission:
    """Collect the submission from an agent's box: path relative to the workdir -> content.

    An agent may remove, lock or replace its own workspace, or leave too much in it to be read. The submission is then
    empty (every file counts as deleted); the sandbox has not failed.
    """
    try:
        files = await box.get(task.info.submission)
    except BoxError:
        files = {}
    try:
        return collected(task, files, settings)
    except OSError as error:
        raise SandboxError(f"this machine cannot read what the agent started from: {error}") from error


async def grade(
    task: Task,
    submission: Mapping[str, bytes],
    backend: Backend,
    layers: LayerStore,
    *,
    cache: GradeCache | None = None,
    settings: GradingSettings = DEFAULTS,
) -> Outcome:
    """Grade a submission in a box that no process of the agent has touched.

    ``submission`` is laid over the task's workspace, and files that the agent deleted (``Submission.deleted``) are
    deleted. With a ``cache``, equal submissions to ``cases`` tasks are graded once. Test runs may be flaky and are not
    cached, nor are runs that timed out. Raises SandboxError if the sandbox fails or the task cannot be graded on other
    inputs (EndlessError), and TaskError if the task is malformed; nothing in a submission can cause either.
    """
    if task.info.grader not in GRADERS:
        raise TaskError(f"{task.path}/task.toml: grader {task.info.grader!r} is not one of {', '.join(GRADERS)}")
    gone = [p for p in getattr(submission, "deleted", ()) if submittable(task.info, p)]
    crossed = await _without_own_tests(task, Submission(crossing(task.info, submission, settings), gone))
    key = (task.digest, crossed_digest(crossed, gone))
    if cache is not None and task.info.grader == "cases" and (known := cache.get(key)) is not None:
        return known
    start = perf_counter()
    box = await create_box(backend, box_spec(task, layers), task.info.start)
    try:
        outcome = await _graded(task, box, crossed, backend, layers, settings)
    except (BoxError, ValueError, RecursionError) as error:
        # The box is full, has ended, or holds something in the way of the grader's files.
        log.warning("%s: a submission does not fit", task.name, exc_info=True)
        required = (*task.info.fail_to_pass, *task.info.pass_to_pass)
        return Outcome(False, dict.fromkeys(required, "error"), 0.0, f"the submission does not fit: {error}")
    except OSError as error:  # not raised by a box, so this machine failed
        raise SandboxError(f"this machine cannot grade: {error}") from error
    finally:
        await box.close()
    outcome.seconds = perf_counter() - start
    if cache is not None and task.info.grader == "cases" and "timed out" not in outcome.detail:
        cache.put(key, outcome)
    return outcome


async def _without_own_tests(task: Task, submission: Submission) -> Submission:
    """Leave out new test files that the screen would refuse: the grader runs its own tests, and those that an honest
    agent writes beside the code may use what the code must not. No code can import them then."""
    tests = {name: data for name, data in submission.items() if _TESTS.search(name)}
    if not tests or (screen := _SCREENS.get(task.info.grader)) is None:
        return submission
    known = {*task.workspace_names(), *task.solution_files()}
    new = [{name: data} for name, data in tests.items() if name not in known]

    def refused() -> set[str]:
        versions = known_versions(task, changed_files(task, submission), submission)
        read = [file for file in new if task.info.grader != "pytest" or not elsewhere(file)]  # else by the box
        return {name for file in read if _refuses(screen, file, versions) for name in file}

    out = await asyncio.to_thread(refused) if new else set()
    return Submission({name: data for name, data in submission.items() if name not in out}, submission.deleted)


def _refuses(screen: Screen, file: Mapping[str, bytes], versions: tuple[dict[str, bytes], ...]) -> bool:
    try:
        return bool(screen(file, *versions))
    except (ValueError, RecursionError):  # code written so that it cannot be screened
        return True


async def _graded(
    task: Task, box: Sandbox, submission: Submission, backend: Backend, layers: LayerStore, settings: GradingSettings
) -> Outcome:
    """Grade in ``box``, which is fresh and is closed before other boxes are created."""

    async def lay(box: Sandbox) -> None:
        for name in submission.deleted:
            await box.delete(name)
        await box.put(submission)

    await lay(box)
    if task.info.grader == "cases":
        return await grade_cases(task, box, settings)
    if task.info.grader == "install":  # it has no code that held-out values could check
        return await grade_install(task, box, backend, layers)
    if task.info.grader == "node":
        how, outcome = NODE, await grade_node(task, box, dict(submission))
    else:
        how, outcome = PYTEST, await grade_pytest(task, box, submission)
    await box.close()
    if outcome.resolved:
        changed = changed_files(task, submission)
        how = replace(how, key=settings.held_out_key)
        problem = await held_out(task, changed, lay, backend, layers, settings.held_out_share, how)
        if problem:
            failed = dict.fromkeys(task.info.fail_to_pass, "failed")
            outcome = Outcome(False, {**outcome.tests, **failed}, 0.0, problem)
    return outcome
