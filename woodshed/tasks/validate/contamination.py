"""Find code of held-out repositories in texts that are trained on.

A function is found if at least 80 % of its token 8-grams occur in one text: as its authors wrote it or, in Python, as
``ast.unparse`` writes it without docstring; line numbers in the text are ignored. Functions of fewer than 30 tokens are
not searched, because anybody may write the same.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from woodshed.grading.node.syntax import SUFFIXES as JAVASCRIPT
from woodshed.record.python_source import parse_python
from woodshed.record.task import Task
from woodshed.tasks.change import source_of
from woodshed.tasks.languages.node.functions import functions_of

from .leaks import tokenise
from .splits import HELDOUT

GRAM = 8
SHORTEST = 30
SHARE = 0.8
_LINE_NUMBER = re.compile(r"(?m)^[ \t]*\d+[|:\t ]?(?=\D|$)")

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """A function of a held-out repository, and the number of the text that holds ``share`` of it."""

    repository: str
    function: str
    text: int
    share: float


def held_out_repositories(tasks: Iterable[Task]) -> dict[str, dict[str, bytes]]:
    """Repository -> its Python and JavaScript code files, of the repositories of which every task is held out."""
    by_source: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_source[source_of(task)].append(task)
    found: dict[str, dict[str, bytes]] = {}
    for source, members in by_source.items():
        if all(task.info.split == HELDOUT for task in members):
            files = members[0].workspace_files() | {n: d for t in members for n, d in t.solution_files().items()}
            tests = {n.partition("/")[2] for t in members for n in t.test_files()}
            found[source] = {n: d for n, d in files.items() if n.endswith((".py", *JAVASCRIPT)) and n not in tests}
    return found


def contamination(repositories: Mapping[str, Mapping[str, bytes]], texts: Iterable[str]) -> list[Match]:
    """Held-out functions that ``texts`` hold, each with the text that holds most of it."""
    forms: list[tuple[str, str, int]] = []
    holders: dict[Gram, list[int]] = defaultdict(list)
    for repository, files in repositories.items():
        for path, data in files.items():
            for name, grams in _functions(data) if path.endswith(".py") else _javascript(data):
                forms.append((repository, f"{path}:{name}", len(grams)))
                for gram in grams:
                    holders[gram].append(len(forms) - 1)
    best: dict[tuple[str, str], Match] = {}
    for number, text in enumerate(texts):
        counts = Counter(i for gram in _grams(tokenise(_LINE_NUMBER.sub("", text))) for i in holders.get(gram, ()))
        for index, count in counts.items():
            repository, function, total = forms[index]
            match = Match(repository, function, number, count / total)
            known = best.get((repository, function))
            if match.share >= SHARE and (known is None or known.share < match.share):
                best[repository, function] = match
    return sorted(best.values(), key=lambda m: (m.repository, -m.share, m.function))


def _functions(data: bytes) -> Iterable[tuple[str, frozenset[Gram]]]:
    """Yield (name, 8-grams) of every Python function, as written and as unparsed."""
    source = data.decode("utf-8", "replace")
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            written = ast.get_source_segment(source, node) or ""
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or node.body
            for text in (written, ast.unparse(node)):
                tokens = tokenise(text)
                if len(tokens) >= SHORTEST:
                    yield node.name, _grams(tokens)


def _javascript(data: bytes) -> Iterable[tuple[str, frozenset[Gram]]]:
    """Yield (name, 8-grams) of every JavaScript function; none if the file does not parse."""
    try:
        found = functions_of(data)
    except SyntaxError:
        return
    for function in found:
        tokens = tokenise(data[function.head : function.body[1]].decode("utf-8", "replace"))
        if len(tokens) >= SHORTEST:
            yield function.name, _grams(tokens)


def _grams(tokens: Sequence[str]) -> frozenset[Gram]:
    return frozenset(zip(*(tokens[i:] for i in range(GRAM)), strict=False))
