"""A folder of tasks of one repository, built as a person builds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place, place_in

CODE = b'''"""A bank."""


class Account:
    """Money of one owner."""

    def __init__(self, owner, start=0):
        self.owner = owner
        self.entries = [start]

    def deposit(self, amount):
        """Put money in; the new balance."""
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.entries.append(amount)
        return sum(self.entries)

    def withdraw(self, amount):
        """Take money out; the new balance."""
        if amount > sum(self.entries):
            raise ValueError("not enough money")
        self.entries.append(-amount)
        return sum(self.entries)

    def largest(self):
        """The largest entry and its place."""
        best = max(self.entries)
        place = self.entries.index(best)
        return best, place


def convert(amount, rate, fee=0):
    """An amount in another currency, less a fee in percent."""
    if rate <= 0:
        raise ValueError("rate must be positive")
    gross = amount * rate
    return gross - gross * fee / 100


def cents(text):
    """What a price such as 1.05 is in cents, with a tax of a fifth."""
    whole, _, part = text.partition(".")
    small = int(part.ljust(2, "0")[:2])
    return (int(whole) * 100 + small) * 6 // 5


def split(amount, people):
    """Equal shares; the first ones pay what is left over."""
    share, rest = divmod(amount, people)
    first = [share + 1] * rest
    return first + [share] * (people - rest)
'''
TESTS = b"""import pytest

from bank import Account, cents, convert, split


def test_deposit():
    assert Account("a", 5).deposit(3) == 8
    assert Account("a", 25).deposit(16) == 41


def test_withdraw():
    account = Account("a")
    account.deposit(5)
    assert account.withdraw(2) == 3
    assert Account("b", 61).withdraw(7) == 54
    assert [Account("b", 300).withdraw(paid) for paid in (17, 48, 112)] == [283, 252, 188]


def test_withdraw_too_much():
    account = Account("a")
    account.deposit(5)
    with pytest.raises(ValueError):
        account.withdraw(6)


def filled(*amounts):
    account = Account("c", 1)
    for amount in amounts:
        account.deposit(amount)
    return account


def test_largest():
    assert filled(5).largest() == (5, 1)
    assert filled(12, 40, 31).largest() == (40, 2) and filled(90, 22).largest() == (90, 1)
    assert filled(8, 19, 52, 35).largest() == (52, 3)


def test_largest_of_two():
    assert Account("b", 7).largest() == (7, 0)
    assert Account("b", 52).largest() == (52, 0)


def test_convert():
    assert convert(10, 2) == 20
    assert convert(31, 5) == 155


def test_convert_fee():
    assert convert(100, 1, 10) == 90
    assert convert(44, 3, 25) == 99


def test_cents():
    assert cents("1.05") == 126
    assert [cents(price) for price in ("12.99", "730.25", "48.60")] == [1558, 87630, 5832]


def test_cents_short():
    assert cents("2.5") == 300
    assert cents("31.47") == 3776


def test_split():
    assert split(10, 3) == [4, 3, 3]
    assert split(17, 5) == [4, 4, 3, 3, 3]
    assert split(25, 7) == [4, 4, 4, 4, 3, 3, 3]


def test_split_even():
    assert split(9, 3) == [3, 3, 3]


def test_constant():
    assert 1 + 1 == 2
"""
PROJECT = {
    "src/bank/__init__.py": CODE,
    "tests/test_bank.py": TESTS,
    "pyproject.toml": b'[project]\nname = "bank"\nlicense = "MIT"\n[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
}


@pytest.fixture(scope="package")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with ``tasks`` built of ``bank``."""
    with place_in(tmp_path_factory.mktemp("refresh")) as found:
        repository = repos.write(found.root / "bank", PROJECT)
        found.build(
            str(repository),
            out=found.root / "tasks",
            tasks_per_package=7,
            heldout_share=0.0,
            mutants=0,
            kinds=["delete_function"],
        )
        yield found
