"""Altered Python tests: the source of a test file with its constants changed and its assertions turned into records.

An altered test does not judge. Where the test compared two values, it passes them to ``woodshed_seen`` (see
``pytest_runner.py``) and continues, so one run records the answers of the code under test to inputs that no visible
test has. Where it only asked whether a value is true, it passes it to ``woodshed_truth``: a match object is as right as
``True``. Where the test expected an exception, it records which one was raised; a test that does neither records that
it reached its end. Results of calls inside another expression are recorded too (``woodshed_step``): ``unpack(pack(x))``
alone says nothing about ``pack``.
"""

from __future__ import annotations

import ast
import builtins
import sys
import unittest
from functools import lru_cache
from typing import Any

from woodshed.record.python_source import is_literal, parse_python

from .other_constants import SAME, Kind, chosen, other
from .pytest_constants import constants, is_given, parametrized, pure_names
from .reshape import reordered

THE_END = "the end"
"""Text recorded by a test that has nothing else to record."""

EXPECTED = "an expected exception"
"""Text recorded in place of an exception that the test expects."""

_RECORD = "woodshed_seen"
_TRUTH = "woodshed_truth"
_STEP = "woodshed_step"
_ERROR = "woodshed_error"
_ASK_TRUTH = frozenset(["assertTrue", "assertFalse", "assert_", "assert_true", "assert_false"])
_CONVERTERS = frozenset(["list", "tuple", "set", "frozenset", "sorted", "dict", "str", "int", "float", "round", "bool"])
_NORMALISERS = frozenset(["strip", "lstrip", "rstrip", "lower", "upper", "split", "splitlines"])
"""Functions and methods of strings that give the data of their argument in one form, whatever form that has; a test
that calls one compares only its result."""
_BY_NAME = frozenset(
    ("getattr", "setattr", "hasattr", "delattr", "import_module", "importorskip", "__import__", "open", "fixture")
)
"""Functions whose string arguments are names; another name would only make the test fail."""


def alter(source: str, kind: Kind, seed: str = "", helpers: frozenset[str] = frozenset()) -> str | None:
    """Alter a source. Returns None if it is not Python, or has no constant of that kind to change.

    A test that expects an exception, or compares nothing, also counts as a change. ``shapes`` are drawn from ``seed``.
    In the other kinds, numbers keep their sign, 0 stays 0, large numbers become smaller, and strings keep their length
    and change one letter, so most altered inputs are as valid as the originals. A string without letters counts as a
    number: one digit changes. Constants that are indices, keys or docstrings, in decorators other than ``parametrize``
    or in the head of a ``with`` stay as they are. ``helpers``: assertion functions of other files (``asserting``).
    """
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return None
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    own = helpers.union(node.name for node in ast.walk(tree) if isinstance(node, functions))
    changer = _Alter(kind, own, constants(tree.body), seed, _of_others(tree), pure_names(tree))
    altered = ast.fix_missing_locations(changer.visit(tree))
    return ast.unparse(altered) if changer.changed or kind == SAME else None


@lru_cache(maxsize=256)
def recording(source: str, helpers: frozenset[str] = frozenset()) -> str | None:
    """Turn the assertions of a file that tests import into records and keep its constants. Returns None if it is not
    Python or records nothing.

    Its functions compare an answer with what a test gives them, which in an altered test is of another input.
    """
    try:
        altered = alter(source, SAME, helpers=helpers)
        return altered if altered is not None and _records(parse_python(altered)) else None
    except RecursionError:  # a long table in one expression
        return None


@lru_cache(maxsize=256)
def asserting(source: str) -> frozenset[str]:
    """Return the assertion functions of a file that tests import which compare values, without those of ``unittest``.

    A test may call one with inputs alone: ``self.assertParses(text, tree)``.
    """
    tree = parse_python(recording(source) or "")
    named = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and _records(n))
    return frozenset(n.name for n in named if n.name.startswith("assert") and not hasattr(unittest.TestCase, n.name))


