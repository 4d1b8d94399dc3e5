"""Reward terms for the message that ends an episode: it exists, and what it says about tests is true.

The rules know whether a test command was given, not whether the prose is good (Composer 2 report, 4.2). Values are -1
or 0. Rules like these can be evaded: ``false && pytest`` counts as a test run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory

from .shell_lines import tokens
from .tool_use import EDITS

_RUNNERS = frozenset({"pytest", "py.test", "unittest", "nose2", "tox", "nox", "mocha", "jest", "tape", "vitest", "ava"})
_WRAPPERS = frozenset({"time", "env", "exec", "nice", "npx", "python -m", "uv run", "poetry run", "xvfb-run"})
_RUNS_NOTHING = frozenset({"--version", "-V", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers"})
_CLAIM = re.compile(
    r"\btests?\s+(suite\s+)?(now\s+)?(all\s+)?(pass(es|ed)?|succeed(s|ed)?|(is|are)\s+(now\s+)?(all\s+)?(green|passing))\b"
    r"|\bran\s+(all\s+)?(of\s+)?(the\s+)?tests?\b|\bverified\s+(it\s+)?(with|by)\s+(the\s+)?tests?\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"n't\b|\b(no|not|cannot|never|without|unable|should|please)\b", re.IGNORECASE)


def untested_finish(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the agent ran no test between its last edit and its submission; 0 if it edited nothing."""
    if trajectory.status != "submitted":
        return 0.0
    untested = False
    for event in trajectory.events:
        if event.error is None and event.name in EDITS:
            untested = True
        elif runs_tests(event, task):
            untested = False
    return -1.0 if untested else 0.0


def unfounded_claim(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 if the last message says that tests ran or pass, but none ran in the whole episode.

    Sentences with a negation or a request do not count as a claim.
    """
    if any(runs_tests(event, task) for event in trajectory.events):
        return 0.0
    sentences = re.split(r"(?<=[.!?\n])\s+", final_message(trajectory))
    return -1.0 if any(_CLAIM.search(s) and not _DENIAL.search(s) for s in sentences) else 0.0


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


def runs_tests(event: ToolEvent, task: Task) -> bool:
    """Return whether the call is ``run_tests``, or gives the task's test command or a known runner to a shell."""
    if event.error is not None:
        return False
    if event.name == "run_tests":
        return True
    command = (event.arguments or {}).get("command")
    if not isinstance(command, str) or "no tests ran" in event.result:
        return False
    own = next(_simple_commands(task.info.test_command), [])
    return any((own and words[: len(own)] == own) or _is_runner(words) for words in _simple_commands(command))


def _simple_commands(command: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line, without variable assignments; nothing if a quote is open."""
    words: list[str] = []
    try:
        for token in [*tokens(command), ";"]:
            if set(token) <= set("();|&"):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=", token):
                words.append(token)
    except ValueError:
        return


def _is_runner(words: list[str]) -> bool:
    if not _RUNS_NOTHING.isdisjoint(words):
        return False
    words = _unwrapped(words)
    if not words:
        return False
    if words[0] in ("npm", "yarn", "pnpm"):
        return "test" in (words[1:2] if words[1:2] != ["run"] else words[2:3])
    return words[0] in _RUNNERS or words[:2] == ["node", "--test"]


def _unwrapped(words: Sequence[str]) -> list[str]:
    """Return a command without variables, wrappers and the folder of its program; empty if only wrappers are left."""
    at = 0
    while at < len(words):
        name = re.sub(r"^.*/", "", words[at])
        name = re.sub(r"^python[\d.]*$", "python", name)
        left = len(words) - at
        if re.match(r"\w+=", words[at]):  # after ``env``
            at += 1
        elif name == "timeout":
            at += 2
        elif name in _WRAPPERS and left > 1:
            at += 1
        elif left > 2 and f"{name} {words[at + 1]}" in _WRAPPERS:
            at += 2
        else:
            return [name, *words[at + 1 :]]
    return []
