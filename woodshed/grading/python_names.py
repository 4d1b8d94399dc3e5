"""Static analysis of Python source: parse it as the interpreter does, and resolve names by scope. Runs no code.

``np.stack`` resolves to ``numpy.stack`` if ``np`` is that module, and to nothing if it is a parameter. Standard library
only: the screen also runs inside boxes, whose interpreter may differ from the host's.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import islice

from woodshed.record.python_source import parse_python

_DEEPEST = 48
"""Maximum steps of resolving a name; hostile code nests deeper than any stack."""
_MOST = 16
"""Maximum number of origins of one expression."""
_STEPS = 1_000_000
"""Maximum number of bindings that are looked at for the names of one module; the largest files of numpy, sympy and
torch need 50,000. Hostile code that binds and reads a name 100,000 times would need an hour."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, ast.ClassDef, *_FUNCTIONS, *_COMPREHENSIONS)


class _Scope:
    """``names``: the names bound in this scope, each to dotted origins (text), expressions, or None if unknown."""

    def __init__(self, node: ast.AST, parent: _Scope | None) -> None:
        self.node, self.parent = node, parent
        self.names: dict[str, list[str | ast.expr | None]] = {}
        self.outer: dict[str, bool] = {}
        """Names in ``global`` and ``nonlocal`` statements, and whether they are global."""


