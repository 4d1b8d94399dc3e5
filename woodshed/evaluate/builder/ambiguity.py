"""Ambiguity of a query: whether independently sampled solutions (readings) agree on the tests.

Solutions are sampled from the query alone, by our agent with any chat endpoint, each in a box of its own, and graded.
Without an endpoint there is only the score by rules of ``query.stated``, which is weaker: it compares words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from woodshed.grading.crossing import Submission
from woodshed.grading.pytest_grader import changed_files
from woodshed.grading.verify import grade, submission_from
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.loop import run_episode
from woodshed.harness.settings import HarnessSettings
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec


@dataclass(frozen=True)
class Endpoint:
    """A chat server: base URL, API key and model name."""

    url: str
    key: str
    model: str


@dataclass(frozen=True)
class Reading:
    """One sampled solution. ``changed``: whether it changes a file; ``status``: how the episode ended."""

    outcome: Outcome
    changed: bool
    submission: Submission
    status: str

    @property
    def resolved(self) -> bool:
        return self.outcome.resolved


@dataclass(frozen=True)
class Agreement:
    """``agreement``: ``pairwise`` over the readings that change something, None for fewer than two. ``solved`` and
    ``empty``: number of the ``readings`` that solve the task, and that change nothing."""

    agreement: float | None
    readings: int
    solved: int
    empty: int


def pairwise(passed: Sequence[Mapping[str, bool]]) -> float | None:
    """Return the observed agreement: the share of pairs of readings with the same outcome, as a mean over the tests.

    With p of K readings passing a test, that is (p(p-1) + (K-p)(K-p-1)) / (K(K-1)), the agreement of J. Fleiss,
    "Measuring nominal scale agreement among many raters" (1971), for two categories. None for fewer than two readings.
    """
    count = len(passed)
    tests = list(passed[0]) if passed else []
    if count < 2 or not tests:
        return None
    total = 0.0
    for test in tests:
        p = sum(reading[test] for reading in passed)
        total += (p * (p - 1) + (count - p) * (count - p - 1)) / (count * (count - 1))
    return total / len(tests)


def agreement_of(task: Task, readings: Sequence[Reading]) -> Agreement:
    """Return the agreement of readings on the tests that fail before the change; other tests pass with most changes."""
    wanted = task.info.fail_to_pass
    passed = [{test: r.outcome.tests.get(test) == "passed" for test in wanted} for r in readings if r.changed]
    return Agreement(
        agreement=pairwise(passed),
        readings=len(readings),
        solved=sum(r.resolved for r in readings),
        empty=sum(not r.changed for r in readings),
    )


async def sample_readings(
    task: Task,
    endpoint: Endpoint,
    count: int,
    backend: Backend,
    layers: LayerStore,
    *,
    temperature: float = 1.0,
    harness: HarnessSettings | None = None,
) -> list[Reading]:
    """Sample ``count`` solutions of the task's instruction, with seeds 0, 1, ..., and grade each.

    Raises EndpointLost if the endpoint does not answer, SandboxError if the sandbox fails.
    """
    harness = harness or HarnessSettings()
    found = []
    for seed in range(count):
        chat = HttpEndpoint(
            endpoint.url, endpoint.key, endpoint.model, sampling={"temperature": temperature, "seed": seed}
        )
        box = await create_box(backend, agent_box_spec(task, layers), task.info.start)
        try:
            episode = await run_episode(task.instruction, box, chat, harness, test_command=task.info.test_command)
            submission = await submission_from(box, task)
        finally:
            await box.close()
            await chat.close()
        outcome = await grade(task, submission, backend, layers)
        changed = bool(changed_files(task, submission) or submission.deleted)
        found.append(Reading(outcome, changed, submission, episode.status))
    return found
