"""An instruction held against tests that nobody sees: what they ask for is stated somewhere, or they are shown."""

from __future__ import annotations

import pytest

from woodshed.tasks.generators.prompts.sufficiency import MOST_CHARACTERS, Reading, read_instruction

START = {"shop.py": b"def price(item, rate=0):\n    return item * rate\n", "test_shop.py": b"import shop\n"}
GOLD = {
    "shop.py": b"def price(item, rate=0, places=2):\n    if rate > 100:\n        raise OverflowError('above limit')\n"
    b"    return round(item * rate, places)\n"
}


def read(test: str, text: str = "Round the price of an item.", start: dict[str, bytes] | None = None) -> Reading:
    tests = {"test_shop.py": f"import shop\n\n\ndef test_new():\n    {test}\n".encode()}
    return read_instruction(text, {**START, **(start or {})}, GOLD, tests, ["test_shop.py::test_new"])


@pytest.mark.parametrize(
    ("test", "unstated"),
    [
        ("assert shop.price(3, rate=1) == 3", ()),
        ("assert shop.price(3, rate=17) == 3 * 17", ()),  # its own input
        ("assert shop.price(3, places=1) == 0", ("places",)),  # a name that the solution brings
        ("assert shop.price(6, 7) == 42", ("42",)),  # a result that nothing states
        ("assert str(shop.price(1)) == 'zero'", ("zero",)),
        ("self.assertEqual(shop.price(6, 7), 42)", ("42",)),
        ("with pytest.raises(OverflowError, match='above'): shop.price(1, rate=101)", ("above", "overflowerror")),
        ("with self.assertRaises(OverflowError): shop.price(1, 101)", ("overflowerror",)),
    ],
)
def test_what_hidden_tests_ask_for(test: str, unstated: tuple[str, ...]) -> None:
    found = read(test)
    assert found.unstated == unstated and found.whole and found.suffices == (not unstated)
    assert test in found.shown()


def test_what_the_instruction_or_a_visible_file_states_is_known() -> None:
    test = "assert shop.price(3, places=1) == 42"
    assert read(test, "price() gets `places`; of 3 to one place it is 42").suffices
    assert read(test, start={"README.md": b"places\n", "test_shop.py": b"import shop\nANSWER = 42\n"}).suffices
    # A number somewhere else in the repository says nothing about this test.
    assert read(test, start={"README.md": b"places, 42\n"}).unstated == ("42",)


def test_parameters_tables_helpers_and_methods() -> None:
    text = b"""import shop
import pytest
from shop import places

TABLE = [(6, 'six')]


def helper():
    return shop.price(OLD)


class TestShop:
    @pytest.mark.parametrize("value, wanted", [(1, 11), (2, 22)])
    def test_price(self, value, wanted):
        assert shop.price(value) == wanted

    def test_other(self):
        assert shop.price(1) == 99
"""
    failing = ["test_shop.py::TestShop::test_price[1-11]", "test_shop.py::TestShop::test_price[2-22]"]
    given = {**START, "test_shop.py": b"def helper():\n    return shop.price(OLD)\n"}
    found = read_instruction("Round.", given, GOLD, {"test_shop.py": text}, failing)
    assert set(found.unstated) == {"11", "22", "six", "places", "value", "wanted"}
    shown = found.shown()
    assert "parametrize" in shown and "TABLE" in shown and "# test_shop.py" in shown
    assert "test_other" not in shown and "def helper" not in shown, "not asked for, and visible already"


def test_tests_that_are_long_or_not_found_are_not_shown_in_part() -> None:
    long = read("# why\n" + "    # why\n" * MOST_CHARACTERS + "    assert shop.price(6, 7) == 42")
    assert not long.suffices and long.shown() == ""
    missing = read_instruction("x", START, GOLD, {"test_shop.py": b"from base import *\n"}, ["test_shop.py::test_new"])
    assert not missing.suffices and missing.shown() == ""
    broken = read_instruction("x", START, GOLD, {"test_shop.py": b"print 'x'\n"}, ["test_shop.py::test_new"])
    assert not broken.suffices and broken.shown() == ""


def test_a_visible_test_needs_no_words() -> None:
    test = b"import shop\n\n\ndef test_new():\n    assert shop.price(6, 7) == 42\n"
    found = read_instruction(
        "", {**START, "test_shop.py": test}, GOLD, {"test_shop.py": test}, ["test_shop.py::test_new"]
    )
    assert found.suffices and found.source == {}
