"""Groups of functions to delete together: a class, methods that share their tests, a feature that spans files.

Groups are found from the trace of the stable tests alone (which test runs which function), so a group is what a set of
tests is about, and functions that other tests need stay. After a deletion the package still imports: functions that are
called from outside keep signature and docstring, and private helpers that nothing names any more are removed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from woodshed.tasks.languages.python import delete_bodies, remove_functions
from woodshed.tasks.packages.prepare import CoveredFunction, Suite

Group = tuple[CoveredFunction, ...]
"""The first function is the one that the group was found from."""

MOST_METHODS = 4
MOST_STATEMENTS = 600
_ALIKE = 0.3
"""Methods belong together if the Jaccard index of their sets of tests is at least this."""
_MOSTLY = 0.5
"""A function belongs to a feature if at least this share of its tests are tests of the feature."""


def class_of(function: CoveredFunction, suite: Suite) -> Group:
    """All covered methods of the function's class; empty if there are fewer than two."""
    owner = _owner(function)
    if not owner:
        return ()
    rest = [f for f in _mates(function, suite) if f.name != function.name]
    return _large_enough((function, *rest), least=2)


def methods_with(function: CoveredFunction, suite: Suite) -> Group:
    """The function and the methods of its class that share its tests; empty if these are all methods of the class."""
    if not _owner(function) or is_private(function.name):
        return ()
    own = set(function.tests)
    mates = [f for f in _mates(function, suite) if f.name != function.name]
    shares = {f.name: len(own & set(f.tests)) / len(own | set(f.tests)) for f in mates}
    alike = sorted((f for f in mates if shares[f.name] >= _ALIKE), key=lambda f: (-shares[f.name], f.name))
    chosen = alike[: MOST_METHODS - 1]
    return _large_enough((function, *chosen), least=2) if len(chosen) < len(mates) else ()


def feature_of(function: CoveredFunction, suite: Suite) -> Group:
    """The public function and the functions, in any file, that (almost) only its tests run.

    First its dependency cone: the functions that no other test runs. If the cone lies in one file, functions that are
    run mostly by these tests (``_MOSTLY``) are added. A feature has at least three functions, in at least two files or
    two classes, and at most half of the suite tests it. Functions that run at import, and so in every test, belong to
    no feature.
    """
    tests = set(function.tests)
    if function.name.rpartition(".")[2].startswith("_") or function.at_import or 2 * len(tests) > len(suite.tests):
        return ()
    for share in (1.0, _MOSTLY):
        cone = (function, *(f for f in suite.functions if f != function and _belongs(f, tests, share)))
        broken = {test for f in cone for test in f.tests}
        if len({f.module for f in cone}) > 1 and 2 * len(broken) <= len(suite.tests):
            return _large_enough(cone, least=3)
    cone = (function, *(f for f in suite.functions if f != function and _belongs(f, tests, 1.0)))
    return _large_enough(cone, least=3) if len({_owner(f) for f in cone}) > 1 else ()


def _belongs(function: CoveredFunction, tests: set[str], share: float) -> bool:
    """Return whether at least ``share`` of the tests that run the function are among ``tests``."""
    own = len(tests.intersection(function.tests))
    return not function.at_import and own > 0 and own >= share * len(function.tests)


GROUPS: dict[str, Callable[[CoveredFunction, Suite], Group]] = {
    "delete_class": class_of,
    "delete_methods": methods_with,
    "delete_feature": feature_of,
}
"""Kind of deletion -> how its functions are found."""


def is_private(name: str) -> bool:
    """Return whether the last part of a qualified name starts with an underscore; special methods are not private."""
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.endswith("__")


def _owner(function: CoveredFunction) -> str:
    return function.name.rpartition(".")[0]


def _mates(function: CoveredFunction, suite: Suite) -> Iterator[CoveredFunction]:
    for other in suite.functions:
        if other.module == function.module and _owner(other) == _owner(function):
            yield other


def _large_enough(group: Group, *, least: int) -> Group:
    total = sum(f.statements for f in group)
    return group if len(group) >= least and 2 * least <= total <= MOST_STATEMENTS else ()


_WORD = re.compile(r"\w+")


def delete_group(functions: Sequence[CoveredFunction], workspace: Mapping[str, bytes]) -> dict[str, bytes]:
    """The modules of ``workspace`` (path -> content) that change if the functions are deleted. Raises SyntaxError."""
    names: dict[str, set[str]] = defaultdict(set)
    for function in functions:
        names[function.module].add(function.name)
    changed = {module: delete_bodies(workspace[module].decode(), found) for module, found in names.items()}
    unused = _unused(functions, workspace, changed)
    made = {m: remove_functions(text, unused & names[m]) if unused & names[m] else text for m, text in changed.items()}
    return {module: text.encode() for module, text in made.items() if text.encode() != workspace[module]}


def _unused(
    functions: Sequence[CoveredFunction], workspace: Mapping[str, bytes], changed: Mapping[str, str]
) -> set[str]:
    """Qualified names of private functions that occur only in their own definition.

    Words are counted in comments and strings too: a function that is named anywhere stays.
    """
    wanted = {f.name for f in functions if is_private(f.name)}
    last = {name.rpartition(".")[2] for name in wanted}
    if not last:
        return set()
    counts: Counter[str] = Counter()
    for name, data in workspace.items():
        if name.endswith((".py", ".pyi")):
            text = changed[name] if name in changed else data.decode("utf-8", "replace")
            counts.update(word for word in _WORD.findall(text) if word in last)
    return {name for name in wanted if counts[name.rpartition(".")[2]] == 1}
