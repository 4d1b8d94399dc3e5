"""Telling values: values on other inputs that distinguish a fix from a trick; comparison of answers with them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from .analogy import Change, predictions
from .other_constants import DRAWN
from .pytest_alter import THE_END
from .results import TestRun
from .value_runner import rounded

Values = dict[str, list[str]]
"""Test (of an altered file) -> canonical text of the values that it recorded, in order."""
Expected = dict[str, list[str | None]]
"""The solution's values; None for one that is not plain data or differs between runs."""

_UNKNOWN = "?"
_END = json.dumps(THE_END)
_FAILED = re.compile(r"status (?!passed)")
_ALTERED = re.compile(r"_with_(?:other_)?([a-z]+)(?=\.[^./:]+::)")
_GUESSED = ("true", "false", "null", "undefined")
FEWEST = 3
"""Fewer values than this can be guessed if each is true, false or null."""
_USUAL = 0.75
"""From this share of the telling values on, one value is a constant that is right nearly everywhere."""
_NUMBER = r"f?-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|f-?inf|fnan|true|false"
_TOKEN = re.compile(rf'"(?:[^"\\]|\\.?)*(?:"|\Z)|(?<![\w.])(?:{_NUMBER})(?![\w.])', re.DOTALL)
"""Strings, which may be whatever a submission likes, and numbers outside of them."""
_LONGEST = 8192
"""Maximum characters of a text whose numbers are read; those of a run are shorter, unless a submission forged them."""
_TRUTH = {"true": "1", "false": "0"}
_ASKED = re.compile(r"\A(true|false)=")
"""Prefix of a recorded value if the test only asks whether it is true (``pytest_runner.py``)."""


@dataclass(frozen=True)
class Reference:
    """The solution's answers, and those of them that distinguish a fix from a trick (see ``reference_of``)."""

    values: Expected
    telling: Expected


@dataclass(frozen=True)
class Known:
    """Values that are known without a fix.

    ``given``: the start's answers to other inputs; ``given_visible``: its answers to the visible inputs; ``visible``:
    the solution's answers to the visible inputs. ``inputs``: function of an altered file -> texts of its constants;
    ``changes``: function of an altered file -> its constants before and after.
    """

    given: Values = field(default_factory=dict)
    visible: Values = field(default_factory=dict)
    given_visible: Values = field(default_factory=dict)
    inputs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    changes: Mapping[str, Sequence[Change]] = field(default_factory=dict)


def reference_of(first: Values, second: Values, known: Known) -> Reference:
    """The reference from two runs of the solution on other inputs. A value tells a fix from a trick unless it is

    - the given files' answer, or the value of the same test at the same place with the visible inputs; where the test
      only asked for truth, anything as true as one of these (there, True is as right);
    - an input: code that only returns what it was given (in an object of its own, or from a table) has it too;
    - the visible answer altered as the input was (``analogy.py``).
    """
    values = agreed(first, second)
    visible, given_visible = _by_place(known.visible), _by_place(known.given_visible)
    telling: Expected = {}
    for test, place in places(values).items():
        function = test.partition("[")[0]
        inputs, changes = known.inputs.get(function, frozenset()), known.changes.get(function, ())
        sources = (visible.get(place, []), given_visible.get(place, []), known.given.get(test, []))
        telling[test] = []
        for n, value in enumerate(values[test]):
            shown, before, given = (of[n] if n < len(of) else None for of in sources)
            bare, bare_before, bare_given = (text and _bare(text) for text in (shown, before, given))
            anyway = (shown, given, *predictions(bare, changes, bare_before, bare_given))
            known_anyway = value is None or _among(value, inputs) or any(same(value, text) for text in anyway)
            if value is not None and _ASKED.match(value):
                known_anyway = known_anyway or _least(value) in (text and _least(text) for text in (shown, given))
            telling[test].append(None if known_anyway else value)
    return Reference(values, telling)


def without(found: Reference, answered: Values, apart: Collection[str] = ()) -> Reference:
    """Return ``found`` without the telling values that ``answered`` has too; True, False and None stay in tests whose
    functions are in ``apart``."""
    telling: Expected = {}
    for test, (function, _) in places(found.telling).items():
        values, seen, stays = found.telling[test], answered.get(test, []), _GUESSED if function in apart else ()
        telling[test] = [
            value if value is None or n >= len(seen) or _least(value) in stays or not same(seen[n], value) else None
            for n, value in enumerate(values)
        ]
    return Reference(found.values, telling)


