"""Candidate tasks of a package: the functions to change, the change, and the split. Runs no code."""

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
"""Number of feature deletions offered for each candidate of another kind, while there are any."""
_ALIKE = 0.6
"""Two features become two tasks if the Jaccard index of their functions is at most this."""
_PARTS = 3
"""Maximum number of changes in one ``combine`` task; the minimum is two."""


@dataclass(frozen=True)
class Candidate:
    """One change to a package.

    ``function`` is the function that the task is named after, ``also`` are the other changed functions. ``files``:
    the changed modules (path -> whole content). ``detail``: the kind of mutation, or ``kind`` for other changes.
    ``line`` (1-based): the line that a mutation changed, 0 for other changes. ``parts``: the candidates of a
    ``combine``. ``start``: all files that the agent starts from, if they are not the package with ``files`` (the parent
    of ``commit``, for example). ``text``: the instruction, if it is given. ``level``: overrides the level of the
    settings. ``origins``: names of the tasks that this one is a harder form of. ``instance``: name of the task
    directory of a dataset's instance. ``stated``: further entries of the provenance.
    """

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
        """True if all of its tests are required, because they were written for this very change."""
        return self.commit is not None or bool(self.instance) or self.kind == "exercise"

    @property
    def key(self) -> str:
        return function_key(self.package, self.function)

    @property
    def slug(self) -> str:
        """Name of the task directory: readable, and unique for the change."""
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
"""(kind, function, source, random generator) -> (detail, changed source, line or 0); None if it does not apply."""


def candidates(
    settings: PackageTaskSettings,
    suite: Suite,
    workspace: Mapping[str, bytes],
    change: Change | None = None,
    groups: Collection[str] = tuple(GROUPS),
    splits: Splits | None = None,
) -> Iterator[Candidate]:
    """Yield candidates in the order in which they are tried: ``per_function`` rounds with one for each function.

    The order depends on the seed only. Each function is changed by the kind that was used least so far, or by another
    one if that does not apply. Features over several files are rare and most valuable, so they are found first and
    spread evenly among the others. No change is yielded twice, and none touches functions of both splits. ``change``
    makes single changes (None: to Python code); ``groups``: the kinds of groups that can be deleted.
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
            if room < 1:  # only mutations are left, and the counts of other kinds must not hold features back
                offered = {kind: count for kind, count in offered.items() if kind == "mutate"}
            for kind in sorted(offered, key=lambda k: offered[k]):
                candidate = _candidate(
                    suite=suite,
                    workspace=workspace,
                    kind=kind,
                    function=function,
                    rng=rng,
                    change=change or change_python,
                    splits=splits,
                )
                if candidate is not None and (files := frozenset(candidate.files.items())) not in made:
                    room -= kind != "mutate"
                    made.add(files)
                    yield candidate
                    offered[kind] += 1
                    break
    yield from (feature for feature in reversed(features) if frozenset(feature.files.items()) not in made)


def _with_room(features: Sequence[Candidate], share: float) -> tuple[list[Candidate], float]:
    """Return (``features`` that may be tried, number of other one-file deletions that ``share`` leaves room for)."""
    if not share:
        return list(features), float("inf")
    several = [c for c in features if len(c.files) > 1]
    room = int(len(several) * (1 - share) / share)
    alone = [c for c in features if len(c.files) < 2][: room // 2]
    return [*several, *alone], room - len(alone)


def _features(
    suite: Suite, workspace: Mapping[str, bytes], splits: Splits, functions: Sequence[CoveredFunction]
) -> list[Candidate]:
    """Deletions of features, those over several files first, without features that largely overlap an earlier one."""
    found = [
        c
        for f in functions
        if (c := group_candidate(suite=suite, workspace=workspace, kind=_FEATURE, function=f, splits=splits))
        is not None
    ]
    chosen: list[tuple[Candidate, set[CoveredFunction]]] = []
    for candidate in sorted(found, key=lambda c: len(c.files) < 2):
        own = set(candidate.functions)
        if all(len(own & other) <= _ALIKE * len(own | other) for _, other in chosen):
            chosen.append((candidate, own))
    return [candidate for candidate, _ in chosen]


def combinations(
    settings: PackageTaskSettings, workspace: Mapping[str, bytes], kept: Sequence[Candidate]
) -> Iterator[Candidate]:
    """Combine two or three of the ``kept`` changes of one split into one candidate; each change is used once."""
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
                    package=first.package,
                    function=first.function,
                    kind="combine",
                    detail="combine",
                    files=files,
                    line=0,
                    split=split,
                    also=also,
                    parts=tuple(parts),
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
        return group_candidate(suite=suite, workspace=workspace, kind=kind, function=function, splits=splits)
    # Python only: in JavaScript, a test that expects any error still passes without the function.
    if kind == "delete_function" and change is change_python and _needed_by_all([function], suite):
        return None
    one = change(kind, function, workspace[function.module].decode(), rng)
    if one is None:
        return None
    detail, changed, line = one
    files = {function.module: changed.encode()}
    return Candidate(
        package=suite.package,
        function=function,
        kind=kind,
        detail=detail,
        files=files,
        line=line,
        split=splits.of(function),
    )


def group_candidate(
    suite: Suite, workspace: Mapping[str, bytes], kind: str, function: CoveredFunction, splits: Splits
) -> Candidate | None:
    """Return the deletion of the group of ``kind`` around ``function``, without functions of the other split.

    None if there is no such group or too little of it is left.
    """
    chosen = group_functions(suite=suite, workspace=workspace, kind=kind, function=function, splits=splits)
    if not chosen:
        return None
    # The deletion of a class gets the same name whichever method it was found from.
    first = min(chosen, key=lambda f: f.line) if kind == "delete_class" else function
    files = delete_group(chosen, workspace)
    also = tuple(f for f in chosen if f != first)
    return Candidate(
        package=suite.package,
        function=first,
        kind=kind,
        detail=kind,
        files=files,
        line=0,
        split=splits.of(function),
        also=also,
    )


def group_functions(
    suite: Suite, workspace: Mapping[str, bytes], kind: str, function: CoveredFunction, splits: Splits
) -> list[CoveredFunction]:
    """The functions that ``group_candidate`` deletes; empty if there is no such group."""
    group = splits.same_side(function, GROUPS[kind](function, suite))
    if len(group) < (3 if kind == _FEATURE else 2) or _needed_by_all(group, suite):
        return []
    if any(b"\r" in workspace[f.module] for f in group):
        return []
    return [f for f in group if f.name.rpartition(".")[2] not in _SKIPPED]


def _needed_by_all(functions: Sequence[CoveredFunction], suite: Suite) -> bool:
    """Return whether every test runs one of the functions (by the suite's trace), so that none passes without them."""
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
    """Change Python code; see ``Change``."""
    if kind == "delete_function":
        if function.statements < 3:
            return None
        return kind, delete_body(source, function.name), 0
    options = mutations(source, function=function.name, keep_format=True)
    if not options:
        return None
    mutation = pick(rng, options)
    return mutation.kind, mutation.source, mutation.line
