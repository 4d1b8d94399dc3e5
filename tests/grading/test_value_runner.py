"""Text of values by structure: own types, addresses, cycles, and classes that lie."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading import cases_runner
from woodshed.grading.value_runner import UNKNOWN, encode, plain


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


class Pair(NamedTuple):
    a: int
    b: str


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Slotted:
    __slots__ = ("_hidden", "shown")

    def __init__(self, shown: int) -> None:
        self.shown, self._hidden = shown, 1


class Private:
    def __init__(self, value: int) -> None:
        self._value, self._cache = value, object()


class Carrier(bytes):
    carried: object


class Loud(str):
    """Is compared in its own way."""

    def __eq__(self, other: object) -> bool:
        return str(other).upper() == self.upper()

    __hash__ = str.__hash__


class Liar:
    """Says of itself whatever is asked for."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("a method of the value was called")

    def __repr__(self) -> str:
        raise AssertionError("a method of the value was called")

    __eq__ = __hash__ = __iter__ = __reduce__ = __repr__  # type: ignore[assignment]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_have_the_text_of_the_cases_grader(value: object) -> None:
    assert encode(value) == cases_runner.encode(value) and plain(value)


UTC = datetime.UTC
DIFFERENT = [
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
    (complex(1, 2), complex(2, 1)),
    (range(3), range(4)),
    (datetime.date(2020, 1, 2), datetime.date(2020, 1, 3)),
    (datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, tzinfo=UTC)),
    (datetime.datetime(2020, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")), datetime.datetime(2020, 1, 2, tzinfo=UTC)),
    (datetime.timedelta(1), datetime.timedelta(2)),
    (datetime.time(1), datetime.time(2)),
    (pathlib.Path("a"), pathlib.Path("b")),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (Color.RED, Color.BLUE),
    (Point(1), Point(2)),
    (Point(1, Point(2)), Point(1, Point(3))),
    (Pair(1, "a"), [1, "a"]),
    (Slotted(1), Slotted(2)),
    (Private(1), Private(2)),
    (collections.OrderedDict(a=1), {"a": 2}),
    (collections.Counter("ab"), collections.Counter("aab")),
    (collections.deque([1]), collections.deque([2])),
    (Carrier(b"a"), Carrier(b"b")),
    (Loud("a"), "a"),
    (bytearray(b"a"), bytearray(b"b")),
    (ValueError("a"), ValueError("b")),
    (ValueError("a"), TypeError("a")),
    (int, str),
    ([Point(1)], [Point(2)]),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_different_values_have_different_texts(one: object, other: object) -> None:
    assert encode(one) != encode(other) and UNKNOWN not in (encode(one), encode(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Pair(1, "a"), (1, "a")),
        ([Pair(1, "a")], [(1, "a")]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (Carrier(b"a"), b"a"),
        (bytearray(b"a"), b"a"),
        (frozenset("ab"), set("ab")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_compare_as_equal_have_one_text(one: object, other: object) -> None:
    assert one == other and encode(one) == encode(other)


def test_how_a_class_stores_its_data_and_where_it_is_defined_does_not_matter() -> None:
    def made(module: str, name: str) -> Any:
        return type("Stack", (), {"__module__": module, "__init__": lambda self, data: setattr(self, name, data)})

    one, other = made("pkg.stack", "_items"), made("pkg._inner", "_data")
    assert encode(one([1, 2])) == encode(other([1, 2])) != encode(other([1, 3]))


def test_no_method_of_a_value_is_called() -> None:
    one, other = encode(Liar(1)), encode(Liar(2))
    assert one.endswith("{value=1}>") and other.endswith("{value=2}>")


def test_equal_values_have_one_text_without_addresses() -> None:
    for make in (lambda: Point(1, [Slotted(2)]), lambda: Private(3), lambda: {Color.RED: Point(1)}):
        assert encode(make()) == encode(make()) and "0x" not in encode(make())


def test_what_holds_no_data_is_unknown() -> None:
    assert {encode(value) for value in (object(), (n for n in "a"), lambda: 1, collections)} == {UNKNOWN}


def test_cycles_end_and_size_is_bounded() -> None:
    ring = Point(1)
    ring.y = [ring]
    assert encode(ring) == encode(ring) and "cycle" in encode(ring)
    with pytest.raises(ValueError, match="too large"):
        encode([[n] for n in range(10_000)])


def test_a_carrier_shows_what_it_carries() -> None:
    carrier = Carrier(b"t1")
    carrier.carried = [1, 2]
    assert "carried=[1,2]" in encode(carrier) and plain(carrier) and not plain(Point(1)) and not plain([Point(1)])
