"""The tests of a task with other inputs: which files, which ids, and what may be known of them without a fix."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from woodshed.record.task import Task
from woodshed.sandbox.protocol import Sandbox

from .other_constants import KINDS, SAME, Kind
from .pytest_grader import TESTS_PREFIX
from .results import TestRun
from .telling import Known, Values, kind_of
from .value_runner import encode


@dataclass(frozen=True)
class Altering:
    """How tests of one kind are altered, and how altered files (relative to the workdir) run in a box.

    ``key``: what other inputs are drawn from besides the task: of a run, a text that its policy cannot know. Empty are
    the public inputs, on which builds and ``woodshed tasks check`` judge a task; the same key gives the same inputs.

    ``alter`` takes the source, the kind and a seed. ``run`` is given the ids of the altered tests, without parameters,
    and fills in ``TestResult.seen``. ``only``: what of a file is altered, for the tests (by the names of their classes
    and functions) that are asked for. ``literals``: function of a source -> what is written out there (``""``: in all
    of it); ``other``: what stands for such a value in a kind; ``text``: how a value is noted. ``given``: the files
    that a task starts with, so that its tests can be loaded.
    """

    alter: Callable[[str, Kind, str], str | None]
    run: Callable[[Task, Sandbox, Mapping[str, bytes], Sequence[str]], Awaitable[TestRun]]
    literals: Callable[[str], Mapping[str, Sequence[Any]]]
    other: Callable[[Any, Kind, str], Any]
    text: Callable[[Any], str] = encode
    only: Callable[[str, frozenset[str]], str] = lambda source, tests: source
    given: Callable[[Task], dict[str, bytes]] = lambda task: {}
    key: str = field(default="", repr=False)


def altered_tests(task: Task, how: Altering, kinds: Sequence[Kind] = KINDS) -> dict[str, bytes]:
    """Altered copies of the files with failing tests, beside them and under names of their own."""
    files: dict[str, bytes] = {}
    for name, source in _failing_files(task, how).items():
        for kind in kinds:
            made = how.alter(source, kind, _seed(task, name, how.key))
            if made is not None and (kind == SAME or made.encode() not in files.values()):
                files[altered_name(name, kind)] = made.encode()
    return files


def _failing_files(task: Task, how: Altering) -> dict[str, str]:
    """What of the files with failing tests is altered."""
    tests, wanted = task.test_files(), _names(task.info.fail_to_pass)
    names = sorted({test.partition("::")[0] for test in task.info.fail_to_pass})
    return {n: how.only(tests.get(TESTS_PREFIX + n, b"").decode("utf-8", "replace"), wanted) for n in names}


def _seed(task: Task, name: str, key: str) -> str:
    """What the other inputs of a file are drawn from."""
    return hashlib.sha256(f"{key}:{task.name}:{name}".encode()).hexdigest()


def known_of(task: Task, how: Altering, visible: Values, given: Values) -> Known:
    """What may be known of the altered tests; ``visible`` and ``given`` answer other and visible inputs, the first
    from the solution."""
    inputs: dict[str, frozenset[str]] = {}
    changes: dict[str, list[tuple[object, object]]] = {}
    altered = altered_tests(task, how)
    for name, source in _failing_files(task, how).items():
        for kind in KINDS:
            place = altered_name(name, kind)
            for function, found in how.literals(altered.get(place, b"").decode()).items():
                key = f"{place}::{function}" if function else place
                inputs[key] = frozenset(_texts(found, how.text))
            for function, found in how.literals(source).items():
                key = f"{place}::{function}" if function else place
                pairs = ((old, how.other(old, kind, _seed(task, name, how.key))) for old in _scalars(found))
                changes[key] = [(_as_text(old), _as_text(new)) for old, new in pairs if new != old]
    shown, same = split(visible), split(given)
    return Known(same[1], shown[0], same[0], inputs, changes)


def _scalars(found: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in found if type(value) in (str, bytes, int, float)))


def _as_text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _texts(found: Iterable[Any], text: Callable[[Any], str]) -> Iterable[str]:
    for value in found:
        try:
            yield text(value)
        except (ValueError, TypeError, RecursionError):
            continue


def split(values: Values) -> tuple[Values, Values]:
    """(answers to the visible inputs, to others)."""
    visible = {test: of_test for test, of_test in values.items() if kind_of(test) == SAME}
    return visible, {test: of_test for test, of_test in values.items() if test not in visible}


def altered_ids(task: Task, kinds: Sequence[Kind] = KINDS) -> list[str]:
    """The tests of ``altered_tests`` that stand for failing ones, without parameters."""
    return sorted(
        {
            test.partition("[")[0].replace(name, altered_name(name, kind), 1)
            for test in task.info.fail_to_pass
            for name in [test.partition("::")[0]]
            for kind in kinds
        }
    )


def _names(tests: Iterable[str]) -> frozenset[str]:
    """Names of the functions that tests are, and of their classes."""
    return frozenset(name for test in tests for name in test.partition("[")[0].split("::")[1:])


def altered_name(name: str, kind: Kind) -> str:
    """Where the altered copy of a test file lies."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}_with_{'' if kind == SAME else 'other_'}{kind}{path.suffix}"))
