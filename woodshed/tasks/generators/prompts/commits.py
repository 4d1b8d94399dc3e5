"""Instructions of replayed commits, from their messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from woodshed.tasks.generators.packages.history import Commit
from woodshed.tasks.generators.packages.instruction import signature_of
from woodshed.tasks.generators.packages.proof import changed_functions
from woodshed.tasks.validate.reasons import defined_names

_TRAILER = re.compile(r"(?im)^\s*(?:[A-Z][\w-]+-by|change-id|cc|co-authored-by|reviewed-on)\s*:.*$\n?")
_REFERENCE = re.compile(
    r"\s*\(?(?<!\w)(?:(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?|see|refs?|issue|pr|gh)[\s:]*)?(?:#|gh-)\d+\)?|https?://\S+",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^(?:fix|feat|feature|bug|refactor|perf)(?:\([^)]*\))?!?:\s*", re.IGNORECASE)


def commit_request(level: str, commit: Commit, start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> str:
    """``terse``: the message's subject; ``normal``: all of it; ``precise``: also the interface that the commit has.

    Names that do not exist yet and that others will use are told at each level: nobody could guess them.
    """
    subject, body = cleaned(commit.message)
    text = subject if level == "terse" or not body else f"{subject}\n\n{body}"
    new = sorted(name for name in defined_names(start, gold) if _is_public(name, gold))
    if level == "precise":
        text += "\n\nInterface:\n\n" + "\n\n".join(_interface(start, gold))
    elif new:
        text += "\n\nNew names: " + ", ".join(f"`{name}`" for name in new[:12])
    return text + "\n"


def cleaned(message: str) -> tuple[str, str]:
    """(subject, body) without trailers and references to trackers, which say nothing to somebody who is offline."""
    text = _REFERENCE.sub("", _TRAILER.sub("", message))
    subject, _, body = text.strip().partition("\n")
    lines = [line.rstrip() for line in body.strip().splitlines()]
    return _PREFIX.sub("", subject.strip()).rstrip(" .:-"), "\n".join(lines).strip()


def _is_public(name: str, gold: Mapping[str, bytes]) -> bool:
    """Functions and classes of a module, methods, and modules themselves; local variables are nobody's business."""
    if name.startswith("_"):
        return False
    return any(name == defined for data in gold.values() for defined in _definitions(data))


def _definitions(data: bytes) -> Iterator[str]:
    """None in what does not parse: templates, Python 2."""
    try:
        tree = ast.parse(data)
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