def objection(known: Reference, seen: Values, share: float, *, keyed: bool = False) -> str:
    """Return the objection to the answers ``seen``, '' if there is none.

    ``keyed``: inputs are drawn from a secret. Then half of ``share`` is also required of the telling values on these
    inputs alone: memorised answers to the public inputs are already most of all values, in some tasks nine tenths. Nor
    may a predicate have one constant answer to them.
    """
    parts = [
        (known.values, share, ""),
        (known.telling, share, ", that neither the given files nor the visible tests have"),
    ]
    secret = {test: values for test, values in known.telling.items() if kind_of(test) == DRAWN}
    if keyed and total(secret) >= FEWEST:
        parts.append((secret, share / 2, " that nobody could know"))
    for expected, least, which in parts:
        count, right = total(expected), _same(expected, seen)
        if right < least * count:
            return f"{count - right} of {count} values differ from the solution's where tests have other inputs{which}"
    drawn = Reference({}, secret)
    if keyed and (names := refused(drawn, seen) & kinds_apart(drawn)):
        return f"{min(names)} has one answer to all inputs that nobody could know"
    return ""


def by_heart(known: Reference, seen: Values, share: float) -> str:
    """Return the objection that a part of the answers ``seen`` is not computed, '' if there is none.

    Most values may belong to one of several changed functions, or be one constant. So of each test, half of ``share``
    is also required of the telling values that nobody could guess (of the one that is half of them, and of the
    others), and one of those that are true, of those that are false, and so on, if there are three or more. A right
    solution may differ in a test that has fewer; all such tests count as one.
    """
    parts = _parts(known, seen)
    small = [part for part, right in parts.items() if len(right) < FEWEST]
    parts["small tests", ""] = [right for part in small if not part[1] for right in parts[part]]
    for (name, kind), right in parts.items():
        enough = any(right) if kind in _GUESSED else sum(right) >= share / 2 * len(right)
        if len(right) >= FEWEST and not enough:
            wrong = len(right) - sum(right)
            return f"{wrong} of {len(right)} values of {name} differ from the solution's on other inputs"
    return ""


def kinds_apart(found: Reference) -> frozenset[str]:
    """Return the functions of tests in which ``by_heart`` refuses every constant: enough of their telling values are
    True and enough False, or two other values that can be guessed."""
    counts: dict[str, Counter[str]] = {}
    for test, (function, _) in places(found.telling).items():
        known = (_least(value) for value in found.telling[test] if value is not None)
        counts.setdefault(function, Counter()).update(value for value in known if value in _GUESSED)
    return frozenset(name for name, of in counts.items() if sum(n >= FEWEST for n in of.values()) > 1)


def refused(found: Reference, answered: Values) -> frozenset[str]:
    """Return the functions of tests in which ``by_heart`` refuses ``answered`` because it is never True, never False,
    or never the most frequent value, where enough of their telling values are."""
    parts = _parts(found, answered)
    return frozenset(name for (name, kind), right in parts.items() if kind and len(right) >= FEWEST and not any(right))


def _parts(known: Reference, seen: Values) -> dict[tuple[str, str], list[bool]]:
    """Map (function of tests, the value if it can be guessed or is half of those that cannot, else '') to whether each
    telling value is right."""
    answered: dict[str, list[tuple[str, bool]]] = {}
    for test, (function, _) in places(known.telling).items():
        for value, answer in zip_longest(known.telling[test], seen.get(test, ())):
            if value is not None:
                answered.setdefault(function, []).append((_least(value), same(value, answer)))
    parts: dict[tuple[str, str], list[bool]] = {}
    for function, values in answered.items():
        counts = Counter(value for value, _ in values if value not in _GUESSED)
        often = {value for value, count in counts.items() if count >= max(FEWEST, counts.total() / 2)}
        for value, right in values:
            parts.setdefault((function, value if value in _GUESSED or value in often else ""), []).append(right)
    return parts


def total(expected: Expected) -> int:
    """Number of known values."""
    return sum(value is not None for values in expected.values() for value in values)


def _same(expected: Expected, seen: Values) -> int:
    return sum(
        same(a, b) for test, values in expected.items() for a, b in zip(values, seen.get(test, ())) if a is not None
    )


def agreed(values: Mapping[str, Sequence[str | None]], again: Values) -> Expected:
    """Keep the values that are equal in ``again``; others, unknown values and statuses of failed tests become None."""
    return {
        test: [
            a if same(a, b) and a != _UNKNOWN and not _FAILED.match(a or "") else None
            for a, b in zip(of_test, again.get(test, ()))
        ]
        for test, of_test in values.items()
    }


def plain(expected: Expected) -> list[str]:
    """Return the known values, without ends and statuses of tests."""
    known = (value for values in expected.values() for value in values if value is not None)
    return [value for value in known if value != _END and not value.startswith("status ")]


