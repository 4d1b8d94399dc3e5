"""Altered tests: the tests of a task with other inputs, their files and ids, and the values known without a fix."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
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
    """Functions that alter the tests of one language and run the altered files (relative to the workdir) in a box.

    ``key``: secret from which, together with the task, other inputs are drawn; a policy cannot know the key of its run.
    An empty key gives the public inputs, with which builds and ``woodshed tasks check`` judge a task. Equal keys give
    equal inputs.

    ``alter`` takes the source, the kind and a seed. ``run`` takes the ids of the altered tests, without parameters, and
    fills in ``TestResult.seen``. It has the time of one run for each kind, so that code which passes the visible tests
    in time is not cut short. ``only`` reduces a source to the tests of the given class and function names.
    ``literals`` maps each function of a source to the values written in it (``""``: in the whole source), ``other``
    replaces such a value in a kind, ``text`` encodes a value as the runner records it. ``given`` returns the files with
    which a task starts, completed so that its tests can be loaded. ``imported`` takes a test file's path and source and
    the paths of the other files, and returns those that it imports; ``recording`` turns such a file's assertions into
    records (None: it has none). ``asserting`` names its assertion functions; ``alter`` and ``recording`` take such
    names last, and calls of them stay.
    """

    alter: Callable[[str, Kind, str, frozenset[str]], str | None]
    run: Callable[[Task, Sandbox, Mapping[str, bytes], Sequence[str]], Awaitable[TestRun]]
    literals: Callable[[str], Mapping[str, Sequence[Any]]]
    other: Callable[[Any, Kind, str], Any]
    text: Callable[[Any], str] = encode
    only: Callable[[str, frozenset[str]], str] = lambda source, tests: source
    given: Callable[[Task], dict[str, bytes]] = lambda task: {}
    imported: Callable[[str, str, Collection[str]], set[str]] = lambda name, source, files: set()
    recording: Callable[[str, frozenset[str]], str | None] = lambda source, helpers: None
    asserting: Callable[[str], frozenset[str]] = lambda source: frozenset()
    key: str = field(default="", repr=False)


def altered_tests(task: Task, how: Altering, kinds: Sequence[Kind] = KINDS) -> dict[str, bytes]:
    """Return altered copies of the files with failing tests, in the same folders under other names."""
    files: dict[str, bytes] = {}
    names = _asserting(_helpers(task, how), how)
    for name, source in _failing_files(task, how).items():
        for kind in kinds:
            made = how.alter(source, kind, _seed(task, name, how.key), names)
            if made is not None and (kind == SAME or made.encode() not in files.values()):
                files[altered_name(name, kind)] = made.encode()
    return files


def recording_helpers(task: Task, how: Altering) -> dict[str, bytes]:
    """Return the test files that the files with failing tests import, with assertions turned into records.

    They replace the originals while altered tests run. A helper that asserts would end an altered test at the first
    value, whose visible answer the test passes to it.
    """
    helpers = _helpers(task, how)
    made = {name: how.recording(source, _asserting(helpers, how)) for name, source in helpers.items()}
    return {name: source.encode() for name, source in made.items() if source is not None}


def _asserting(helpers: Mapping[str, str], how: Altering) -> frozenset[str]:
    return frozenset[str]().union(*map(how.asserting, helpers.values()))


def _helpers(task: Task, how: Altering) -> dict[str, str]:
    """Return the sources of the test files that the files with failing tests, or such a file, import."""
    sources = {
        name: data.decode("utf-8", "replace")
        for path, data in task.test_files().items()
        if (name := path.removeprefix(TESTS_PREFIX)) != path
    }
    left = [test.partition("::")[0] for test in task.info.fail_to_pass]
    found, done = set[str](), set[str]()
    while left:
        if (name := left.pop()) not in done:
            done.add(name)
            new = how.imported(name, sources.get(name, ""), sources.keys() - {name})
            found |= new
            left += new
    return {name: sources[name] for name in sorted(found)}


def _failing_files(task: Task, how: Altering) -> dict[str, str]:
    """Return the sources to alter: the files with failing tests, reduced to these tests."""
    tests, wanted = task.test_files(), _names(task.info.fail_to_pass)
    names = sorted({test.partition("::")[0] for test in task.info.fail_to_pass})
    return {n: how.only(tests.get(TESTS_PREFIX + n, b"").decode("utf-8", "replace"), wanted) for n in names}


def _seed(task: Task, name: str, key: str) -> str:
    """The seed from which the other inputs of a file are drawn."""
    return hashlib.sha256(f"{key}:{task.name}:{name}".encode()).hexdigest()


def known_of(task: Task, how: Altering, visible: Values, given: Values) -> Known:
    """Collect the values of altered tests that are known without a fix.

    ``visible``: the solution's answers; ``given``: the answers of the task's start; both to other and visible inputs.
    """
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
    """Split values into answers to the visible inputs and answers to other inputs."""
    visible = {test: of_test for test, of_test in values.items() if kind_of(test) == SAME}
    return visible, {test: of_test for test, of_test in values.items() if test not in visible}


def altered_ids(task: Task, kinds: Sequence[Kind] = KINDS) -> list[str]:
    """Ids of the altered copies of failing tests, without parameters."""
    return sorted(
        {
            test.partition("[")[0].replace(name, altered_name(name, kind), 1)
            for test in task.info.fail_to_pass
            for name in [test.partition("::")[0]]
            for kind in kinds
        }
    )


def _names(tests: Iterable[str]) -> frozenset[str]:
    """Names of test functions and of their classes."""
    return frozenset(name for test in tests for name in test.partition("[")[0].split("::")[1:])


def altered_name(name: str, kind: Kind) -> str:
    """Path of the altered copy of a test file."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}_with_{'' if kind == SAME else 'other_'}{kind}{path.suffix}"))
