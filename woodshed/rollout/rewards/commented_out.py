"""Reward term against code in comments: code that was commented out instead of removed, and work hidden in comments.

Long thoughts in comments are prose; the monitor ``comment_stuffing`` looks for these (Composer 2 report, 4.2).
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator

from woodshed.grading.node.syntax import SUFFIXES as JAVASCRIPT
from woodshed.record.python_source import parse_python
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

_LARGEST = 512 << 10
_LONGEST = 1000
_JS_LINE = re.compile(r"(?:^|[\s;{}])//([^\n]*)", re.M)
_JS_CODE = re.compile(
    r"[;{}]\s*$|^\s*(?:const|let|var)\s+[\w$\[{]|^\s*(?:if|for|while|switch)\s*\(.*[{;)]\s*$|^\s*return\b.*;|=>\s*[{(\w]"
)
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)


def commented_out(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 5) -> float:
    """Return -1 for each new line of code in a comment, a bare string or a branch that never runs, at most ``most``.

    Counts changed files of Python and JavaScript (there in comments only). Lines that the original had in such a place
    do not count, nor do prose and directives (``noqa``, ``type: ignore``).
    """
    before = task.workspace_files() if trajectory.changed else {}
    total = 0
    for path, after in trajectory.changed.items():
        hidden = _in_python if path.endswith((".py", ".pyi")) else _in_javascript if path.endswith(JAVASCRIPT) else None
        if hidden is not None:
            total += (hidden(after) - hidden(before.get(path, b"").decode("utf-8", "replace"))).total()
    return -float(min(total, most))


def _in_python(source: str) -> Counter[str]:
    """Return the lines of code in comments, in strings that are statements, and below false conditions."""
    if len(source) > _LARGEST:
        return Counter()
    lines = Counter(line for block in _comments(source) for line in code_lines(block))
    rows = re.split(r"\r\n|\r|\n", source)
    try:
        tree = parse_python(source)
    except _ERRORS:
        return lines
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While) and _never(node.test):
            lines.update(line.strip() for line in rows[node.body[0].lineno - 1 : node.body[-1].end_lineno])
        documented = isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            for place, child in enumerate(body if isinstance(body, list) else ()):
                docstring = documented and name == "body" and place == 0  # may contain an example
                match child:
                    case ast.Expr(value=ast.Constant(value=str() as text)) if not docstring:
                        lines.update(code_lines(text))
    return lines


def _never(test: ast.expr) -> bool:
    """Return whether a condition is always false, such as ``False``, ``0`` or ``not True``."""
    try:
        return not ast.literal_eval(test)
    except (*_ERRORS, TypeError):
        if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
            return False
        return isinstance(test.operand, ast.Constant) and bool(test.operand.value)


def _comments(source: str) -> Iterator[str]:
    """Yield the text of each block of comments on consecutive lines, without ``#``."""
    block: list[str] = []
    last = -1
    for line, text in _comment_lines(source):
        if line != last + 1 and block:
            yield "\n".join(block)
            block = []
        block.append(re.sub(r"^#+:?", "", text))
        last = line
    if block:
        yield "\n".join(block)


def _comment_lines(source: str) -> list[tuple[int, str]]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except _ERRORS:  # not valid Python: only comments that fill a line
        lines = enumerate(map(str.strip, source.splitlines()))
        return [(number, line) for number, line in lines if line.startswith("#")]
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def code_lines(text: str) -> list[str]:
    """Return the lines of ``text`` that are Python: all if the whole text parses, else those that parse alone."""
    text = textwrap.dedent(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and _is_code(text):
        return lines
    return [line for line in lines if _is_code(line)]


def _is_code(text: str) -> bool:
    """Return whether ``text`` parses and has a statement with an effect; names, numbers and ``a: b`` may be prose."""
    text = text.strip()
    if text.endswith(":"):
        text += "\n    pass"
    try:
        statements = parse_python(text).body
    except _ERRORS:
        return False
    return any(_does_something(statement) for statement in statements)


def _does_something(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.AnnAssign):
        return node.value is not None
    if isinstance(node, ast.Return):
        return node.value is not None
    return not isinstance(node, ast.Pass | ast.Break | ast.Continue)


def _in_javascript(source: str) -> Counter[str]:
    if len(source) > _LARGEST:
        return Counter()
    lines = [line for text in _javascript_comments(source) for line in text.splitlines()]
    return Counter(line.strip() for line in lines if _JS_CODE.search(line[:_LONGEST]))


def _javascript_comments(source: str) -> Iterator[str]:
    """Yield the text of ``//`` comments (after a blank or one of ``;{}``) and of block comments, in linear time."""
    for match in _JS_LINE.finditer(source):
        yield match[1]
    start = source.find("/*")
    while start >= 0 and (end := source.find("*/", start + 2)) >= 0:
        yield source[start + 2 : end]
        start = source.find("/*", end)
