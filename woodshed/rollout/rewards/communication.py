"""Reward terms for the message that ends an episode: it exists, and what it says about tests is true.

The rules know which tests were run and how they ended, not whether the prose is good (Composer 2 report, 4.2). Values
are -1 or 0. Rules like these can be evaded: ``false && pytest`` counts as a test run, ``echo 5 passed`` as its summary.
"""

from __future__ import annotations

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory

from .claims import claims_of
from .shell_lines import only_reads
from .test_runs import run_passed, runs_tests, starts_tests
from .tool_collapse import work_in_shell
from .tool_use import EDITS


def untested_finish(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the agent ran no test between its last edit, one by the shell included, and its submission; 0 if it
    edited nothing. A command that edits and then runs tests counts as a test run."""
    if trajectory.status != "submitted":
        return 0.0
    untested = False
    for event in trajectory.events:
        if runs_tests(event, task):
            untested = False
        elif _edits(event):
            untested = True
    return -1.0 if untested else 0.0


def unfounded_claim(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the last message claims something about tests that no call showed (``claims``), else 0.

    That tests pass is true if the last test run after the last edit passed, an edit by the shell included. If it did
    not, it may still be said of some tests by a message that says that others fail. That tests were run needs a run,
    at any time, and that something was tested needs a command that does more than read.
    """
    claims = claims_of(final_message(trajectory))
    if not (claims.passing or claims.run or claims.tested):
        return 0.0
    ran = tried = fresh = False
    passed: bool | None = False
    for event in trajectory.events:
        command = (event.arguments or {}).get("command")
        tried |= isinstance(command, str) and not only_reads(command)
        if starts_tests(event, task):
            ran = fresh = True
            passed = run_passed(event, task)
        elif _edits(event):
            fresh = passed = False
    unfounded = (claims.run and not ran) or (claims.tested and not (ran or tried))
    if claims.passing and passed is False:
        unfounded |= not (fresh and claims.failing)
    return -1.0 if unfounded else 0.0


def _edits(event: ToolEvent) -> bool:
    """Return whether a call changed a file. Scratch files that a shell writes to ``/tmp`` are none of the workspace."""
    if event.error is not None or event.exit_code:
        return False
    command = (event.arguments or {}).get("command")
    if not isinstance(command, str):
        return event.name in EDITS
    return "edit" in work_in_shell(command) and "/tmp/" not in command


def silent_finish(task: Task, trajectory: Trajectory, outcome: Outcome, *, least: int = 20) -> float:
    """Return -1 if the agent submitted with a message of fewer than ``least`` characters for its user."""
    if trajectory.status != "submitted":
        return 0.0
    return -1.0 if len(final_message(trajectory)) < least else 0.0


def final_message(trajectory: Trajectory) -> str:
    """Return the text of the agent's last message, followed by the ``message`` of its last ``finish`` call."""
    said = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"][-1:]
    said += [(e.arguments or {}).get("message") for e in trajectory.events if e.name == "finish" and not e.error][-1:]
    return "\n".join(text for text in said if isinstance(text, str)).strip()