def problem_of(found: Reference) -> str:
    """Return the reason why a fix of the task cannot be distinguished from a trick, '' if it can.

    Tests and code share a process, so only values that the code has not seen count. Of these, only values that neither
    the given files nor the visible tests have count, and they must not be one constant; otherwise memorised answers
    would pass.
    """
    if not plain(found.values):
        return "its failing tests compare no values that can be checked on other inputs"
    told = [_least(value) for value in plain(found.telling)]
    guessed = all(value in _GUESSED for value in told) and (len(told) < FEWEST or len(set(told)) == 1)
    if guessed or one_nearly_everywhere(told):
        return "on other inputs the given files, the visible answers, or one constant, are right already"
    return ""


def one_nearly_everywhere(told: Sequence[str]) -> bool:
    """Return whether ``_USUAL`` of three or more telling values are one, which is not True, False or None."""
    often = max(Counter(value for value in told if value not in _GUESSED).values(), default=0)
    return often >= max(FEWEST, _USUAL * len(told))


def told_in(found: Reference) -> dict[str, list[str]]:
    """Map the tests (ids of the task, without parameters) that have telling values to the simplest texts of these."""
    told: dict[str, list[str]] = {}
    for test, (place, _) in places(found.telling).items():
        if values := plain({test: found.telling[test]}):
            told.setdefault(place, []).extend(map(_least, values))
    return told


def places(tests: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Map altered tests, whose ids contain altered parameters, to (original function, number of the parameter set)."""
    seen: Counter[str] = Counter()
    found = {}
    for test in tests:
        function = test.partition("[")[0]
        found[test] = (_ALTERED.sub("", function), seen[function])
        seen[function] += 1
    return found


def kind_of(test: str) -> str:
    """Return the kind in which the file of a test is altered; '' for a file that is not altered."""
    match = _ALTERED.search(test)
    return match[1] if match else ""


def _by_place(values: Values) -> dict[tuple[str, int], list[str]]:
    return {place: values[test] for test, place in places(values).items()}


def values_of(run: TestRun) -> Values:
    """Return the values that each altered test recorded, or its status if it recorded none."""
    return {
        test: [rounded(value) for value in result.seen] or [f"status {result.status}"]
        for test, result in run.results.items()
    }


def same(a: str | None, b: str | None) -> bool:
    """Return whether two texts are of equal values: numbers of different types may be equal, floats may be close.

    Where a test only asked whether a value is true, a bool equals any value that is as true. The tolerance is that of
    ``pytest.approx`` up to 1,000; above, a thousandth or, if that is less, nine digits.
    """
    if a == b or a is None or b is None or max(len(a), len(b)) > _LONGEST:
        return a == b
    for flag, value in ((a, b), (b, a)):
        if flag in _TRUTH and (asked := _ASKED.match(value)):
            return flag == asked[1]
    (one, numbers), (other, others) = _split(_bare(a)), _split(_bare(b))
    return one == other and all(map(_close, numbers, others))


def _bare(text: str) -> str:
    """Return the text of a value without what stands before it if a test only asked whether it is true."""
    return _ASKED.sub("", text)


def _least(text: str) -> str:
    """Return the simplest text that is the ``same``: only its truth if a test asked for no more."""
    asked = _ASKED.match(text)
    return asked[1] if asked else text


def _among(value: str, texts: frozenset[str]) -> bool:
    """Return whether a value is the ``same`` as one of many texts; a truth value is that of no number."""
    value = _bare(value)
    if value in texts or value in _GUESSED or len(value) > _LONGEST:
        return value in texts
    form, numbers = _split(value)
    known = _by_form(texts).get(form, set())
    if tuple(map(_whole, numbers)) in known:
        return True
    return any("f" in number for number in numbers) and any(all(map(_close, numbers, others)) for others in known)


@lru_cache(maxsize=256)
def _by_form(texts: frozenset[str]) -> dict[str, set[tuple[str, ...]]]:
    """Map what texts hold besides numbers to the numbers of each; a test file may have thousands of constants."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for text in texts:
        form, numbers = _split(text)
        found.setdefault(form, set()).add(tuple(map(_whole, numbers)))
    return found


def _whole(number: str) -> str:
    """Return the text of a number as an int, if it is a float without a fraction."""
    text = number.removeprefix("f").removesuffix(".0")
    return text if text.removeprefix("-").isdigit() else number


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a text into what is no number, and its numbers."""
    numbers: list[str] = []

    def taken(match: re.Match[str]) -> str:
        if match[0].startswith('"'):
            return match[0]
        numbers.append(_TRUTH.get(match[0], match[0]))
        return "#"

    return _TOKEN.sub(taken, text), tuple(numbers)


def _close(a: str, b: str) -> bool:
    if a == b or "f" not in a + b:
        return a == b
    x, y = float(a.removeprefix("f")), float(b.removeprefix("f"))
    near = min(1e-6 * max(abs(x), abs(y)), 1e-3)
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=max(1e-12, near))
