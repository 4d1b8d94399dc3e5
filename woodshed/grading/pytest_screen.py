"""Static screen of a submission for the ``pytest`` grader: refuses code that manipulates the test run.

Tests and submission share a process. The screen refuses constructs that no library code needs, judged by what names
refer to: internals of the test framework, signs that a test is running, objects that equal everything, expected values
read from the caller's frame or found by a search of the memory. Other effects on the process (exit, exec, frames,
signals, ctypes) are allowed: the runner and the held-out values notice when they decide a result. A construct that the
starting file or the reference solution has is always allowed.

The screen is a heuristic, one layer of several. It refuses files that cannot be parsed; those that only the box's
interpreter can parse are screened there, so it uses the standard library only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from .python_names import Names, UnreadableError, declared_encoding, is_safe, parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INSIDES = frozenset(["_pytest"])
_PUBLIC = _words(
    "pytest.main pytest.raises pytest.warns pytest.deprecated_call pytest.fixture pytest.mark pytest.param pytest.skip "
    "pytest.importorskip pytest.fail pytest.xfail pytest.ExitCode pluggy.PluginManager pluggy.HookspecMarker "
    "pluggy.HookimplMarker"
)
"""Names used by libraries that offer tests or plugins of their own; none of them changes a test result."""
_REFUSED = _words(
    "gc.get_objects unittest.mock.ANY mock.ANY builtins.woodshed_seen builtins.woodshed_step builtins.woodshed_truth"
)
_FRAMEWORKS = ("pytest", "_pytest", "pluggy", "unittest")
_CALLER = _words("inspect.stack inspect.getouterframes sys._current_frames")
_OWN_NAMES = frozenset(["self", "cls"])
_SETTERS = frozenset(["builtins.setattr", "builtins.delattr"])
_SIGN = re.compile(r"PYTEST_[A-Z_]+|woodshed_(?:seen|step|truth)|/proc/self/mem")
_COMPILED = (b"\x7fELF", b"MZ", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"PK\x03\x04")
_NOT_PYTHON = (".so", ".pyd", ".dll", ".dylib")


def screen(submission: Mapping[str, bytes], *known: Mapping[str, bytes]) -> list[str]:
    """List constructs of the submitted Python files that none of the ``known`` versions of the same file uses.

    Each entry reads ``path: construct``; the list is empty for an unsuspicious submission. Files that cannot be parsed
    are entries too; ``elsewhere`` names those that another interpreter might parse.
    """
    found: list[str] = []
    own = frozenset(part.removesuffix(".py") for files in known for path in files for part in path.split("/"))
    for path, data in sorted(submission.items()):
        before = [version[path] for version in known if path in version]
        if path.endswith(".py"):
            suspicious = _constructs(data, own).difference(*(_constructs(v, own, known=True) for v in before))
        else:
            suspicious = _compiled(path, data)
        found += [f"{path}: {construct}" for construct in sorted(suspicious)]
    return found


def elsewhere(submission: Mapping[str, bytes]) -> list[str]:
    """List the Python files that this interpreter cannot parse but another one might."""
    return sorted(path for path, data in submission.items() if path.endswith(".py") and _is_for_another(data))


def _is_for_another(data: bytes) -> bool:
    try:
        parse(data)
    except UnreadableError as error:
        return error.elsewhere and is_safe(declared_encoding(data))
    return False


def _compiled(path: str, data: bytes) -> frozenset[str]:
    """Report compiled modules and archives: they can be imported like source but not screened."""
    is_code = path.endswith(_NOT_PYTHON) or data.startswith(_COMPILED)
    return frozenset({"is compiled code or an archive, from which modules can be imported"} if is_code else ())


@lru_cache(maxsize=32)  # the files of a task are read again for every submission
def _constructs(data: bytes, own: frozenset[str], known: bool = False) -> frozenset[str]:
    encoding = declared_encoding(data)
    found = set() if is_safe(encoding) else {f"declares the encoding {encoding!r}; write it in UTF-8"}
    try:
        return frozenset(found).union(_Suspicions(Names(parse(data)), own).found())
    except UnreadableError as error:
        return frozenset(found if known or found else {str(error)})


class _Suspicions:
    """``own``: names of the task's folders and modules, which may have a plugin's name."""

    def __init__(self, names: Names, own: frozenset[str]) -> None:
        self.names, self.own = names, own
        self.prose = {
            id(node.body[0].value)
            for node in names.nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }

    def found(self) -> Iterator[str]:
        for module in self.names.imports:
            if self._is_plugin(module) or _is_inside(module) or module in _REFUSED:
                yield f"import {module}"
        for node in self.names.nodes:
            yield from self._at(node)

    def _at(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Attribute(ctx=ast.Load()) | ast.Call() | ast.Subscript(ctx=ast.Load()):
                yield from self._reached(node)
                yield from self._read_of_caller(node)
            case ast.Name(ctx=ast.Load()):
                yield from self._reached(node)
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield from self._changed(node.value, node.attr)
            case ast.Constant(value=str() as text) if id(node) not in self.prose:
                if match := _SIGN.fullmatch(text):
                    yield f"string {match[0]!r}"
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                texts = [t for t in self.names.texts(left) if t in _FRAMEWORKS and t != "unittest"]
                if texts and "sys.modules" in self.names.origins(right):
                    yield f"asks whether {texts[0]} is loaded"
                yield from self._asked_of_caller(self.names.texts(left), right)
        yield from self._equal_to_all(node)

    def _reached(self, node: ast.expr) -> Iterator[str]:
        """Yield uses of refused names and of framework internals."""
        for origin in self.names.origins(node):
            if origin in _REFUSED or (_is_inside(origin) and origin.partition(".")[0] not in self.own):
                yield f"use of {origin}"
        if isinstance(node, ast.Call) and _SETTERS.intersection(self.names.origins(node.func)) and len(node.args) > 1:
            yield from self._changed(node.args[0], next(iter(self.names.texts(node.args[1])), "..."))

    def _changed(self, owner: ast.expr, name: str) -> Iterator[str]:
        for origin in self.names.origins(owner):
            if origin.partition(".")[0] in _FRAMEWORKS and origin.partition(".")[0] not in self.own:
                yield f"changes {origin}.{name}"

    def _is_plugin(self, module: str) -> bool:
        """Return whether a module is a plugin (``pytest_asyncio``, ``anyio.pytest_plugin``), which has the runner."""
        root, *rest = module.split(".")
        return root not in self.own and root != "pytest" and any("pytest" in part for part in (root, *rest))

    def _read_of_caller(self, node: ast.expr) -> Iterator[str]:
        """Yield reads of a caller's variable by name, or of the caller's frame by a name computed at run time."""
        match node:
            case ast.Subscript(value=table, slice=key):
                yield from self._asked_of_caller(self.names.texts(key), table)
            case ast.Call(func=ast.Attribute(value=table, attr="get" | "pop" | "__getitem__"), args=[key, *_]):
                yield from self._asked_of_caller(self.names.texts(key), table)
            case ast.Call(func=function, args=[frame, name, *_]) if "builtins.getattr" in self.names.origins(function):
                if not self.names.texts(name) and self._is_caller(frame):
                    yield "reads the caller's frame by a name made at run time"

    def _asked_of_caller(self, keys: list[str], table: ast.expr) -> Iterator[str]:
        plain = [k for k in keys if k not in _OWN_NAMES and not k.startswith("__")]
        if plain and any(self._is_locals(value) for value in self.names.values(table)):
            yield f"reads {plain[0]!r} from the variables of the caller"

    def _is_locals(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(value=frame, attr="f_locals"):
                return self._is_caller(frame)
            case ast.Call(func=function, args=[frame, name, *_]) if "builtins.getattr" in self.names.origins(function):
                return "f_locals" in self.names.texts(name) and self._is_caller(frame)
        return False

    def _is_caller(self, node: ast.expr) -> bool:
        """Return whether an expression is the frame of a caller."""
        pending, seen = self.names.values(node), set[ast.expr]()
        while pending:
            value = pending.pop()
            if value in seen:  # a name that is bound to parts of itself, over and over
                continue
            seen.add(value)
            match value:
                case ast.Attribute(attr="f_back"):
                    return True
                case ast.Call(func=function, args=arguments):
                    origins = self.names.origins(function)
                    first = arguments[0] if arguments else None
                    own = isinstance(first, ast.Constant) and first.value == 0
                    if "sys._getframe" in origins and first is not None and not own:
                        return True
                    if _CALLER.intersection(origins):
                        return True
                    if "builtins.getattr" in origins and len(arguments) > 1 and first is not None:
                        if "f_back" in self.names.texts(arguments[1]):
                            return True
                        pending += self.names.values(first)
                case ast.Attribute(value=inner) | ast.Subscript(value=inner):
                    pending += self.names.values(inner)
        return False

    def _equal_to_all(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from self._agrees(name, node)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                yield from self._agrees(name, value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield from self._agrees(key.value, value)
            case ast.Call(args=[_, ast.Constant(value=str() as name), value]):
                yield from self._agrees(name, value)

    def _agrees(self, name: str, value: ast.AST) -> Iterator[str]:
        if name in _EQUALITY:
            answer, made = _EQUALITY[name]
            if _answers(value) == {answer}:
                yield made


_ALL = "an object that equals everything"
_EVERY = "a class that everything belongs to"
_EQUALITY = {
    "__eq__": (True, _ALL),
    "__ne__": (False, _ALL),
    "__instancecheck__": (True, _EVERY),
    "__subclasscheck__": (True, _EVERY),
}
"""Comparison method -> the answer that it must not always give, and what a class with such a method is."""


def _answers(node: ast.AST) -> set[object]:
    """Return the truth values of a function's results; any other result is represented by the function itself."""
    if isinstance(node, ast.Lambda):
        return {_truth(node.body, node)}
    if not isinstance(node, ast.FunctionDef):
        return {node}
    found: set[object] = {node} if _ends_open(node.body) else set()
    pending: list[ast.AST] = [*node.body]
    while pending:
        one = pending.pop()
        if isinstance(one, ast.Return):
            found.add(_truth(one.value, node))
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(one)
    return found


def _ends_open(body: list[ast.stmt]) -> bool:
    """Return whether a function with this body may reach its end without a ``return``, and so return None."""
    while body:
        match body[-1]:
            case ast.Return() | ast.Raise():
                return False
            case ast.If(test=ast.Constant(value=value), body=body) if value:
                pass
            case ast.With(body=body) | ast.Try(body=body):
                pass
            case _:
                return True
    return True


def _truth(value: ast.expr | None, otherwise: object) -> object:
    negated = False
    while isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):  # nested deeper than any stack
        value, negated = value.operand, not negated
    return bool(value.value) != negated if isinstance(value, ast.Constant) and value.value is not ... else otherwise


def _is_inside(origin: str) -> bool:
    """Return whether a dotted name belongs to the test framework but not to its public functions."""
    root, _, rest = origin.partition(".")
    if root in _INSIDES:
        return True
    if root not in ("pytest", "pluggy") or not rest:
        return False
    return f"{root}.{rest.partition('.')[0]}" not in _PUBLIC
