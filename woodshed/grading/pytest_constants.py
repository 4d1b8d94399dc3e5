"""Values of a test file in which the code under test has no part: constants, and what Python alone computes from them.

Any submission has such values, so an altered test (``pytest_alter.py``) does not record them. That includes what
``pytest.approx`` makes of them, and functions of the file that use nothing else: a slow version of the code under test.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator

from woodshed.record.python_source import is_literal


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PURE = _words(
    "abs all any ascii bin bool bytearray bytes chr complex dict divmod enumerate filter float format frozenset hex "
    "int isinstance iter len list map max min next oct ord pow range repr reversed round set slice sorted str sum "
    "tuple type zip"
)
_PURE_MODULES = _words(
    "base64 binascii bisect collections collections.abc copy datetime decimal fractions functools hashlib heapq html "
    "ipaddress itertools json math operator pathlib re statistics string struct textwrap typing unicodedata "
    "urllib.parse zlib"
)
"""Functions and modules of Python whose results depend on their arguments only."""
_LOOKS = _words(
    "absolute chmod cwd exists expanduser glob hardlink_to home is_block_device is_char_device is_dir is_fifo is_file "
    "is_mount is_socket is_symlink iterdir lstat mkdir open owner read_bytes read_text readlink rename resolve rglob "
    "rmdir samefile stat symlink_to touch unlink walk write_bytes write_text"
)
"""Methods of paths whose results depend on the files there, which code under test may write."""
_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
_APPROX = "pytest.approx"


def is_given(value: ast.expr, known: Collection[str], parameters: Collection[str]) -> bool:
    """Return whether the code under test had no part in a value. ``known``: names with constants and pure functions;
    ``parameters``: those among them that a test or a helper takes as arguments."""
    inner = [*ast.walk(value)]
    # A parameter may be a fixture, which holds code under test.
    used = (
        n.value if isinstance(n, ast.Attribute) else n.func for n in inner if isinstance(n, ast.Attribute | ast.Call)
    )
    return _uses_only(known, inner) and not any(isinstance(n, ast.Name) and n.id in parameters for n in used)


def _uses_only(known: Collection[str], inner: Collection[ast.AST]) -> bool:
    """Return whether the nodes name nothing but what is ``known`` and what they bind themselves."""
    bound = {name for node in inner for name in binds(node)} | {n.arg for n in inner if isinstance(n, ast.arg)}
    approx = [
        n.value
        for n in inner
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and f"{n.value.id}.{n.attr}" == _APPROX
    ]
    named = (n for n in inner if isinstance(n, ast.Name) and not (n in approx and _APPROX in known))
    looks = any(isinstance(n, ast.Attribute) and n.attr in _LOOKS for n in inner)
    return not looks and all(n.id in known or n.id in bound for n in named)


def pure_names(tree: ast.Module) -> frozenset[str]:
    """Return names of a file whose results depend on their arguments only, without those that the file binds to
    anything else (``from funcy import all``): of Python, of its library, and of functions of the file."""
    found, others = {*_PURE, *_ERRORS}, set[str]()
    functions: dict[str, ast.stmt] = {}
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    pure = found if alias.name in _PURE_MODULES else others
                    pure.add(alias.asname or alias.name.partition(".")[0])
                    found |= {_APPROX} if alias.name == "pytest" and not alias.asname else set()
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for alias in aliases:
                    ours = not level and (module in _PURE_MODULES or f"{module}.{alias.name}" == _APPROX)
                    (found if ours else others).add(alias.asname or alias.name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if name in functions or id(node) not in top or not isinstance(node, ast.FunctionDef):
                    others.add(name)
                functions[name] = node
            case _:
                others.update(binds(node))
    if "*" in others:
        return frozenset()
    others |= functions.keys() & found
    known = constants(tree.body) | (found - others)
    candidates = {name: node for name, node in functions.items() if name not in others and not name.startswith("test")}
    pure_functions = set(candidates)
    while impure := {n for n in pure_functions if not _is_pure(candidates[n], known | pure_functions)}:
        pure_functions -= impure
    return frozenset(found - others | pure_functions)


def _is_pure(function: ast.stmt, known: Collection[str]) -> bool:
    inner = [*ast.walk(function)]
    elsewhere = ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal | ast.ClassDef | ast.Yield | ast.YieldFrom
    return not any(isinstance(node, elsewhere) for node in inner) and _uses_only(known, inner)


def constants(body: list[ast.stmt], known: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the ``known`` names that statements do not bind to anything else, and those that they only assign to
    literals, or bind in loops over literals or such names. Functions and classes within them are left out."""
    found, others = set(known), set[str]()
    for node in [*_statements(body)] * 2:  # again: what a loop goes over may be bound to something else below it
        match node:
            case ast.Assign(targets=targets, value=value):
                # code under test may fill an empty container
                given = is_literal(value) and ast.literal_eval(value) not in ([], {}, set())
                (found if given else others).update(*map(_stored, targets))
            case ast.For(target=target, iter=over) | ast.AsyncFor(target=target, iter=over):
                given = is_literal(over) or (isinstance(over, ast.Name) and over.id in found - others)
                (found if given else others).update(_stored(target))
            case _:
                others |= {name for part in _parts(node) for name in _stored(part)}
    return frozenset(found - others)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those nested in them, but for functions and classes."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for inner in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from _statements(inner.body)


def _parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that are no statements themselves."""
    return (part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt | ast.excepthandler))


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a part of a statement binds, without the variables of comprehensions."""
    inner = [*ast.walk(node)]
    own = {id(name) for part in inner if isinstance(part, ast.comprehension) for name in ast.walk(part.target)}
    return {name for part in inner if id(part) not in own for name in binds(part)}


def binds(node: ast.AST) -> tuple[str, ...]:
    """Return the name that one node of an assignment or of a pattern binds."""
    match node:
        case (
            ast.Name(id=str(name), ctx=ast.Store())
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            return (name,)
    return ()


def parametrized(test: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the parameters of a test whose values are literals in a ``parametrize`` decorator. With ``indirect``, a
    fixture makes something else of them."""
    found: set[str] = set()
    for node in test.decorator_list:
        match node:
            case ast.Call(ast.Attribute(attr="parametrize"), [names, values], keywords) if _are_literals(values):
                if not any(keyword.arg != "ids" for keyword in keywords):
                    each = names.elts if isinstance(names, ast.List | ast.Tuple) else [names]
                    texts = [one.value for one in each if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                    found.update(name.strip() for text in texts for name in text.split(","))
    return frozenset(found)


def _are_literals(values: ast.expr) -> bool:
    """Return whether a sequence holds only literals, or ``pytest.param`` of literals."""
    if not isinstance(values, ast.List | ast.Tuple):
        return False
    return all(
        all(map(is_literal, value.args))
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.param"
        else is_literal(value)
        for value in values.elts
    )
