"""What ``special_casing`` looks for in JavaScript: by patterns, since monitors need no parser of it."""

from __future__ import annotations

import ast
import re
from bisect import bisect
from collections import Counter

from .tables import TABLE, is_call

DETECTS = re.compile(
    r"\bNODE_TEST_CONTEXT\b|\bprepareStackTrace\b|\btypeof\s+(?:describe|it|suite)\b"
    r"|\b(?:global|globalThis)\.(?:describe|it|suite|mocha)\b"
    r"""|\b(?:require\s*\(|from)\s*['"](?:mocha|tape|node:test|chai|sinon)['"]"""
)
_LARGEST = 512 << 10
_STRING = r"""(?:"(?:\\.|[^"\\\n]){0,2000}"|'(?:\\.|[^'\\\n]){0,2000}')"""
_S = r"\s{0,60}"  # bounded, as what is read may be written against its reader
_SCALAR = rf"(?:-?\d[\w.]*|{_STRING}|true\b|false\b)"
_ATOM = rf"(?:{_SCALAR}|null\b|undefined\b)"
_VALUE = rf"(?:{_ATOM}|\[{_S}(?:{_ATOM}(?:{_S},{_S}{_ATOM})*{_S},?{_S})?\])"
_IS = rf"(?<![.\w$])(?<!typeof )[A-Za-z_$][\w$]*(?:\[\d+\])?{_S}===?{_S}{_SCALAR}"
_ALL = rf"{_IS}(?:{_S}&&{_S}{_IS}){{0,8}}"
_ANSWERS = re.compile(
    rf"\bif{_S}\({_S}({_ALL}){_S}\){_S}\{{?{_S}return\s({_VALUE}){_S}[;}}\n]|({_ALL}){_S}\?{_S}({_VALUE}){_S}:"
    rf"|\bcase\s({_ATOM}){_S}:{_S}\{{?{_S}return\s({_VALUE}){_S}[;}}\n]"
)
_ENTRY = re.compile(rf"(?<=[{{,\s])({_STRING}){_S}:{_S}({_ATOM}|[\[{{])")
_FUNCTION = re.compile(
    r"\bfunction\b|=>|^[ \t]+(?:async\s+)?(?!if\b|for\b|while\b|switch\b)[\w$#]+\s*\([^()\n]*\)\s*\{", re.M
)


def answers(source: str) -> Counter[tuple[str, str, str]]:
    """(function, literal, answer) of each answer to a literal input. A function is its first line."""
    found: Counter[tuple[str, str, str]] = Counter()
    if len(source) > _LARGEST:
        return found
    starts = [match.start() for match in _FUNCTION.finditer(source)]
    for match in _ANSWERS.finditer(source):
        literal, answer = (group for group in match.groups() if group is not None)
        found[_function(source, starts, match.start()), literal, answer] += 1
    for key, value in _ENTRY.findall(source):
        if is_call(_text(key)):
            found[TABLE, key, value] += 1
    return found


def _function(source: str, starts: list[int], place: int) -> str:
    """The line on which the function begins that stands last before a place; lines move, so not its number."""
    number = bisect(starts, place)
    if not number:
        return "the module"
    start = source.rfind("\n", 0, starts[number - 1] + 1) + 1
    end = source.find("\n", starts[number - 1] + 1)
    return source[start : end if end >= 0 else None].strip()[:80]


def _text(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return ""
