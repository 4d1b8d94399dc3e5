"""Precise instructions of package tasks, from templates: like an issue, or with the function or line at fault."""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath

from woodshed.record.python_source import parse_python
from woodshed.tasks.languages.python import FunctionSpan, function_spans

_BUG = (
    "{module}: `{test}` fails.\n\n{observed}\n\nFind the cause in the library and fix it. The tests are right.\n",
    "Regression in `{module}`.\n\n{observed}\n\n(seen with {file}::{test})\n\nPlease fix the library code.\n",
    "{file}::{test} is red:\n\n{observed}\n\nThe expectation is right, so `{module}` is wrong. Fix it.\n",
)
_LOCATED = (
    "`{name}` in {path}, line {line}, is wrong: `{test}` fails.\n\n{observed}\n\nFix it.\n",
    "Bug in `{name}` ({path}, line {line}). `{test}` reports:\n\n{observed}\n",
    "`{test}` is red:\n\n{observed}\n\nThe fault is in `{name}`: {path}, line {line}.\n",
)
_POINTED = "\nThe fault is in line {line}:\n\n```\n{text}\n```\n"
_DELETED = (
    "`{name}` in `{path}` is not implemented. Implement it:\n\n{signature}\n\nTests: {file}\n",
    "Implement `{name}` (`{path}`). Signature and description:\n\n{signature}\n\n{file} must pass.\n",
)


def bug_report(rng: random.Random, module: str, test: str, text: str, roots: Sequence[str] = ()) -> str:
    """Report a failing test, with the observed and the expected value as its assertion states them."""
    file, _, name = short_test(test).partition("::")
    observed = textwrap.indent(_clip(text), "    ")
    return rng.choice(_BUG).format(module=module_name(module, roots), file=file, test=name, observed=observed)


def located_bug_report(
    rng: random.Random, path: str, name: str, source: str, test: str, text: str, first: int | None = None
) -> str:
    """``bug_report`` that also names the function at fault, its file and the line where it begins.

    ``first`` is that line (1-based); None looks it up in Python code. Raises KeyError if the function is not there.
    """
    first = _span(source, name).line if first is None else first
    values = {
        "path": path,
        "name": name,
        "line": first,
        "test": short_test(test).removeprefix(test.partition("[")[0].rpartition("::")[0] + "::"),
    }
    return rng.choice(_LOCATED).format(observed=textwrap.indent(_clip(text, lines=4), "    "), **values)


def pointed_bug_report(
    rng: random.Random, path: str, name: str, source: str, test: str, text: str, line: int, first: int | None = None
) -> str:
    """``located_bug_report`` that also quotes the ``line`` (1-based) at fault, as a review comment does."""
    wrong = source.split("\n")[line - 1]
    return located_bug_report(
        rng=rng, path=path, name=name, source=source, test=test, text=text, first=first
    ) + _POINTED.format(line=line, text=wrong)


def feature_request(
    rng: random.Random, path: str, name: str, source: str, test: str, signature: str | None = None
) -> str:
    """Ask for a function, with its signature and docstring from ``source``; JavaScript passes its ``signature``."""
    signature = f"```python\n{signature_of(source, name)}\n```" if signature is None else f"```js\n{signature}\n```"
    file = test.partition("::")[0]
    return rng.choice(_DELETED).format(name=name, path=path, signature=signature, file=f"`{file}`")


def signature_of(source: str, name: str) -> str:
    """Lines of a function from ``def`` (decorators too) up to its body, dedented. Raises KeyError."""
    span = _span(source, name)
    node = next(
        n
        for n in ast.walk(parse_python(source))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.lineno == span.line
    )
    first = min([span.line, *(d.lineno for d in node.decorator_list)])
    lines = source.split("\n")[first - 1 : max(span.line, span.body_line - 1)]
    return textwrap.dedent("\n".join(lines)).rstrip()


def module_name(path: str, roots: Sequence[str] = ()) -> str:
    """Import name of a module file: ``src/cachetools/func.py`` is ``cachetools.func``; other files keep their path.

    ``roots``: import roots besides ``src`` and ``lib``, such as ``packages/core/src``.
    """
    if not path.endswith(".py"):
        return path
    within = [f"{root}/" for root in (*roots, "src", "lib") if path.startswith(f"{root}/")]
    parts = PurePosixPath(path.removeprefix(max(within, key=len, default=""))).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _span(source: str, name: str) -> FunctionSpan:
    spans = [s for s in function_spans(source) if s.name == name]
    if not spans:
        raise KeyError(f"no function {name!r} in the source")
    return spans[-1]


def short_test(test: str, most: int = 60) -> str:
    """The id of a test with its parameters cut to ``most`` characters; some are whole documents."""
    function, bracket, parameters = test.partition("[")
    parameters = without_addresses(parameters.removesuffix("]"))
    if len(parameters) > most:
        parameters = parameters[:most] + "..."
    return f"{function}[{parameters}]" if bracket else function


def without_addresses(text: str) -> str:
    """``text`` without the addresses of objects, which differ from run to run."""
    text = re.sub(r"(?i)(\bat )?\b0x(?(1)[0-9a-f]{5,}|[0-9a-f]{9,})\b", lambda m: f"{m[1] or ''}0x...", text)
    return re.sub(r"\b1(?:39|40)\d{12}\b", "...", text)  # what id() gives on Linux


def _clip(text: str, lines: int = 8, width: int = 160) -> str:
    text = without_addresses(text)
    kept = [line.rstrip()[:width] for line in text.strip().splitlines() if line.strip()]
    return "\n".join(kept[:lines])
