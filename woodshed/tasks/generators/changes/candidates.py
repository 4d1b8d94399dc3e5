"""Which functions of a package become a task, what is done to them, and which split it belongs to. Runs nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.tasks.languages.python import delete_body, merge, mutations, pick
from woodshed.tasks.packages.history import Commit
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.settings import PackageTaskSettings

from .groups import GROUPS, delete_group
from .partition import Splits, function_key, plan_splits

_SKIPPED = frozenset(["__repr__", "__str__", "__del__", "__init_subclass__", "__getattr__", "__setattr__"])
_FEATURE = "delete_feature"
_FEATURE_WEIGHT = 3
"""Features offered for one candidate of each other kind, as long as there are any."""
_ALIKE = 0.6
"""Jaccard index of the functions of two features up to which they are two tasks."""
_PARTS = 3
"""Changes in one ``combine`` task, at most; at least two."""


@dataclass(frozen=True)
class Candidate:
    """One change. ``function`` is what it is named after, ``also`` are the others that it changes; ``files`` holds
    the changed modules whole. ``detail`` is the mutation kind, else the kind; ``line`` (1-based) is the one that a
    mutation changed, 0 for all others. ``parts``: the candidates that a ``combine`` consists of. ``start``: all that
    the agent starts from, where that is not the package with ``files``: the parent of a ``commit``. ``text``: the
    instruction, where it is given. ``level``: how much that tells, where it is not as the settings say. ``origins``:
    names of the tasks that this is a harder form of. ``instance``: file name of the task where it is an instance of a
    dataset; ``stated``: what its provenance says besides."""

    package: str
    function: CoveredFunction
    kind: str
    detail: str
    files: Mapping[str, bytes]
    line: int
    split: str
    also: tuple[CoveredFunction, ...] = ()
    parts: tuple[Candidate, ...] = field(default=(), repr=False)
    start: Mapping[str, bytes] | None = field(default=None, repr=False)
    commit: Commit | None = None
    text: str = ""
    level: str = ""
    origins: tuple[str, ...] = ()
    instance: str = ""
    stated: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> bytes:
        """The changed module of ``function``."""
        return self.files[self.function.module]

    @property
    def functions(self) -> tuple[CoveredFunction, ...]:
        return (self.function, *self.also)

    @property
    def takes_all_tests(self) -> bool:
        """Whether its tests were written for it, and each may be the one that it is about."""
        return self.commit is not None or bool(self.instance) or self.kind == "exercise"

    @property
    def key(self) -> str:
        return function_key(self.package, self.function)

    @property
    def slug(self) -> str:
        """File name of the task: readable, unique for the change."""
        if self.instance:
            return self.instance
        if self.commit is not None:
            return f"{self.package}-{self.commit.id[:12]}-replay"
        if self.kind == "exercise":
            return self.package.replace("_", "-")
        changed = b"".join(self.files[name] for name in sorted(self.files))
        digest = hashlib.sha256(f"{self.key}:".encode() + changed).hexdigest()[:8]
        name = "".join(c if c.isalnum() else "-" for c in self.function.name.lower()).strip("-")
        kind = self.kind if self.kind in GROUPS else self.kind.partition("_")[0]
        level = f"-{self.level}" if self.level else ""
        return f"{self.package}-{name}-{kind.removeprefix('delete_')}-{digest}{level}"


Change = Callable[[str, CoveredFunction, str, random.Random], tuple[str, str, int] | None]
"""(kind, function, source, generator) -> (detail, changed source, line or 0), None where the kind does not apply."""


def candidates(
    settings: PackageTaskSettings, suite: Suite, workspace: Mapping[str, bytes], change: Change | None = None,
    groups: Collection[str] = tuple(GROUPS), splits: Splits | None = None,
) -> Iterator[Candidate]:  # fmt: skip
    """Candidates in the order in which they are tried, the same for the same seed; ``per_function`` rounds with one
    for each function.

    The kind offered least so far (for its weight) is tried first; a function to which it does not apply is offered the
    others. Features over several files are few and worth most, so they are found first and spread over the others. No
    change is offered twice, and none touches functions of both splits. ``change`` makes single changes, those of
    Python where None; ``groups``: which kinds of groups can be deleted.
    """
    rng = random.Random(f"{settings.seed}:{suite.package}")
    splits = splits or plan_splits(settings, suite)
    functions = [f for f in suite.functions if f.name.rpartition(".")[2] not in _SKIPPED and f.statements >= 2]
    rng.shuffle(functions)
    offered: dict[str, int] = {kind: 0 for kind in settings.kinds if kind in ("mutate", "delete_function", *groups)}
    made: set[frozenset[tuple[str, bytes]]] = set()
    features = _features(suite, workspace, splits, functions) if offered.pop(_FEATURE, None) is not None else []
    features, room = _with_room(features, settings.multi_file_share)
    features.reverse()
    spread = 0
    for _ in range(settings.per_function):
        for function in functions:
            while features and spread <= _FEATURE_WEIGHT * min(offered.values(), default=spread):
                feature = features.pop()
                spread += 1
                if (files := frozenset(feature.files.items())) not in made:
                    made.add(files)
                    yield feature
            if b"\r" in workspace[function.module]:
                continue  # line-wise edits would mix line ends
            if room < 1:  # kinds that are not offered any more hold nothing back
                offered = {kind: count for kind, count in offered.items() if kind == "mutate"}
            for kind in sorted(offered, key=lambda k: offered[k]):
                candidate = _candidate(suite, workspace, kind, function, rng, change or change_python, splits)
                if candidate is not None and (files := frozenset(candidate.files.items())) not in made:
                    room -= kind != "mutate"
                    made.add(files)
                    yield candidate
                    offered[kind] += 1
                    break
    yield from (feature for feature in reversed(features) if frozenset(feature.files.items()) not in made)


def _with_room(features: Sequence[Candidate], share: float) -> tuple[list[Candidate], float]:
    """The ``features`` that may be tried, and how many other deletions of one file beside them."""
    if not share:
        return list(features), float("inf")
    several = [c for c in features if len(c.files) > 1]
    room = int(len(several) * (1 - share) / share)
    alone = [c for c in features if len(c.files) < 2][: room // 2]
    return [*several, *alone], room - len(alone)


def _features(
    suite: Suite, workspace: Mapping[str, bytes], splits: Splits, functions: Sequence[CoveredFunction]
) -> list[Candidate]:
    """Deletions of features, those over several files first, none of which is mostly another one."""
    found = [c for f in functions if (c := group_candidate(suite, workspace, _FEATURE, f, splits)) is not None]
    chosen: list[tuple[Candidate, set[CoveredFunction]]] = []
    for candidate in sorted(found, key=lambda c: len(c.files) < 2):
        own = set(candidate.functions)
        if all(len(own & other) <= _ALIKE * len(own | other) for _, other in chosen):
            chosen.append((candidate, own))
    return [candidate for candidate, _ in chosen]


def combinations(
    settings: PackageTaskSettings, workspace: Mapping[str, bytes], kept: Sequence[Candidate]
) -> Iterator[Candidate]:
    """Two or three of the ``kept`` changes in one, of one split, each used once."""
    rng = random.Random(f"{settings.seed}:combine:{kept[0].package if kept else ''}")
    for split in sorted({c.split for c in kept}):
        left = [c for c in kept if c.split == split]
        while len(left) > 1:
            first, rest = left[0], left[1:]
            parts = [first]
            for other in rest[: rng.randint(1, _PARTS - 1)]:
                if not {f.name for p in parts for f in p.functions} & {f.name for f in other.functions}:
                    parts.append(other)
            left = [c for c in left if c not in parts]
            files = _merged(workspace, parts) if len(parts) > 1 else None
            if files is not None:
                also = tuple(f for p in parts for f in p.functions if f != first.function)
                yield Candidate(
                    first.package, first.function, "combine", "combine", files, 0, split, also, tuple(parts)
                )


def _candidate(
    suite: Suite,
    workspace: Mapping[str, bytes],
    kind: str,
    function: CoveredFunction,
    rng: random.Random,
    change: Change,
    splits: Splits,
) -> Candidate | None:
    if kind in GROUPS:
        return group_candidate(suite, workspace, kind, function, splits)
    # Elsewhere a test that expects any error passes without the function.
    if kind == "delete_function" and change is change_python and _needed_by_all([function], suite):
        return None
    one = change(kind, function, workspace[function.module].decode(), rng)
    if one is None:
        return None
    detail, changed, line = one
    files = {function.module: changed.encode()}
    return Candidate(suite.package, function, kind, detail, files, line, splits.of(function))


def group_candidate(
    suite: Suite, workspace: Mapping[str, bytes], kind: str, function: CoveredFunction, splits: Splits
) -> Candidate | None:
    """The deletion of a group of ``kind`` that ``function`` leads to, as far as it is on the function's side of the
    split; None where it leads to none, or too little is left."""
    chosen = group_functions(suite, workspace, kind, function, splits)
    if not chosen:
        return None
    # A class is the same task whichever of its methods led to it.
    first = min(chosen, key=lambda f: f.line) if kind == "delete_class" else function
    files = delete_group(chosen, workspace)
    also = tuple(f for f in chosen if f != first)
    return Candidate(suite.package, first, kind, kind, files, 0, splits.of(function), also)


def group_functions(
    suite: Suite, workspace: Mapping[str, bytes], kind: str, function: CoveredFunction, splits: Splits
) -> list[CoveredFunction]:
    """What ``group_candidate`` deletes."""
    group = splits.same_side(function, GROUPS[kind](function, suite))
    if len(group) < (3 if kind == _FEATURE else 2) or _needed_by_all(group, suite):
        return []
    if any(b"\r" in workspace[f.module] for f in group):
        return []
    return [f for f in group if f.name.rpartition(".")[2] not in _SKIPPED]


def _needed_by_all(functions: Sequence[CoveredFunction], suite: Suite) -> bool:
    """Whether no test is left without the functions: the trace of the suite says so, and nothing has to be tried."""
    needing = {test for f in functions for test in f.tests}
    return any(f.at_import for f in functions) or len(needing) == len(suite.tests)


def _merged(workspace: Mapping[str, bytes], parts: Sequence[Candidate]) -> dict[str, bytes] | None:
    files: dict[str, bytes] = {}
    for name in sorted({name for part in parts for name in part.files}):
        texts = [part.files[name].decode() for part in parts if name in part.files]
        merged = merge(workspace[name].decode(), texts)
        if merged is None:
            return None
        files[name] = merged.encode()
    return files


def change_python(kind: str, function: CoveredFunction, source: str, rng: random.Random) -> tuple[str, str, int] | None:
    """A ``Change`` of Python code."""
    if kind == "delete_function":
        if function.statements < 3:
            return None
        return kind, delete_body(source, function.name), 0
    options = mutations(source, function=function.name, keep_format=True)
    if not options:
        return None
    mutation = pick(rng, options)
    return mutation.kind, mutation.source, mutation.line
