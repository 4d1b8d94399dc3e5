"""The queries of a task: requests as terse as people write them, and how much of what the tests need they state.

A commit's query is its title without test names, code and references. A session's query is the user's own first
message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from woodshed.grading.pytest_grader import TESTS_PREFIX
from woodshed.record.task import Task
from woodshed.tasks.generators.prompts.sufficiency import Reading, read_instruction
from woodshed.tasks.generators.prompts.write import new_names
from woodshed.tasks.packages.history import Commit, cleaned

from .settings import QueryLevel

_FENCED = re.compile(r"(?ms)^```.*?^```[ \t]*\n?")
_TEST_NAME = re.compile(r"`?\b(?:tests?/[\w./-]*(?:::[\w:\[\]-]+)?|test_\w+(?:\.py)?(?:::[\w:\[\]-]+)?|Test[A-Z]\w*)`?")
_WITH_TESTS = re.compile(
    r"(?i)[,;(\s]*\b(?:and|with|plus|\+|&|including)\s+(?:(?:add|added|adds|adding|some|more|new|unit|regression)\s+)*"
    r"tests?(?:\s+cases?)?\b\)?"
)
_NUMBER = re.compile(r"(?i)^(?:issue|bug|ticket|pr)\s*#?\d+\s*[:.-]?\s*|^[A-Z]{2,10}-\d+\s*[:.-]?\s*")
_NOISE = re.compile(
    r"(?i)^\s*[-*]?\s*(?:\[pre-commit\.ci\]|fix(?:ed)? (?:lint|typos?|ci|mypy|flake8)|lint|ruff|black)\b.*$"
)
_WRAPPED = re.compile(r"(?s)<(system-reminder|environment_context|environment_details|context)>.*?</\1>")
_ASKED = re.compile(r"(?s)<(user_query|task|query)>(.*?)</\1>")
_FILE = re.compile(r"[\w./-]*\w\.\w{1,5}\b")


@dataclass(frozen=True)
class Queries:
    """``terse``, ``named`` and ``full``: see ``QueryLevel``. ``context``: files of the workspace that the text names.
    ``origin``: ``history`` or ``session``; ``sessions``: ids of the sessions that wrote the commit."""

    terse: str
    named: str
    full: str
    context: tuple[str, ...] = ()
    origin: str = "history"
    sessions: tuple[str, ...] = ()

    def of(self, level: QueryLevel) -> str:
        return {"terse": self.terse, "named": self.named, "full": self.full}[level]


def queries_of_commit(commit: Commit, task: Task) -> Queries:
    """Return the queries from the message of a commit (for a merge, from its pull request)."""
    title, body = cleaned(commit.message)
    terse = terse_title(title)
    return _queries(terse, terse_body(body), task, commit.message)


def queries_of_session(messages: Sequence[str], task: Task, sessions: Sequence[str]) -> Queries:
    """Return the queries from a user's messages, given in order; text that a client added is removed."""
    asked = [text for text in map(as_typed, messages) if text]
    if not asked:
        return Queries("", "", "", origin="session", sessions=tuple(sessions))
    found = _queries(asked[0], "\n\n".join(asked[1:]), task, "\n".join(asked))
    return replace(found, origin="session", sessions=tuple(sessions))


def _queries(terse: str, more: str, task: Task, text: str) -> Queries:
    names = new_names(task.workspace_files(), task.solution_files())
    listed = "New names: " + ", ".join(f"`{name}`" for name in names[:12]) if names else ""
    named = "\n\n".join(part for part in (terse, listed) if part)
    full = "\n\n".join(part for part in (terse, more, listed) if part)
    return Queries(terse, named, full, files_named(text, task.workspace_names()))


def terse_title(title: str) -> str:
    """Return a title without test names, "with tests", leading issue numbers and backticks."""
    text = _TEST_NAME.sub("", _WITH_TESTS.sub("", _NUMBER.sub("", title))).replace("`", "")
    return re.sub(r"\s+([,.;:])", r"\1", re.sub(r"\s{2,}", " ", text)).strip(" .,;:-")


def terse_body(body: str) -> str:
    """Return a body without fenced code, lines about tests, and lines that only report formatting."""
    lines = [line for line in _FENCED.sub("", body).splitlines() if not (_TEST_NAME.search(line) or _NOISE.match(line))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def as_typed(message: str) -> str:
    """Return a user's message without the reminders and wrappers that clients add to it."""
    text = _WRAPPED.sub("", message)
    asked = _ASKED.search(text)
    return (asked[2] if asked else text).strip()


def files_named(text: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the files that a text names, by path or by a file name that only one of them has."""
    files = list(files)
    by_name: dict[str, list[str]] = {}
    for path in files:
        by_name.setdefault(PurePosixPath(path).name, []).append(path)
    found: dict[str, None] = {}
    for word in _FILE.findall(text):
        word = word.lstrip("./")
        alone = by_name.get(PurePosixPath(word).name, [])
        if word in files:
            found[word] = None
        elif len(alone) == 1 and alone[0].endswith(word):
            found[alone[0]] = None
    return tuple(sorted(found))


@dataclass(frozen=True)
class Stated:
    """Share of the tests' needs that a query states. ``needed``: words that the failing tests need and that are in no
    file; ``unstated``: those that are not in the query either; ``score``: share of the needed words that the query
    states, None if the tests cannot be read (another language, generated tests)."""

    needed: tuple[str, ...]
    unstated: tuple[str, ...]
    score: float | None


def stated(query: str, task: Task) -> Stated:
    """Compare a query with the hidden tests of a task, by the rules of ``sufficiency.read_instruction``."""
    needed, left = _reading("", task), _reading(query, task)
    if not (needed.whole and left.whole):
        return Stated(needed.unstated, left.unstated, None)
    share = 1 - len(left.unstated) / len(needed.unstated) if needed.unstated else 1.0
    return Stated(needed.unstated, left.unstated, share)


def _reading(query: str, task: Task) -> Reading:
    files = {test.partition("::")[0] for test in task.info.fail_to_pass}
    graded = {n.removeprefix(TESTS_PREFIX): d for n, d in task.test_files().items() if n.startswith(TESTS_PREFIX)}
    tests = {name: data for name, data in graded.items() if name in files}
    return read_instruction(query, task.workspace_files(), task.solution_files(), tests, task.info.fail_to_pass)
