"""Which tests a task requires: those that a fix could break first, the whole suite where that is quick."""

from __future__ import annotations

import pytest

from woodshed.grading.results import TestResult
from woodshed.tasks.generators.packages.guards import Imports, guard
from woodshed.tasks.packages.prepare import CoveredFunction, Suite, coarse, cost

WORKSPACE = {
    "src/shop/__init__.py": b"from .prices import price\nfrom .orders import order\nfrom .dates import today\n",
    "src/shop/prices.py": b"def price(): ...\ndef tax(): ...\n",
    "src/shop/orders.py": b"from . import prices\ndef order(): return prices.price()\n",
    "src/shop/bills.py": b"import shop.orders as o\ndef bill(): return o.order()\n",
    "src/shop/dates.py": b"def today(): ...\n",
    "tests/test_shop.py": b"from shop import price\n",
    "tests/test_bills.py": b"from shop.bills import bill\n",
}
IMPORTS = Imports(WORKSPACE, ("src", "."))


def covered(module: str, name: str, *tests: str) -> CoveredFunction:
    return CoveredFunction(f"src/shop/{module}.py", name, 1, 2, 2, tests)


CHANGED, MODULE, ORDERS, DATES = (f"tests/test_shop.py::test_{n}" for n in ("price", "tax", "order", "today"))
BILL = "tests/test_bills.py::test_nothing_yet"
PRICE = covered("prices", "price", CHANGED)
FUNCTIONS = (
    PRICE,
    covered("prices", "tax", MODULE),
    covered("orders", "order", ORDERS),
    covered("dates", "today", DATES),
)
SUITE = Suite("shop", dict.fromkeys((DATES, BILL, ORDERS, MODULE, CHANGED), 1.0), FUNCTIONS, {}, 5.0)


def chosen(seconds: float, most: int = 100, must: tuple[str, ...] = ()) -> tuple[tuple[str, ...], str, float]:
    found = guard(SUITE, [PRICE], ["src/shop/prices.py"], IMPORTS, must=must, most=most, seconds=seconds)
    return found.tests, found.scope, found.share


def test_imports_are_followed_but_not_through_what_only_hands_names_on() -> None:
    assert IMPORTS.importers(["src/shop/prices.py"]) == {
        "src/shop/orders.py",
        "src/shop/bills.py",
        "tests/test_bills.py",
    }
    assert IMPORTS.importers(["src/shop/dates.py"]) == frozenset()


def test_relative_imports_of_packages_and_modules_that_do_not_parse() -> None:
    files = {
        "a/__init__.py": b"from .b import c\n",
        "a/b/__init__.py": b"from . import c\n",
        "a/b/c.py": b"x = 1\n",
        "a/b/d.py": b"from ..e import f\nfrom .c import x\n",
        "a/e.py": b"f = 2\n",
        "a/old.py": b"print 'x'\n",
    }
    imports = Imports(files, (".",))
    assert imports.importers(["a/e.py"]) == imports.importers(["a/b/c.py"]) == {"a/b/d.py"}


@pytest.mark.parametrize("seconds", [5.0, 100.0])
def test_the_whole_suite_where_it_is_quick(seconds: float) -> None:
    tests, scope, share = chosen(seconds)
    assert set(tests) == set(SUITE.tests) and (scope, share) == ("suite", 1.0)


def test_the_nearest_first_where_it_is_not() -> None:
    assert chosen(4.0)[:2] == ((CHANGED, MODULE, BILL, ORDERS), "modules")
    assert chosen(3.0)[:2] == ((CHANGED, MODULE, BILL), "part")
    assert chosen(100.0, most=2)[:2] == ((CHANGED, MODULE), "part")
    assert chosen(0.1)[0] == (CHANGED,), "at least one, whatever it takes"


def test_what_must_be_required_is_whatever_it_takes() -> None:
    tests, scope, share = chosen(0.5, must=(DATES, ORDERS))
    assert tests == (DATES, ORDERS) and scope == "part" and share == 0.4


def test_every_test_function_comes_before_the_second_parameters_of_any() -> None:
    many = [f"tests/test_shop.py::test_price[{n}]" for n in range(50)]
    function = covered("prices", "price", *many, CHANGED)
    suite = Suite("shop", dict.fromkeys([*many, CHANGED], 1.0), (function,), {}, 51.0)
    found = guard(suite, [function], ["src/shop/prices.py"], IMPORTS, most=100, seconds=2.0)
    assert CHANGED in found.tests and len(found.tests) == 2


def test_the_time_of_a_test_is_that_of_an_idle_machine() -> None:
    assert cost(TestResult("passed", 2.0, cpu=0.5)) == 0.5, "a busy machine made it slow"
    assert cost(TestResult("passed", 8.0, cpu=0.01)) == 1.0, "it may have slept"
    assert cost(TestResult("passed", 2.0)) == 2.0, "nothing else is known"
    assert [coarse(s) for s in (0.0, 0.001, 0.002, 0.05, 3.0)] == [0.00125, 0.00125, 0.005, 0.08, 5.12]
