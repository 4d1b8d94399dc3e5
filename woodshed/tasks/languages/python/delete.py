"""Find functions and delete their bodies (feature deletion): signature, decorators and docstring stay."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from woodshed.record.python_source import parse_python

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class FunctionSpan:
    """Position of a function. ``name`` is qualified (``Class.method``); ``line`` to ``end_line`` (1-based, inclusive):
    ``def`` and body; ``body_line``: first line after the docstring; ``statements``: number of statements after it.
    """

    name: str
    line: int
    body_line: int
    end_line: int
    statements: int


def function_spans(source: str) -> list[FunctionSpan]:
    """Functions and methods of a module (not those nested in functions), in order. Raises SyntaxError."""
    spans = []
    for name, node in _functions(parse_python(source)):
        body = _code(node)
        if body:
            count = sum(isinstance(n, ast.stmt) for statement in body for n in ast.walk(statement))
            spans.append(
                FunctionSpan(
                    name=name,
                    line=node.lineno,
                    body_line=body[0].lineno,
                    end_line=node.end_lineno or node.lineno,
                    statements=count,
                )
            )
    return spans


def delete_body(source: str, function: str) -> str:
    """``source`` with the body of ``function`` (``name`` or ``Class.name``) replaced by ``raise NotImplementedError``.

    Everything outside that body keeps its formatting. Raises SyntaxError, KeyError if there is no such function,
    ValueError if it has no body besides a docstring.
    """
    node = find_function(parse_python(source), function)
    if not _code(node):
        raise ValueError(f"{function}: nothing to delete but a docstring")
    return "\n".join(_without_body(source.split("\n"), node))


def delete_bodies(source: str, functions: Collection[str]) -> str:
    """``delete_body`` for several functions and all definitions of each name (a property's setter too).

    Functions with only a docstring stay as they are. Raises SyntaxError.
    """
    lines = source.split("\n")
    found = [node for name, node in _functions(parse_python(source)) if name in functions and _code(node)]
    for node in sorted(found, key=lambda n: -n.lineno):
        lines = _without_body(lines, node)
    return "\n".join(lines)


def remove_functions(source: str, functions: Collection[str]) -> str:
    """``source`` without the definitions of ``functions``; a block that would become empty keeps its last one.

    Raises SyntaxError.
    """
    lines = source.split("\n")
    tree = parse_python(source)
    found = [node for name, node in _functions(tree) if name in functions]
    fields = [value for node in ast.walk(tree) for _, value in ast.iter_fields(node)]
    blocks = [value for value in fields if isinstance(value, list)]
    for node in sorted(found, key=lambda n: -n.lineno):
        block = next(b for b in blocks if node in b)
        if len(block) == 1:
            continue
        block.remove(node)
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        last = node.end_lineno or node.lineno
        while last < len(lines) and not lines[last].strip():
            last += 1
        lines[first - 1 : last] = []
    return "\n".join(lines)


def _without_body(lines: list[str], node: Function) -> list[str]:
    first, last = _code(node)[0], node.end_lineno or node.lineno
    start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    head, own = lines[: start - 1], lines[start - 1].encode()[: first.col_offset].decode()
    # If the body starts on the line of the signature or the docstring, the statement replaces it on that line.
    indent = own if own.strip() or start == first.lineno else " " * first.col_offset
    return [*head, f"{indent}raise NotImplementedError", *lines[last:]]


def find_function(tree: ast.Module, name: str) -> Function:
    """The last definition of ``name``, which is the one in force. Raises KeyError."""
    found = [node for qualified, node in _functions(tree) if qualified == name]
    if not found:
        raise KeyError(f"no function {name!r} in the source")
    return found[-1]


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt):
            yield from _functions(node, prefix)


def _code(node: Function) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def changed_functions(before: str, after: str) -> list[str]:
    """Qualified names of the functions of ``after`` whose text is not in ``before``; empty if it does not parse."""
    try:
        spans = function_spans(after)
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return []
    lines = after.split("\n")
    names = [s.name for s in spans if "\n".join(lines[s.line - 1 : s.end_line]) not in before]
    return list(dict.fromkeys(names))
