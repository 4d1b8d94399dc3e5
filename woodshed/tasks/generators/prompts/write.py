"""Which words a task gets: the template of its kind and level, and a policy's where one is asked."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from woodshed.record.task import Task
from woodshed.tasks.generators.packages.candidates import Candidate
from woodshed.tasks.generators.packages.groups import GROUPS
from woodshed.tasks.generators.packages.instruction import (
    bug_report,
    feature_request,
    located_bug_report,
    pointed_bug_report,
)
from woodshed.tasks.generators.packages.settings import PackageTaskSettings

from .bugs import vague_report
from .commits import commit_request
from .deletions import deletion_request
from .reword import Reworder

LEVELS = ("precise", "normal", "terse")


@dataclass(frozen=True)
class Shown:
    """What is told of a JavaScript function: its ``signature`` and the ``line`` (1-based) where it begins."""

    signature: str
    line: int


@dataclass(frozen=True)
class Facts:
    """What is known of a task when its instruction is written. ``workspace``: the package as it was, ``start``: as
    the agent gets it, ``gold``: the solution; ``broken``: failing tests; ``texts``: what they said; ``parts``: the
    tasks that a ``combine`` consists of; ``shown``: of code that is not Python."""

    candidate: Candidate
    workspace: Mapping[str, bytes]
    start: Mapping[str, bytes]
    gold: Mapping[str, bytes]
    broken: Sequence[str]
    texts: Mapping[str, str]
    parts: Sequence[Task] = ()
    shown: Shown | None = None


@dataclass(frozen=True)
class Writer:
    """Writes instructions as ``settings`` say; ``reworder`` puts them into a policy's words."""

    settings: PackageTaskSettings
    reworder: Reworder | None = None

    async def write(self, facts: Facts) -> str:
        level = level_of(self.settings, facts.candidate)
        text = template(self.settings, level, facts)
        if self.reworder is None:
            return text
        return await self.reworder.reword(text, level, facts.start, facts.gold)


def level_of(settings: PackageTaskSettings, candidate: Candidate) -> str:
    """The level of a task: its own where it has one."""
    return candidate.level or drawn_level(settings, candidate.slug)


def drawn_level(settings: PackageTaskSettings, slug: str) -> str:
    """The level that the settings say; ``mixed`` draws it by the name of the task."""
    return settings.level if settings.level != "mixed" else random.Random(f"level:{slug}").choice(LEVELS)


def template(settings: PackageTaskSettings, level: str, facts: Facts) -> str:
    """The instruction from templates."""
    candidate, rng = facts.candidate, random.Random(facts.candidate.slug)
    if candidate.text:
        return candidate.text
    if candidate.commit is not None:
        return commit_request(level, candidate.commit, facts.start, facts.gold)
    if candidate.parts:
        return _several(level, facts.parts)
    module, name, shown = candidate.function.module, candidate.function.name, facts.shown
    signature, line = (shown.signature, shown.line) if shown else (None, None)
    first = min(facts.broken, key=lambda t: (len(facts.texts[t]) > 400, len(facts.texts[t]), t))
    if candidate.kind in GROUPS or (candidate.kind == "delete_function" and level != "precise"):
        functions, files = candidate.functions, candidate.files
        return deletion_request(rng, level, functions, facts.workspace, files, facts.broken, python=shown is None)
    if candidate.kind == "delete_function":
        return feature_request(rng, module, name, facts.workspace[module].decode(), first, signature)
    observed, source = facts.texts[first], candidate.source.decode()
    if level != "precise":
        return vague_report(rng, level, module, name, first, observed)
    if settings.prompt == "located":
        return located_bug_report(rng, module, name, source, first, observed, line)
    if settings.prompt == "pointed":
        return pointed_bug_report(rng, module, name, source, first, observed, candidate.line, line)
    return bug_report(rng, module, first, observed)


def _several(level: str, parts: Sequence[Task]) -> str:
    """The instructions of the parts, one after the other."""
    texts = [part.instruction.strip() for part in parts]
    if level == "terse":
        return "A few things:\n\n" + "\n".join(f"- {text}" for text in texts) + "\n"
    head = f"There are {len(texts)} things to do; each has its own tests.\n\n"
    return head + "\n\n".join(f"## {number}\n\n{text}" for number, text in enumerate(texts, 1)) + "\n"
