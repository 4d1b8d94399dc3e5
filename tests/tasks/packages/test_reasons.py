"""Right and wrong reasons for a test to fail."""

from __future__ import annotations

import pytest

from woodshed.tasks.validate.reasons import defined_names, names_missing, wrong_reason

RIGHT = [
    "assert 5 == 6\n +  where 5 = area(2, 3)", "NotImplementedError", "AttributeError: 'Box' has no attribute 'x'",
    "DID NOT RAISE <class 'ValueError'>", "KeyError: 'ImportError'", "FileNotFoundError: [Errno 2] No such file: 'a'",
    "SystemExit: 2",
    "ImportError: cannot import name 'dearest' from 'prices'", "ModuleNotFoundError: No module named 'prices.dearest'",
    "tests/test_x.py:3: in fixture\nE   NotImplementedError",
]  # fmt: skip
WRONG = [
    "ImportError: cannot import name 'other' from 'prices'", "ModuleNotFoundError: No module named 'numpy'",
    "E   SyntaxError: invalid syntax", "E       fixture 'unit' not found", "MemoryError",
    "TimeLimit: test ran longer than 5 s", "OSError: [Errno 28] No space left on device", "KeyboardInterrupt",
    "tests/test_x.py:3: in <module>\nE   ModuleNotFoundError: No module named 'numpy'",
]  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_right_reasons(text: str) -> None:
    assert wrong_reason(text, {"dearest"}) == ""


@pytest.mark.parametrize("text", WRONG)
def test_wrong_reasons_are_quoted(text: str) -> None:
    assert wrong_reason(text, {"dearest"}) == text.splitlines()[-1].removeprefix("E").strip()


def test_names_that_only_the_solution_has() -> None:
    before = {"a.py": b"def f():\n    x = 1\n", "b.py": b"import os\n"}
    gold = {
        "a.py": b"def f():\n    x = 1\n\ndef g():\n    pass\n\nclass C:\n    def m(self):\n        self.n = 2\n",
        "pkg/new/__init__.py": b"K = 3\n",
    }
    assert defined_names(before, gold) == {"g", "C", "m", "n", "new", "K"}
    assert names_missing("a.py: ImportError: cannot import name 'g' from 'a'", {"g"})
    assert names_missing("AttributeError: module 'a' has no attribute 'g'", {"g"})
    assert not names_missing("ImportError: cannot import name 'h' from 'a'", {"g"})
    assert not names_missing("SyntaxError: 'g'", {"g"})