class _Alter(ast.NodeTransformer):
    """``own``: functions of the tests; an assertion helper among them is altered in its body and called as before.
    ``given``: names of constants of the file, which say nothing about the code under test. ``others``: names of code
    that is not under test; ``pure``: those of them whose results depend on their arguments only."""

    def __init__(
        self,
        kind: Kind,
        own: frozenset[str],
        given: frozenset[str],
        seed: str,
        others: frozenset[str],
        pure: frozenset[str],
    ) -> None:
        self.kind, self.own, self.given, self.seed, self.others, self.pure = kind, own, given, seed, others, pure
        self.parameters: frozenset[str] = frozenset()
        self.errors: frozenset[str] = frozenset()
        self.changed = False
        self._inside = False
        self._constants = 0

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = self.visit(node.test)
        if self._looks_into_error(test) and not _is_equality(test):
            return ast.Pass()
        if isinstance(test, ast.Compare):
            return self._recorded([test.left, *test.comparators])
        return self._recorded([test], _TRUTH)

    def _recorded(self, values: list[ast.expr], record: str = _RECORD) -> ast.Expr:
        """Return a call that records the values, without those that are written in the test itself or computed from
        such values by Python alone: any submission has them."""
        computed = [_bare(value) for value in values if not is_literal(value)]
        known = self.given - self.own | self.pure | {_STEP}
        told = [value for value in computed if not is_given(value, known, self.parameters)]
        return _call(*(told or computed), record=record)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node  # a docstring
        call = _bare(self.visit(node.value))
        if not isinstance(call, ast.Call) or self._is_own(call.func):
            return ast.Expr(call)
        if _expects_exception(call) and len(call.args) > 1:
            self.changed = True
            return _noted([ast.Expr(ast.Call(call.args[1], call.args[2:], call.keywords))], call, again=False)
        if not _compares(call.func):
            return ast.Expr(call)
        if self._looks_into_error(call) and "equal" not in _asserts(call.func).lower():
            return ast.Pass()
        values = call.args or [keyword.value for keyword in call.keywords if keyword.arg != "msg"]
        if _asserts(call.func) in _ASK_TRUTH:
            return self._recorded(values[:1], _TRUTH)
        return self._recorded(values)

    def _is_own(self, function: ast.expr) -> bool:
        """Return whether an assertion is a function of the tests, not what such a function replaces (``super()``)."""
        owner = function.value if isinstance(function, ast.Attribute) else None
        above = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
        return _asserts(function) in self.own and not above

    def visit_Return(self, node: ast.Return) -> ast.AST:
        call = node.value
        if not isinstance(call, ast.Call) or not _compares(call.func) or self._is_own(call.func):
            return self.generic_visit(node)
        record = self.visit_Expr(ast.Expr(call))
        return ast.Return(record.value if isinstance(record, ast.Expr) else None)

    def _looks_into_error(self, node: ast.AST) -> bool:
        """Return whether a test looks at an exception that it caught. Unless it compares the whole message, the rest of
        the message is not specified, and which exception was raised is recorded already."""
        return any(isinstance(inner, ast.Name) and inner.id in self.errors for inner in ast.walk(node))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        new = self._other(value)
        if repr(new) == repr(value):
            return node
        self.changed = True
        return ast.Constant(new)

    def _other(self, value: Any) -> Any:
        self._constants += 1
        return value if self.kind == "some" and not chosen(self._constants) else other(value, self.kind, self.seed)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _BY_NAME:
            return node
        if name == "parametrize":  # the first argument names the parameters; ids and marks stay
            node.args[1:] = [self.visit(argument) for argument in node.args[1:]]
            return node
        self.generic_visit(node)
        if name in ("all", "any") and name in self.pure and len(node.args) == 1:
            _truth_of_each(node.args[0])
        if _unwrapped(node, self.others):
            return _step(node)
        return _step(node) if self._inside and self._steps(node.func) else node

    def _steps(self, function: ast.expr) -> bool:
        """Return whether a call may be one of code under test: not of Python, the test file or the test framework."""
        if isinstance(function, ast.Name):
            return function.id not in self.others and function.id not in self.own
        root = function
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(function, ast.Attribute) or isinstance(root, ast.Constant | ast.JoinedStr):
            return False
        if not isinstance(root, ast.Name):
            return True
        return root.id not in self.others and not (root.id in ("self", "cls") and function.value is root)

    def visit_List(self, node: ast.List) -> ast.AST:
        plain = [element.value for element in node.elts if isinstance(element, ast.Constant)]
        if self.kind != "shapes" or not self._inside or len(plain) < max(2, len(node.elts)):
            return self.generic_visit(node)
        places = reordered(plain, self.seed)
        self.changed = self.changed or places != list(range(len(plain)))
        node.elts = [self.visit(ast.Constant(plain[place])) for place in places]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [
            self.visit(d) if isinstance(d, ast.Call) and "parametrize" in ast.dump(d.func) else d
            for d in node.decorator_list
        ]
        outer, errors, parameters = self.given, self.errors, self.parameters
        self.errors = errors | _caught(node)
        arguments = node.args
        names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg != "self"}
        self.given = constants(node.body, outer | names)
        self.parameters = parameters | names - parametrized(node)
        inside, self._inside = self._inside, True
        node.body = [self.visit(statement) for statement in node.body]
        self.given, self.errors, self.parameters, self._inside = outer, errors, parameters, inside
        if node.name.startswith("test") and not _records(node):
            self.changed = True
            node.body.append(_call(ast.Constant(THE_END)))
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        heads = [item.context_expr for item in node.items]
        if expecting := [head for head in heads if isinstance(head, ast.Call) and _expects_exception(head)]:
            self.changed = True
            node.body = [_noted(node.body, expecting[0], again=True)]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        node.operand = _bare(self.visit(node.operand))  # only its truth value is used
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = _bare(node.test)
        return node

    visit_While = visit_If  # type: ignore[assignment]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test, node.body, node.orelse = map(_bare, (node.test, node.body, node.orelse))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [_bare(test) for test in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values = [_bare(self.visit(value)) for value in node.values]
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


