"""Deletions of several functions: what belongs together, what stays, and that the rest still imports."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.tasks.generators.changes.candidates import candidates, combinations
from woodshed.tasks.generators.changes.groups import class_of, delete_group, feature_of, methods_with
from woodshed.tasks.generators.changes.partition import kept_splits, plan_splits
from woodshed.tasks.languages.python import delete_bodies, merge, remove_functions
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.settings import PackageTaskSettings

STACK = b'''"""A stack and its words."""

from words.text import join


class Stack:
    """Last in, first out."""

    def __init__(self, items=()):
        self.items = list(items)
        self.limit = 9

    def push(self, item):
        """Put on top."""
        if len(self.items) == self.limit:
            raise OverflowError(item)
        self.items.append(item)

    def pop(self):
        """Take from the top."""
        _check(self.items)
        return self.items.pop()

    def text(self):
        """In words."""
        parts = [_shown(item) for item in self.items]
        return join(parts)


def _shown(item):
    text = str(item)
    return text.strip()


def _check(items):
    if not items:
        raise IndexError("empty")
'''
TEXT = b'''def join(parts):
    """With commas."""
    kept = [p for p in parts if p]
    return ", ".join(kept)


def shout(text):
    found = text.upper()
    return found + "!"
'''
WORKSPACE = {
    "words/stack.py": STACK,
    "words/text.py": TEXT,
    "words/__init__.py": b"from words.stack import Stack\nfrom words.text import join, shout\n",
    "tests/test_words.py": b"from words import Stack\n",
}


def covered(module: str, name: str, *tests: str, statements: int = 3) -> CoveredFunction:
    line = WORKSPACE[module].decode().split(f"def {name.rpartition('.')[2]}(")[0].count("\n") + 1
    return CoveredFunction(module, name, line, line + 4, statements, tests)


PUSH = covered("words/stack.py", "Stack.push", "push", "pop", "text")
POP = covered("words/stack.py", "Stack.pop", "pop")
SHOW = covered("words/stack.py", "Stack.text", "text")
FUNCTIONS = (
    covered("words/stack.py", "Stack.__init__", "push", "pop", "text"), PUSH, POP, SHOW,
    covered("words/stack.py", "_shown", "text"), covered("words/stack.py", "_check", "pop"),
    covered("words/text.py", "join", "text"), covered("words/text.py", "shout", "shout"),
)  # fmt: skip
SUITE = Suite("words", dict.fromkeys(("push", "pop", "text", "shout"), 0.1), FUNCTIONS, {}, 1.0)
ALL = PackageTaskSettings(heldout_share=0.0, heldout_packages=())


def names(group: tuple[CoveredFunction, ...]) -> set[str]:
    return {function.name for function in group}


def test_a_class_a_group_of_methods_and_a_feature() -> None:
    assert names(class_of(POP, SUITE)) == {"Stack.__init__", "Stack.push", "Stack.pop", "Stack.text"}
    assert methods_with(PUSH, SUITE) == (), "all of them: that is the class"
    assert names(methods_with(POP, SUITE)) == {"Stack.pop", "Stack.push", "Stack.__init__"}
    assert names(feature_of(SHOW, SUITE)) == {"Stack.text", "_shown", "join"}
    assert feature_of(PUSH, SUITE) == (), "three of four tests: not a feature but the package"
    assert feature_of(FUNCTIONS[4], SUITE) == (), "nobody asks for a private helper"
    assert class_of(FUNCTIONS[-1], SUITE) == methods_with(FUNCTIONS[-1], SUITE) == ()


def test_what_is_called_keeps_its_signature_and_unused_helpers_go() -> None:
    changed = delete_group(feature_of(SHOW, SUITE), WORKSPACE)
    assert set(changed) == {"words/stack.py", "words/text.py"}
    stack, text = changed["words/stack.py"].decode(), changed["words/text.py"].decode()
    assert "_shown" not in stack and "def _check" in stack
    assert '"""In words."""\n        raise NotImplementedError' in stack
    assert '"""With commas."""\n    raise NotImplementedError' in text and "found + " in text
    scope: dict[str, object] = {}
    exec(compile(text, "text", "exec"), scope)
    with pytest.raises(NotImplementedError):
        scope["join"](["a"])  # type: ignore[operator]
    used = {**WORKSPACE, "tests/test_words.py": b"from words.stack import _shown\n"}
    assert b"def _shown" in delete_group(feature_of(SHOW, SUITE), used)["words/stack.py"], "a test imports it"


def test_every_definition_of_a_name_loses_its_body() -> None:
    source = (
        "class A:\n    @property\n    def x(self):\n        y = 1\n        return y\n\n    @x.setter\n"
        "    def x(self, v): self.v = v\n\n    def z(self):\n        '''Doc.'''\n"
    )
    out = delete_bodies(source, {"A.x", "A.z"})
    assert out.count("raise NotImplementedError") == 2 and "@x.setter" in out and "Doc." in out
    ast.parse(out)
    alone = "if True:\n    def f():\n        return 1\nelse:\n    def g():\n        return 2\n    x = 1\n"
    assert remove_functions(alone, {"f", "g"}) == "if True:\n    def f():\n        return 1\nelse:\n    x = 1\n"


def test_candidates_of_every_kind_never_mix_splits() -> None:
    kinds = ("delete_class", "delete_methods", "delete_feature")
    found = list(candidates(ALL.model_copy(update={"kinds": kinds, "per_function": 3}), SUITE, WORKSPACE))
    assert {c.kind for c in found} == set(kinds)
    assert len({c.slug for c in found}) == len({tuple(c.files.items()) for c in found}) == len(found)
    for candidate in found:
        for data in candidate.files.values():
            ast.parse(data)
    by_function = {c.function.name for c in found if c.kind == "delete_class"}
    assert by_function == {"Stack.__init__"}, "one task for a class, whichever method led to it"
    for share in (0.3, 0.5, 0.7):
        mixed = ALL.model_copy(update={"kinds": kinds, "heldout_share": share, "per_function": 3})
        for candidate in candidates(mixed, SUITE, WORKSPACE):
            assert {plan_splits(mixed, SUITE).of(f) for f in candidate.functions} == {candidate.split}


def feature_suite(features: int = 40, size: int = 10) -> Suite:
    """Features of ``size`` functions over three files, each with a test of its own, and one helper of all of them."""
    made = [
        CoveredFunction(f"big/m{part % 3}.py", f"f{number}_{part}", 1, 4, 3, (f"t{number}",))
        for number in range(features)
        for part in range(size)
    ]
    tests = {f"t{number}": 0.1 for number in range(features)}
    return Suite("big", tests, (*made, CoveredFunction("big/m0.py", "core", 1, 4, 3, tuple(tests))), {}, 1.0)


def test_whole_features_are_held_out_and_survive_the_split() -> None:
    suite, asked = feature_suite(), PackageTaskSettings(heldout_share=0.2, heldout_packages=())
    splits = plan_splits(asked, suite)
    assert splits == plan_splits(asked, suite), "the same every time"
    held = [f for f in suite.functions if splits.of(f) == "heldout"]
    assert abs(len(held) / len(suite.functions) - 0.2) < 0.01
    heads = [f for f in suite.functions if f.name.endswith("_0")]
    trimmed = [splits.same_side(f, feature_of(f, suite)) for f in heads]
    assert all(len({f.module for f in group}) == 3 for group in trimmed if splits.of(group[0]) == "train")
    whole = [group for group in trimmed if len(group) == 10]
    assert {splits.of(group[0]) for group in whole} == {"train", "heldout"}, "features of both sides are left whole"
    assert sum(len(group) for group in trimmed) > 0.8 * len(suite.functions)
    by_side = {side: {f for g in trimmed for f in g if splits.of(g[0]) == side} for side in ("train", "heldout")}
    assert not by_side["train"] & by_side["heldout"], "nothing that is asked for on one side is an answer on the other"


def test_a_later_start_keeps_the_plan(tmp_path: Path) -> None:
    suite, asked = feature_suite(), PackageTaskSettings(heldout_share=0.2, heldout_packages=())
    first = kept_splits(tmp_path / "splits.json", asked, suite, "bytes")
    flaky = replace(suite, functions=suite.functions[30:])  # some tests were unstable this time
    again = kept_splits(tmp_path / "splits.json", asked, flaky, "bytes")
    assert all(first.of(f) == again.of(f) for f in suite.functions)
    (tmp_path / "splits.json").write_text("{")
    assert kept_splits(tmp_path / "splits.json", asked, suite, "bytes") == first


def test_deletions_of_one_file_leave_room_for_those_of_several() -> None:
    kinds = ("mutate", "delete_function", "delete_methods", "delete_class", "delete_feature")
    for share in (0.34, 0.5, 0.9):
        asked = ALL.model_copy(update={"kinds": kinds, "per_function": 3, "multi_file_share": share})
        deleted = [len(c.files) > 1 for c in candidates(asked, SUITE, WORKSPACE) if c.kind != "mutate"]
        assert deleted and sum(deleted) / len(deleted) >= share


def test_combinations_hold_every_part() -> None:
    kept = list(candidates(ALL, SUITE, WORKSPACE))
    made = list(combinations(ALL, WORKSPACE, kept))
    assert made and all(2 <= len(c.parts) <= 3 for c in made)
    used = [part.slug for candidate in made for part in candidate.parts]
    assert len(used) == len(set(used))
    for candidate in made:
        for part in candidate.parts:
            before = WORKSPACE[part.function.module].decode().split("\n")
            added = [line for line in part.source.decode().split("\n") if line not in before]
            assert all(line in candidate.files[part.function.module].decode() for line in added)
    assert list(combinations(ALL, WORKSPACE, kept[:1])) == []


def test_merge() -> None:
    assert merge("a\nb\nc\nd", ["A\nb\nc\nd", "a\nb\nc\nD"]) == "A\nb\nc\nD"
    assert merge("a\nb\nc\nd", ["a\nc\nd", "a\nb\nc\nx\nd"]) == "a\nc\nx\nd"
    assert merge("a\nb", ["x\nb", "y\nb"]) is None
    assert merge("a\nb", ["a\nb\nc", "a\nb\nd"]) is None


LINES = st.lists(st.sampled_from(["a", "b", "", "    c"]), max_size=6)


@settings(max_examples=200, deadline=None)
@given(LINES, LINES, LINES, LINES, LINES)
def test_merging_keeps_every_edit(
    head: list[str], one: list[str], middle: list[str], two: list[str], tail: list[str]
) -> None:
    before = "\n".join([*head, "x", *middle, "y", *tail])
    first = "\n".join([*head, "X", *one, *middle, "y", *tail])
    second = "\n".join([*head, "x", *middle, *two, "Y", *tail])
    assert merge(before, [first]) == first and merge(before, [second]) == second
    both = merge(before, [first, second])
    wanted = "\n".join([*head, "X", *one, *middle, *two, "Y", *tail])
    assert both == merge(before, [second, first]) == (wanted if middle else None)
