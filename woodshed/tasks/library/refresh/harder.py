"""Make harder forms of tasks that became too easy: delete more, combine changes, or say less."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate, combinations, group_candidate
from woodshed.tasks.generators.changes.groups import GROUPS
from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.generators.prompts.write import LEVELS, level_of
from woodshed.tasks.packages.prepare import CoveredFunction, Suite

Way = Literal["cone", "combine", "terse"]
WAYS: tuple[Way, ...] = get_args(Way)
"""Ways in the order in which they are tried: delete more around the function, combine several changes, say less."""

_CONES = ("delete_methods", "delete_class", "delete_feature")
_SINGLE = ("mutate", "delete_function", *GROUPS)
"""Kinds of tasks that can be hardened, because their change can be made again."""


@dataclass
class Hardener:
    """Proposes harder forms of the ``easy`` tasks to the build (``generators/packages/work.py``), one way after the
    other until one is kept.

    ``known``: directory name -> task, of all existing tasks: none is made twice. ``left``: harder tasks of an earlier
    start that was stopped; the tasks they were made from need no other. ``made``: name of an easy task -> names of the
    harder ones.
    """

    easy: Sequence[Task]
    known: Mapping[str, Task]
    ways: Collection[Way] = WAYS
    left: Sequence[Task] = ()
    made: dict[str, list[str]] = field(default_factory=dict)

    async def __call__(self, trial: Trial) -> AsyncGenerator[Candidate | Rejected | Task, None]:
        package = trial.package.name
        for task in (t for t in self.left if t.info.provenance["package"] == package):
            yield task
            for name in origins(task):
                self.made.setdefault(name, []).append(task.name)
        own = {s: t for s, t in self.known.items() if t.info.provenance.get("package") == package}
        trial.kept.update(own)
        easy = [t for t in self.easy if t.path.name in own and t.name not in self.made]
        bases = [(t, c) for t in easy if (c := candidate_of(trial, t)) is not None]
        if "cone" in self.ways:
            for task, base in bases:
                for harder in self._new(larger(trial, base)):
                    if harder.slug not in trial.kept:  # else another task led to the same candidate
                        yield replace(harder, origins=(task.name,))
                    if self._kept(trial, harder, [task]):
                        break
        if "combine" in self.ways:
            left = {base.slug: task for task, base in bases if task.name not in self.made and base.slug in own}
            parts = [base for _, base in bases if base.slug in left]
            for harder in self._new(combinations(trial.settings, trial.workspace, parts)):
                tasks = [left[part.slug] for part in harder.parts]
                yield replace(harder, origins=tuple(task.name for task in tasks))
                self._kept(trial, harder, tasks)
        if "terse" in self.ways:
            for task, base in bases:
                if task.name in self.made:
                    continue
                for harder in self._new(terser(trial, task, base)):
                    yield replace(harder, origins=(task.name,))
                    if self._kept(trial, harder, [task]):
                        break

    def _new(self, found: Iterator[Candidate]) -> Iterator[Candidate]:
        return (candidate for candidate in found if candidate.slug not in self.known)

    def _kept(self, trial: Trial, harder: Candidate, tasks: Sequence[Task]) -> bool:
        made = trial.kept.get(harder.slug)
        if made is None:
            return False
        for task in tasks:
            self.made.setdefault(task.name, []).append(made.name)
        return True


def origins(task: Task) -> list[str]:
    """Names of the tasks that a harder one was made from."""
    return list(filter(None, task.info.provenance.get("hardened_from", "").split(", ")))


def candidate_of(trial: Trial, task: Task) -> Candidate | None:
    """The candidate that ``task`` was made from; None if its kind has no harder form, or if its package has changed."""
    stated, gold = task.info.provenance, task.solution_files()
    if stated.get("generator") not in _SINGLE or any(trial.workspace.get(n) != data for n, data in gold.items()):
        return None
    places = [(stated.get("file", ""), stated.get("function", ""))]
    places += [(m, n) for m, _, n in (text.partition(":") for text in stated.get("also", "").split(", ") if text)]
    functions = [_function(trial.suite, *place) for place in places]
    if None in functions:
        return None
    first, *also = (f for f in functions if f is not None)
    start = task.workspace_files()
    files = {name: start[name] for name in gold if name in start}
    return Candidate(
        package=trial.package.name,
        function=first,
        kind=stated["generator"],
        detail=task.info.kind,
        files=files,
        line=0,
        split=task.info.split,
        also=tuple(also),
        level=stated.get("level", ""),
    )


def larger(trial: Trial, base: Candidate) -> Iterator[Candidate]:
    """Deletions of groups around the function of ``base`` that contain its functions and more, smallest first."""
    found: dict[str, Candidate] = {}
    for kind in _CONES if not trial.package.language else ():
        harder = group_candidate(
            suite=trial.suite, workspace=trial.workspace, kind=kind, function=base.function, splits=trial.splits
        )
        if harder is not None and harder.split == base.split and set(harder.functions) > set(base.functions):
            found.setdefault(harder.slug, harder)
    yield from sorted(found.values(), key=lambda c: (sum(f.statements for f in c.functions), c.slug))


def terser(trial: Trial, task: Task, base: Candidate) -> Iterator[Candidate]:
    """The same change with each instruction level below that of ``task``."""
    level = task.info.provenance.get("level") or level_of(trial.settings, base)
    for less in LEVELS[LEVELS.index(level) + 1 :]:
        yield replace(base, level=less)


def _function(suite: Suite, module: str, name: str) -> CoveredFunction | None:
    return next((f for f in suite.functions if (f.module, f.name) == (module, name)), None)