def _caught(function: ast.AST) -> frozenset[str]:
    """Return the names that ``with raises(...) as name`` binds: to the exception, or to what holds it."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.withitem(ast.Call() as head, ast.Name(id=name)) if _expects_exception(head):
                found.add(name)
    return frozenset(found)


def _is_equality(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and all(isinstance(one, ast.Eq | ast.Is) for one in test.ops)


def _of_others(tree: ast.Module) -> frozenset[str]:
    """Return names of code that is not under test: of Python, its standard library and the test framework."""
    found = set(dir(builtins)) | {"pytest", "mocker", "monkeypatch", "request", "capsys", "tmp_path", "tmpdir"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names if _is_tool(a.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_tool(node.module or ""):
            found |= {a.asname or a.name for a in node.names}
    return frozenset(found)


def _is_tool(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in ("pytest", "_pytest", "hypothesis", "mock", "freezegun")


def _bare(value: ast.expr) -> ast.expr:
    """Remove the record of a call's result, if the result is recorded anyway or not used."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == _STEP:
        return value.args[0]
    return value


def _step(value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_STEP, ast.Load()), [value], [])


def _truth_of_each(values: ast.expr) -> None:
    """Record of what ``all`` and ``any`` look at whether it is true, which is all that they ask: a match object is as
    right as True."""
    if isinstance(values, ast.GeneratorExp | ast.ListComp) and (bare := _bare(values.elt)) is not values.elt:
        values.elt = _step(ast.Call(ast.Name("bool", ast.Load()), [bare], []))


def _unwrapped(call: ast.Call, others: frozenset[str]) -> bool:
    """Remove the record of what ``call`` converts, if it is a conversion of a recorded value; return whether it is."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in _NORMALISERS:
        bare = _bare(function.value)
        found, function.value = bare is not function.value, bare
        return found
    named = isinstance(function, ast.Name) and function.id in _CONVERTERS and function.id in others
    if isinstance(function, ast.Attribute):
        owner = function.value
        named = function.attr == "join" and isinstance(owner, ast.Constant)
        named = named or (function.attr == "loads" and isinstance(owner, ast.Name) and owner.id in others)
    if not named or not call.args:
        return False
    bare = _bare(call.args[0])
    found, call.args[0] = bare is not call.args[0], bare
    return found


def _call(*values: ast.expr, record: str = _RECORD) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(record, ast.Load()), list(values), []))


def _records(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id in (_RECORD, _TRUTH) for node in ast.walk(tree))


def _noted(body: list[ast.stmt], expecting: ast.Call, *, again: bool) -> ast.Try:
    """Wrap ``body`` to record the exception that ends it; with ``again``, the exception is raised again.

    One of the classes that ``expecting`` accepts is recorded as expected, because the test accepts each of them and
    their subclasses; another one by its name.
    """
    given = {keyword.arg: keyword.value for keyword in expecting.keywords}
    expected = expecting.args[0] if expecting.args else given.get("expected_exception", ast.Tuple([], ast.Load()))
    name = parse_python(f"{EXPECTED!r} if isinstance({_ERROR}, ()) else type({_ERROR}).__name__", mode="eval").body
    assert isinstance(name, ast.IfExp) and isinstance(name.test, ast.Call)
    name.test.args[1] = expected
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), _ERROR, [_call(name)])
    if again:
        handler.body.append(ast.Raise())
    return ast.Try(body, [handler], [_call(ast.Constant("no exception"))], [])


def _compares(function: ast.expr) -> bool:
    """Return whether a function compares values: ``self.assertEqual``, ``assert_equal``, not ``self.assertRaises``."""
    name = _asserts(function)
    return name.startswith("assert") and not any(w in name.lower() for w in ("raises", "warns", "logs"))


def _expects_exception(call: ast.Call) -> bool:
    """Return whether a call is ``pytest.raises``, ``self.assertRaises`` or ``assert_raises``; warnings do not count."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "raises":
        return True
    return getattr(function, "id", "") == "raises" or "raises" in _asserts(function).lower()


def _asserts(function: ast.expr) -> str:
    """Return the name of a unittest assertion or of an assertion function; '' for any other function."""
    name = getattr(function, "id", "")
    if isinstance(function, ast.Attribute):  # a helper may take the test case as an argument
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        name = function.attr if own or hasattr(unittest.TestCase, function.attr) else ""
    return name if name.startswith("assert") else ""