class Names:
    """The names of one module. Several assignments to one name in a scope all count."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes: list[ast.AST] = []
        """Every node, in the order in which it was reached."""
        self.imports: list[str] = []
        """Modules and ``module.name`` that are imported, absolute ones only."""
        self._left = _STEPS
        self._memory: dict[ast.AST, tuple[str, ...]] = {}
        self._scope_of: dict[ast.AST, _Scope] = {}
        self._module = _Scope(tree, None)
        self._scopes = [self._module]
        self._read(tree)
        for scope in self._scopes:  # a ``global`` statement holds for the whole function, wherever it stands
            for name in [n for n, is_global in scope.outer.items() if is_global and n in scope.names]:
                self._module.names.setdefault(name, []).extend(scope.names.pop(name))

    def origin(self, node: ast.AST | None) -> str | None:
        """Return the dotted name to which an expression refers (``os.environ``, ``builtins.exec``); None if unknown."""
        return next(iter(self.origins(node)), None)

    def origins(self, node: ast.AST | None) -> list[str]:
        """Return all dotted names to which an expression may refer."""
        return list(self._known(node, _DEEPEST))

    def values(self, node: ast.AST) -> list[ast.expr]:
        """Return the expressions that a name may stand for; the node itself if it is no name or cannot be resolved."""
        found: list[ast.expr] = []
        pending, seen = [node], {node}
        while pending:
            one = pending.pop()
            bound = self._bound(one) if isinstance(one, ast.Name) else []
            inner = [b for b in bound if isinstance(b, ast.expr)]
            pending += [value for value in inner if value not in seen]
            seen.update(inner)
            if not inner and isinstance(one, ast.expr):
                found.append(one)
        return found

    def texts(self, node: ast.AST) -> list[str]:
        """Return the string constants that an expression may be, including those of a loop over constants."""
        found = []
        for value in self.values(node):
            items = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]
            found += [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]
        return found

    def _known(self, node: ast.AST | None, left: int) -> tuple[str, ...]:
        """Return ``_origins``, computed once per node; empty during that computation and beyond the maximum depth."""
        if node is None or not left:
            return ()
        if node not in self._memory:
            self._memory[node] = ()
            self._memory[node] = tuple(islice(dict.fromkeys(self._origins(node, left - 1)), _MOST))
        return self._memory[node]

    def _origins(self, node: ast.AST, left: int) -> Iterator[str]:
        match node:
            case ast.Name(id=name):
                bound = self._bound(node)
                for value in bound:
                    if isinstance(value, str):
                        yield value
                    elif value is not None:
                        yield from self._known(value, left)
                if not bound:
                    yield "builtins" if name == "__builtins__" else f"builtins.{name}"
            case ast.Attribute(value=owner, attr=name):
                for found in self._known(owner, left):
                    yield found.removesuffix(".__dict__") if name == "__dict__" else f"{found}.{name}"
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                yield from self._known(value, left)
            case ast.IfExp(body=first, orelse=second):
                yield from self._known(first, left)
                yield from self._known(second, left)
            case ast.BoolOp(values=values):
                for value in values[:4]:
                    yield from self._known(value, left)
            case ast.Subscript(value=table, slice=ast.Constant(value=str() as key)):
                for found in self._known(table, left):
                    yield key if found == "sys.modules" else f"{found}.{key}"
            case ast.Call():
                yield from self._called(node, left)

    def _called(self, call: ast.Call, left: int) -> Iterator[str]:
        texts = [a.value if isinstance(a, ast.Constant) and isinstance(a.value, str) else None for a in call.args[:2]]
        for function in self._known(call.func, left):
            if function in ("importlib.import_module", "builtins.__import__", "importlib.__import__"):
                yield from [texts[0]] if texts and texts[0] else []
            elif function == "builtins.getattr" and len(texts) == 2 and texts[1]:
                yield from (f"{owner}.{texts[1]}" for owner in self._known(call.args[0], left))
            elif function in ("sys.modules.get", "sys.modules.pop") and texts and texts[0]:
                yield texts[0]
            elif function == "builtins.vars" and call.args:
                yield from self._known(call.args[0], left)

    def _bound(self, node: ast.Name) -> list[str | ast.expr | None]:
        scope: _Scope | None = self._scope_of.get(node, self._module)
        first = True
        while scope is not None:
            if scope.outer.get(node.id):
                return self._counted(self._module.names.get(node.id, []))
            if node.id in scope.names and (first or not isinstance(scope.node, ast.ClassDef)):
                return self._counted(scope.names[node.id])
            scope, first = scope.parent, False
        return []

    def _counted(self, bound: list[str | ast.expr | None]) -> list[str | ast.expr | None]:
        self._left -= len(bound)
        if self._left < 0:
            raise UnreadableError("binds its names too often to be read")
        return bound

    def _read(self, tree: ast.Module) -> None:
        pending: list[tuple[ast.AST, _Scope]] = [(tree, self._module)]
        while pending:
            node, scope = pending.pop()
            self.nodes.append(node)
            self._scope_of[node] = scope
            inner = scope
            if isinstance(node, _SCOPES) and node is not tree:
                inner = _Scope(node, scope)
                self._scopes.append(inner)
            self._bind(node, scope, inner)
            for name, value in ast.iter_fields(node):
                outside = inner is not scope and name in ("decorator_list", "returns", "bases", "keywords", "args")
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        # Defaults belong to the outer scope too, but a parameter of the same name is bound anyway.
                        pending.append((child, scope if outside and not isinstance(child, ast.arguments) else inner))

    def _bind(self, node: ast.AST, scope: _Scope, inner: _Scope) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self.imports.append(alias.name)
                    whole = alias.asname is not None
                    _add(
                        scope,
                        alias.asname or alias.name.partition(".")[0],
                        alias.name if whole else alias.name.partition(".")[0],
                    )
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    absolute = f"{module}.{alias.name}" if module and not level else None
                    if absolute is not None:
                        self.imports.append(absolute)
                    _add(scope, alias.asname or alias.name, absolute)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _store(scope, target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                _store(scope, target, value)
            case ast.NamedExpr(target=target, value=value):
                owner = scope
                while isinstance(owner.node, _COMPREHENSIONS) and owner.parent is not None:
                    owner = owner.parent
                _store(owner, target, value)
            case ast.For(target=target, iter=items) | ast.AsyncFor(target=target, iter=items):
                _store(scope, target, items if isinstance(items, ast.Tuple | ast.List | ast.Set) else None)
            case ast.comprehension(target=target, iter=items):
                _store(scope, target, items if isinstance(items, ast.Tuple | ast.List | ast.Set) else None)
            case ast.withitem(optional_vars=ast.expr() as target):
                _store(scope, target, None)
            case ast.ExceptHandler(name=str() as name):
                _add(scope, name, None)
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                _add(scope, name, None)
            case ast.Global(names=names):
                scope.outer.update(dict.fromkeys(names, True))
            case ast.Nonlocal(names=names):
                scope.outer.update(dict.fromkeys(names, False))
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                _add(scope, name, None)
        if isinstance(node, _FUNCTIONS):
            _parameters(node.args, inner)


def _parameters(arguments: ast.arguments, scope: _Scope) -> None:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[str, ast.expr | None] = dict(zip((a.arg for a in reversed(plain)), reversed(arguments.defaults)))
    defaults |= {a.arg: value for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults)}
    more = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    for argument in (*plain, *arguments.kwonlyargs, *more):
        _add(scope, argument.arg, defaults.get(argument.arg))


def _store(scope: _Scope, target: ast.AST, value: ast.expr | None) -> None:
    """Bind the names of a target. Unpacked values are known only if both sides have equally many items."""
    pending = [(target, value)]
    while pending:
        one, given = pending.pop()
        if isinstance(one, ast.Name):
            _add(scope, one.id, given)
        elif isinstance(one, ast.Starred):
            pending.append((one.value, None))
        elif isinstance(one, ast.Tuple | ast.List):
            items = given.elts if isinstance(given, ast.Tuple | ast.List) else []
            pending += zip(one.elts, items if len(items) == len(one.elts) else [None] * len(one.elts))


def _add(scope: _Scope, name: str, value: str | ast.expr | None) -> None:
    scope.names.setdefault(name, []).append(value)


_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"[ \t\f]*(?:#.*)?")
_SAFE = ("utf-8", "utf8", "latin-1", "latin1", "iso-8859-1", "iso8859-1", "iso-latin-1", "ascii", "us-ascii")
"""Encodings that the interpreter decodes itself. Other names are looked up in a registry to which code under test can
write, so the text that the host reads may differ from the text that the box runs."""


class UnreadableError(Exception):
    """The source cannot be parsed or analysed; the message continues "the file ...". ``elsewhere``: another interpreter
    may be able to parse it."""

    def __init__(self, message: str, *, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


def declared_encoding(data: bytes) -> str:
    """Return the encoding named by a ``coding`` line, as written; ``utf-8`` without such a line."""
    text = data[:4096].replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # the interpreter accepts all three line endings
    first, _, rest = text.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    second = rest.partition(b"\n")[0]
    found = _COOKIE.match(first) or (_COOKIE.match(second) if _BLANK.fullmatch(first) else None)
    return found[1].decode("ascii") if found else "utf-8"


def is_safe(encoding: str) -> bool:
    """Return whether code under test is unable to change how this encoding is decoded."""
    name = encoding.lower().replace("_", "-")
    return name in _SAFE or name.startswith(("utf-8-", "latin-1-", "iso-8859-1-", "iso-latin-1-"))


def parse(data: bytes) -> ast.Module:
    """Parse a source. Raises UnreadableError. Unsafe encodings are decoded too; check them with ``is_safe``."""
    if b"\0" in data:
        raise UnreadableError("contains null bytes")
    try:
        return parse_python(data)
    except (RecursionError, MemoryError):
        raise UnreadableError("is nested too deeply to be read") from None
    except (SyntaxError, ValueError, LookupError) as error:
        why = getattr(error, "msg", None) or str(error)
        version = ".".join(map(str, sys.version_info[:2]))
        raise UnreadableError(f"cannot be parsed by Python {version}: {why}", elsewhere=True) from None
