"""Values on other inputs that only the fix of one of several changed functions gives.

Such values may be few beside those of another function: then a submission that repairs the rest, and answers from a
table in this function, has nearly all values. The build of a task finds their places with such a submission, and
grading asks for half of the share of them.

A place is (test, number of the parameter set, number of the value); it is the same for all kinds of other inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from .telling import FEWEST, Reference, Values, places, problem_of, same

Place = tuple[str, int, int]


class OwnValuesError(ValueError):
    """The text of a function's own values is damaged."""


def missed(found: Reference, seen: Values) -> set[Place]:
    """Return the places whose telling values ``seen`` does not have."""
    return {place for place, value, answer in _told(found, seen) if not same(value, answer)}


def own_values(found: Reference, seen: Values) -> str:
    """Return the text of the places that ``seen``, the answers without a fix of one function, ``missed``; '' if their
    values are too few, or could be guessed."""
    apart = missed(found, seen)
    told = {
        test: [value if (name, number, n) in apart else None for n, value in enumerate(found.telling[test])]
        for test, (name, number) in places(found.telling).items()
    }
    count = sum(value is not None for values in told.values() for value in values)
    return text_of(apart) if count >= FEWEST and not problem_of(Reference(found.values, told)) else ""


def objection_to(known: Reference, seen: Values, share: float, own: Mapping[str, str]) -> str:
    """Return the objection that one function of ``own`` (name -> text of its own values) is not fixed, else ''.

    Raises OwnValuesError.
    """
    for name, text in own.items():
        apart = places_in(text)
        right = [same(value, answer) for place, value, answer in _told(known, seen) if place in apart]
        if len(right) >= FEWEST and sum(right) < share / 2 * len(right):
            return (
                f"{len(right) - sum(right)} of {len(right)} values of {name} differ from the solution's on other inputs"
            )
    return ""


def text_of(apart: set[Place]) -> str:
    """Return the text of places: JSON, test -> [parameter set, value]."""
    found: dict[str, list[tuple[int, int]]] = {}
    for test, number, n in sorted(apart):
        found.setdefault(test, []).append((number, n))
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def places_in(text: str) -> frozenset[Place]:
    """Read what ``text_of`` wrote. Raises OwnValuesError."""
    try:
        found = json.loads(text)
        return frozenset((test, int(number), int(n)) for test, each in found.items() for number, n in each)
    except (ValueError, TypeError, AttributeError):
        raise OwnValuesError(f"{text[:80]!r} does not map tests to pairs of numbers") from None


def _told(known: Reference, seen: Values) -> Iterator[tuple[Place, str, str | None]]:
    """Yield the place of each telling value, the value, and the answer there."""
    for test, (name, number) in places(known.telling).items():
        for n, (value, answer) in enumerate(zip_longest(known.telling[test], seen.get(test, ()))):
            if value is not None:
                yield (name, number, n), value, answer
