"""Tests with other inputs: the source of a test file, its constants changed and its assertions turned into records.

An altered test does not judge. Where it compared two values it hands them to ``woodshed_seen`` (see
``pytest_runner.py``) and goes on, so one run says what the code under test answers to inputs that no visible test has.
"""

from __future__ import annotations

import ast
from typing import Literal

Kind = Literal["numbers", "strings"]
KINDS: tuple[Kind, ...] = ("numbers", "strings")

_RECORD = "woodshed_seen"
_BY_NAME = frozenset(
    ("getattr", "setattr", "hasattr", "delattr", "import_module", "importorskip", "__import__", "open", "fixture")
)
"""Functions whose strings name something; another name would only make the test fail."""


def alter(source: str, kind: Kind) -> str | None:
    """The altered source, None where it has no constant of that kind to change or is no Python.

    Numbers keep their sign and 0 stays 0, strings keep their length and change one letter: most altered inputs are
    as valid as the ones they come from. Constants that are indices, keys, docstrings, in decorators other than
    ``parametrize`` or in the head of a ``with`` stay as they are.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    changer = _Alter(kind)
    altered = ast.fix_missing_locations(changer.visit(tree))
    return ast.unparse(altered) if changer.changed else None


class _Alter(ast.NodeTransformer):
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.changed = False

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = self.visit(node.test)
        values = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
        return _recorded(values)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node  # a docstring
        call = self.visit(node.value)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _compares(call.func):
            return _recorded(call.args)
        return ast.Expr(call)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        new = value
        if self.kind == "numbers" and type(value) is int:
            new = value + (value > 0) - (value < 0)
        elif self.kind == "numbers" and type(value) is float:
            new = value * 1.25
        elif self.kind == "strings" and type(value) is str:
            new = other_letter(value)
        if repr(new) == repr(value):
            return node
        self.changed = True
        return ast.Constant(new)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _BY_NAME:
            return node
        if name == "parametrize":  # the first argument names the parameters; ids and marks stay
            node.args[1:] = [self.visit(argument) for argument in node.args[1:]]
            return node
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [
            self.visit(d) if isinstance(d, ast.Call) and "parametrize" in ast.dump(d.func) else d
            for d in node.decorator_list
        ]
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return node

    visit_ImportFrom = visit_Import  # type: ignore[assignment]
    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]
    visit_AsyncWith = visit_With  # type: ignore[assignment]


def _recorded(values: list[ast.expr]) -> ast.Expr:
    """A call that notes the values; those written out in the test say nothing about the code under test."""
    computed = [value for value in values if not _literal(value)]
    return ast.Expr(ast.Call(ast.Name(_RECORD, ast.Load()), computed, []))


def _literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _compares(function: ast.Attribute) -> bool:
    """Whether it is an assertion of unittest about values: ``self.assertEqual``, not ``self.assertRaises``."""
    own = isinstance(function.value, ast.Name) and function.value.id == "self"
    return (
        own and function.attr.startswith("assert") and not any(w in function.attr for w in ("Raises", "Warns", "Logs"))
    )


def other_letter(text: str) -> str:
    """The last letter replaced by the next one; texts with markup of their own stay as they are."""
    if any(mark in text for mark in "%{\\"):
        return text
    for at in range(len(text) - 1, -1, -1):
        if text[at].isascii() and text[at].isalpha():
            letter = chr(ord(text[at]) + 1) if text[at] not in "zZ" else chr(ord(text[at]) - 1)
            return text[:at] + letter + text[at + 1 :]
    return text
