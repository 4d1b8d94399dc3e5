"""Suites by name, and the published collections that ``woodshed tasks build`` accepts (``exercism:PATH``).

To add a collection, write one file and add its name to ``COLLECTIONS``; for any other suite, add its name to
``SUITES``, or use your own code as ``"my_module:my_suite"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from woodshed.evaluate.suites.refactorbench.build import build_refactorbench
from woodshed.evaluate.suites.refactorbench.read import NAME as REFACTORBENCH
from woodshed.record.settings import is_reference, load_reference
from woodshed.tasks.pipeline.build import BuildCollection

from .base import LoadSuite, Suite, SuiteContext, SuiteError
from .cheats import CHEATS, load_cheats
from .collected import collected
from .cruxeval import INPUT, OUTPUT, cruxeval
from .exercism import EXERCISM
from .folder import load_folder
from .humaneval import HUMANEVAL
from .interaction import INTERACTION, load_interaction
from .quixbugs import QUIXBUGS

COLLECTIONS: dict[str, BuildCollection] = {
    **{each.name: each for each in (EXERCISM, HUMANEVAL, QUIXBUGS)},
    REFACTORBENCH: build_refactorbench,
}
SUITES: dict[str, LoadSuite] = {
    **{name: collected(name, builder) for name, builder in COLLECTIONS.items()},
    CHEATS: load_cheats,
    OUTPUT: cruxeval(OUTPUT),
    INPUT: cruxeval(INPUT),
    INTERACTION: load_interaction,
}


async def load_suites(sources: Sequence[str], context: SuiteContext) -> list[Suite]:
    """Load each source, in order. Raises SuiteError if one cannot be used, is empty, or is given twice, and if two
    suites share a task: its samples would count twice, and intervals would be too narrow."""
    found: list[Suite] = []
    held: dict[str, str] = {}
    for source in sources:
        if any(source == known.source for known in found):
            raise SuiteError(f"--suite {source} is given twice")
        tasks = await _loader(source)(source, context)
        names = [task.name for task in tasks]
        if not names:
            raise SuiteError(f"--suite {source}: no task in it")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SuiteError(f"--suite {source}: two tasks are called {twice[0]!r}")
        for task in tasks:
            if (other := held.setdefault(task.digest, source)) != source:
                raise SuiteError(f"--suite {source}: {task.name} is in --suite {other}, too; give each task once")
        found.append(Suite(_short_name(source, [suite.name for suite in found]), source, tuple(tasks)))
    return found


def _loader(source: str) -> LoadSuite:
    name = source.partition(":")[0]
    if name in SUITES:
        return SUITES[name]
    if Path(source).expanduser().exists():
        return load_folder
    known = f"there are {', '.join(sorted(SUITES))} (as NAME:PATH), folders of tasks, run directories"
    if not is_reference(source):
        raise SuiteError(f"--suite {source}: no such folder or suite; {known}")
    try:
        loader: LoadSuite = load_reference(source)
    except ValueError as error:
        raise SuiteError(f"--suite {source}: {error}; {known}") from None
    if not callable(loader):
        raise SuiteError(f"--suite {source}: not a function (source, context) -> tasks")
    return loader


def _short_name(source: str, taken: Sequence[str]) -> str:
    """Return a name for the suite or folder, of lower-case letters, digits and hyphens; numbered if it is taken."""
    head, _, tail = source.partition(":")
    word = head if head in SUITES or not tail else tail
    base = re.sub(r"[^a-z0-9]+", "-", Path(word).name.lower()).strip("-") or "suite"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name
