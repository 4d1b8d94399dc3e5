"""Write the instruction of a task: choose the template of its kind and level, and have a policy reword it if asked.

Also holds the templates of less precise bug reports and of replayed commits.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from woodshed.record.python_source import parse_python
from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.changes.groups import GROUPS
from woodshed.tasks.languages.python import changed_functions
from woodshed.tasks.packages.history import Commit, cleaned
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.reasons import defined_names

from .deletions import deletion_request
from .instruction import (
    bug_report,
    feature_request,
    located_bug_report,
    module_name,
    pointed_bug_report,
    signature_of,
    without_addresses,
)
from .reword import Reworder

_NORMAL = (
    "`{module}` misbehaves. A check that should hold says:\n\n    {observed}\n\nFind out why and fix it; "
    "{file} has the expectations.\n",
    "Something in `{module}` broke ({file} shows it):\n\n    {observed}\n\nPlease repair the library, not the tests.\n",
)
_TERSE = (
    "{module} gives wrong results since the last change, pls fix\n",
    "something is off with {area} in {module}, can you have a look and fix it?\n",
    "{file} is red again. The library is at fault.\n",
)


def vague_report(
    rng: random.Random, level: str, module: str, name: str, test: str, observed: str, roots: Sequence[str] = ()
) -> str:
    """Report a bug without saying where it is. ``name``: the function at fault, of which at most the last part is used;
    ``observed``: the output of a failing test; ``roots``: as for ``module_name``."""
    lines = [line.strip() for line in without_addresses(observed).splitlines() if line.strip()]
    values = {
        "module": module_name(module, roots),
        "file": test.partition("::")[0],
        "area": name.rpartition(".")[2].strip("_"),
        "observed": (lines or ["a test fails"])[0][:160],
    }
    return rng.choice(_NORMAL if level == "normal" else _TERSE).format(**values)


def commit_request(level: str, commit: Commit, start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> str:
    """The commit's message as an instruction: ``terse`` its subject, ``normal`` all, ``precise`` also the interface.

    Every level states the new public names, which nobody could guess.
    """
    subject, body = cleaned(commit.message)
    subject = subject or commit.message.strip()
    text = subject if level == "terse" or not body else f"{subject}\n\n{body}"
    new = new_names(start, gold)
    if level == "precise":
        text += "\n\nInterface:\n\n" + "\n\n".join(_interface(start, gold))
    elif new:
        text += "\n\nNew names: " + ", ".join(f"`{name}`" for name in new[:12])
    return text + "\n"


def new_names(start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> list[str]:
    """Public names that module and class bodies of the solution define and the workspace does not, sorted."""
    return sorted(name for name in defined_names(start, gold) if _is_public(name, gold))


def _is_public(name: str, gold: Mapping[str, bytes]) -> bool:
    """Return whether a name is public and defined in a module or class body, not only local to a function."""
    if name.startswith("_"):
        return False
    return any(name == defined for data in gold.values() for defined in _definitions(data))


def _definitions(data: bytes) -> Iterator[str]:
    """Names that module and class bodies define; none for files that do not parse (templates, Python 2)."""
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield child.name
                elif isinstance(child, ast.Assign):
                    yield from (t.id for t in child.targets if isinstance(t, ast.Name))


def _interface(start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> Iterator[str]:
    for path, data in sorted(gold.items()):
        source = data.decode("utf-8", "replace")
        names = changed_functions(start.get(path, b"").decode("utf-8", "replace"), source)
        public = [n for n in names if not n.rpartition(".")[2].startswith("_") or n.endswith("__init__")]
        shown = "\n\n".join(f"# {n}\n{signature_of(source, n)}" for n in public[:8])
        yield f"`{path}`" + (f":\n\n```python\n{shown}\n```" if shown else "")


LEVELS = ("precise", "normal", "terse")


@dataclass(frozen=True)
class Shown:
    """Parts of a JavaScript function that an instruction shows: its ``signature`` and its first ``line`` (1-based)."""

    signature: str
    line: int


@dataclass(frozen=True)
class Facts:
    """Inputs of a task's instruction. ``workspace``: the unchanged package; ``start``: as the agent gets it; ``gold``:
    the solution; ``broken``: failing tests; ``texts``: failing test -> its output; ``parts``: the tasks of a
    ``combine``; ``shown``: set for code that is not Python; ``roots``: import roots of the package."""

    candidate: Candidate
    workspace: Mapping[str, bytes]
    start: Mapping[str, bytes]
    gold: Mapping[str, bytes]
    broken: Sequence[str]
    texts: Mapping[str, str]
    parts: Sequence[Task] = ()
    shown: Shown | None = None
    roots: Sequence[str] = ()


@dataclass(frozen=True)
class Writer:
    """Writes instructions by ``settings``; ``reworder``, if any, has a policy reword them."""

    settings: PackageTaskSettings
    reworder: Reworder | None = None

    async def write(self, facts: Facts) -> str:
        level = level_of(self.settings, facts.candidate)
        text = template(self.settings, level, facts)
        if self.reworder is None:
            return text
        return await self.reworder.reword(text, level, facts.start, facts.gold)


def level_of(settings: PackageTaskSettings, candidate: Candidate) -> str:
    """The level of a task: its own if it has one, else by the settings."""
    return candidate.level or drawn_level(settings, candidate.slug)


def drawn_level(settings: PackageTaskSettings, slug: str) -> str:
    """The level of the settings; ``mixed`` draws one by the name of the task."""
    return settings.level if settings.level != "mixed" else random.Random(f"level:{slug}").choice(LEVELS)


def template(settings: PackageTaskSettings, level: str, facts: Facts) -> str:
    """The instruction of a task, from templates."""
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
        return deletion_request(
            rng=rng,
            level=level,
            functions=functions,
            workspace=facts.workspace,
            changed=files,
            tests=facts.broken,
            python=shown is None,
            roots=facts.roots,
        )
    if candidate.kind == "delete_function":
        return feature_request(
            rng=rng, path=module, name=name, source=facts.workspace[module].decode(), test=first, signature=signature
        )
    observed, source = facts.texts[first], candidate.source.decode()
    if level != "precise":
        return vague_report(
            rng=rng, level=level, module=module, name=name, test=first, observed=observed, roots=facts.roots
        )
    if settings.prompt == "located":
        return located_bug_report(rng=rng, path=module, name=name, source=source, test=first, text=observed, first=line)
    if settings.prompt == "pointed":
        return pointed_bug_report(
            rng=rng, path=module, name=name, source=source, test=first, text=observed, line=candidate.line, first=line
        )
    return bug_report(rng, module, first, observed, facts.roots)


def _several(level: str, parts: Sequence[Task]) -> str:
    """The instructions of the parts, one after the other."""
    texts = [part.instruction.strip() for part in parts]
    if level == "terse":
        return "A few things:\n\n" + "\n".join(f"- {text}" for text in texts) + "\n"
    head = f"There are {len(texts)} things to do; each has its own tests.\n\n"
    return head + "\n\n".join(f"## {number}\n\n{text}" for number, text in enumerate(texts, 1)) + "\n"
