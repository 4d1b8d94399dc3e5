"""JavaScript tests with other inputs: constants changed, assertions turned into records (see ``pytest_alter.py``).

Where a test compared values, it passes them to ``woodshed_seen`` (``values.js``) and continues; where it only asked
whether one is true, to ``woodshed_truth``. ``woodshed_step`` records results that a call there passes to another call.
Titles of tests, names of modules and properties, indices, template strings and plans stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any

from woodshed.grading.other_constants import SAME, Kind, chosen, other_digit, other_letter, other_number
from woodshed.grading.reshape import reordered, reshaped

from .syntax import SUFFIXES, parse, rewrite, string_value, text, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node


_METHODS = words(
    "equal equals isEqual is same strictEqual strictEquals deepEqual deepEquals isEquivalent deepStrictEqual eq eql "
    "looseEqual deepLooseEqual notEqual notEquals notStrictEqual notDeepEqual notDeepStrictEqual notSame not ok true "
    "false notOk assert isTrue isFalse isNull isUndefined isDefined isNotNull isOk isNotOk include notInclude lengthOf "
    "match notMatch typeOf isArray isObject isString isNumber property sameMembers sameDeepMembers instanceOf closeTo "
    "exactly truthy falsy"
)
_FUNCTIONS = words("assert ok equal deepEqual strictEqual deepStrictEqual notEqual notStrictEqual notDeepEqual")
_TRUTHS = words("assert ok notOk isOk isNotOk truthy falsy toBeTruthy toBeFalsy")
_TRUTHS_OF_TAPE = _TRUTHS | words("true false")
_HOLDERS = words("assert chai.assert t test") | {""}
_RAISES = re.compile(r"(?i)throw|reject|raise")
_CONVERTERS = words("Array.from String Number JSON.parse")
_NORMALISERS = words("sort trim join split toLowerCase toUpperCase toString")
_TITLED = words("describe context suite it specify test only skip todo before after beforeEach afterEach")
_BY_NAME = _TITLED | words("require import plan timeout setTimeout retries slow")
_CONSTANTS = words("number string true false null undefined regex")
_WHOLE = re.compile(r"0|[1-9]\d{0,14}")
_RECORDED = re.compile(r"\bwoodshed_(?:seen|truth)\(")
_IMPORTED = re.compile(r"""\b(?:require\(|import\(|import|from)\s*['"](\.{1,2}/[^'"]+)['"]""")
_NAMED = re.compile(r"[\w$]+(?:\.[\w$]+)*")
_TAPE = re.compile(r"""['"]tape['"]""")


def alter(source: str, kind: Kind, seed: str = "", helpers: frozenset[str] = frozenset()) -> str | None:
    """Alter a source. None if it has no constant of that kind to change or cannot be parsed.

    ``shapes`` are drawn from ``seed``. In the other kinds, numbers keep their sign and 0 stays 0; strings keep their
    length and change one letter. A string of digits and signs counts as a number: one digit changes.
    """
    return _altered(source, kind, seed, helper=False)


def _altered(source: str, kind: Kind, seed: str, *, helper: bool) -> str | None:
    root = parse(source.encode())
    if root is None:
        return None
    changer = _Alter(kind, seed, counts=_TAPE.search(source) is not None, helper=helper)
    try:
        altered = rewrite(root, changer.replaced)
    except RecursionError:
        return None
    return altered if changer.changed or kind == SAME else None


def literals(source: str) -> dict[str, list[Any]]:
    """Return the values written in a source, under ``""``: strings, and whole numbers above 1 of at most 15 digits."""
    root = parse(source.encode())
    found: list[Any] = []
    for node in walk(root) if root is not None else ():
        if (value := string_value(node)) is not None:
            found.append(value)
        elif node.type == "number" and re.fullmatch(r"[2-9]|[1-9]\d{1,14}", text(node)):
            found.append(int(text(node)))
    return {"": found}


def other(value: Any, kind: Kind, seed: str) -> Any:
    """Return the replacement of a string or number in tests altered in that kind (for ``some``: if it is chosen)."""
    if type(value) is str:
        return _other_source("string", f"'{value}'", kind, seed)[1:-1]
    return int(_other_source("number", str(value), kind, seed)) if type(value) is int else value


def imported(name: str, source: str, files: Collection[str]) -> set[str]:
    """Return those of ``files`` (paths) that the test file ``name`` imports by a relative path."""
    found = set()
    for path in _IMPORTED.findall(source):
        place = normpath(join(dirname(name), path))
        tried = (place, *(f"{place}{part}{type_}" for part in ("", "/index") for type_ in SUFFIXES))
        found |= {next((file for file in tried if file in files), "")}
    return found - {""}


@lru_cache(maxsize=256)
def recording(source: str, helpers: frozenset[str] = frozenset()) -> str | None:
    """Turn the assertions of a file that tests import into records and keep its constants. None if it has none."""
    altered = _altered(source, SAME, "", helper=True)
    return altered if altered is not None and _RECORDED.search(altered) else None


class _Alter:
    def __init__(self, kind: Kind, seed: str, *, counts: bool, helper: bool) -> None:
        self.kind, self.seed, self.counts, self.helper, self.changed = kind, seed, counts, helper, False
        self._constants = 0
        self._noting = False

    def replaced(self, node: Node) -> str | None:
        if node.type == "template_string":
            return text(node)
        if node.type in ("number", "string"):
            return self._constant(node)
        if node.type == "array" and self.kind == "shapes":
            return self._array(node)
        if node.type == "expression_statement":
            record = self._record(node.named_children[0])
            return record and f"{record};"
        if self._noting and node.type == "call_expression" and _is_argument(node):
            return f"woodshed_step({self._inner(node)})"
        return self._record(node) if _is_result(node) and not _is_used(node) else None

    def _inner(self, node: Node) -> str:
        """Rewrite a node without recording its own result."""
        return rewrite(node, lambda found: None if found == node else self.replaced(found))

    def _array(self, node: Node) -> str | None:
        """Return an array of numbers, or of strings, in another order; None for any other array."""
        elements = [child for child in node.named_children if child.type != "comment"]
        if len(elements) < 2 or not all(child.type in ("number", "string") for child in elements):
            return None
        places = reordered([text(child) for child in elements], self.seed)
        if len({child.type for child in elements}) > 1:
            return None
        self.changed = self.changed or places != list(range(len(elements)))
        return f"[{', '.join(self._constant(elements[place]) for place in places)}]"

    def _constant(self, node: Node) -> str:
        old = text(node)
        if _names_something(node):
            return old
        new = self._other(node.type, old)
        if new == old:
            return old
        self.changed = True
        return new

    def _other(self, type_: str, old: str) -> str:
        self._constants += 1
        if self.kind == "some" and not chosen(self._constants):
            return old
        return _other_source(type_, old, self.kind, self.seed)

    def _record(self, expression: Node) -> str | None:
        """Return a record in place of an assertion; None for any other expression."""
        values, holder = _compared(expression)
        if not values:
            return None
        record = "woodshed_seen"
        if _last_name(expression) in (_TRUTHS_OF_TAPE if self.counts else _TRUTHS):
            record, values = "woodshed_truth", values[:1]  # the second is a message
        computed = [value for value in values if not _literal(value)]
        # beside a computed value, a bare name is usually the value that the test expects
        told = [v for v in computed if v.type != "identifier"] if any(map(_calls, computed)) else computed
        outer, self._noting = self._noting, True
        noted = ", ".join(
            self._inner(value) if value.type == "call_expression" else rewrite(value, self.replaced) for value in told
        )
        self._noting = outer
        # A tape test with a plan counts its assertions, so one is made in place of the removed one.
        # A helper gets the test as an argument, so its framework is not known here.
        made = f" && {holder}.pass()" if self.counts else f" && (!{holder}.pass || {holder}.pass())"
        counted = (self.counts or self.helper) and _NAMED.fullmatch(holder)
        return f"{record}({noted})" + (made if counted else "")


def _other_source(type_: str, old: str, kind: Kind, seed: str) -> str:
    """Return the source of the replacement of a constant."""
    if kind == SAME:
        return old
    if kind == "shapes":
        if type_ == "string":
            return old if "\\" in old else f"{old[0]}{reshaped(old[1:-1], seed)}{old[-1]}"
        return str(abs(reshaped(int(old), seed))) if _WHOLE.fullmatch(old) else old
    if type_ == "number":
        return old if kind == "strings" else _number(old)
    new = other_letter(old) if kind != "numbers" else old
    return other_digit(old) if new == old and kind != "strings" else new


def _is_argument(node: Node) -> bool:
    """Return whether another call uses the result of a call: of ``f`` in ``g(f(x))`` and in ``f(x).g()``. A conversion
    does not count; the test sees only what it gives."""
    above = node.parent
    if above is None:
        return False
    if above.type == "arguments":
        return above.parent is None or text(above.parent.child_by_field_name("function")) not in _CONVERTERS
    if above.type != "member_expression" or above.child_by_field_name("object") != node:
        return False
    return text(above.child_by_field_name("property")) not in _NORMALISERS


def _is_result(node: Node) -> bool:
    """Return whether an expression is what a function returns: ``() => assert.equal(a, b)``."""
    above = node.parent
    if above is None or node.type not in ("call_expression", "member_expression"):
        return False
    return above.type == "return_statement" or (
        above.type == "arrow_function" and above.child_by_field_name("body") == node
    )


def _is_used(result: Node) -> bool:
    """Return whether a result is that of ``text.match(/a/)`` or ``Array.isArray(x)``, not of an assertion: most have
    two values to compare."""
    values, holder = _compared(result)
    return len(values) == 1 and holder not in _HOLDERS and _last_name(result) not in _TRUTHS_OF_TAPE


def _compared(expression: Node) -> tuple[list[Node], str]:
    """Return the expressions that an assertion compares, and the object whose method it is; none for other code."""
    function = expression.child_by_field_name("function") if expression.type == "call_expression" else None
    outer = _arguments(expression)
    if function is not None and function.type == "identifier":
        return (outer, "") if text(function) in _FUNCTIONS else ([], "")
    chain = expression
    names: list[str] = []
    while chain.type in ("member_expression", "call_expression"):
        inner = chain.child_by_field_name("function")
        if chain.type == "call_expression" and inner is not None:
            if text(inner) in ("expect", "should", "assert"):
                raises = any(map(_RAISES.search, names))
                return ([], "") if raises else ([*_arguments(chain), *(outer if chain != expression else [])], "")
            chain = inner
            continue
        name, owner = text(chain.child_by_field_name("property")), chain.child_by_field_name("object")
        names.append(name)
        if owner is None:
            break
        if name == "should":
            return ([], "") if any(map(_RAISES.search, names)) else ([owner, *outer], "")
        chain = owner
    if function is None or function.type != "member_expression" or names[:1] == [] or names[0] not in _METHODS:
        return [], ""
    return outer, text(function.child_by_field_name("object"))


def _last_name(assertion: Node) -> str:
    """Return ``ok`` of ``ok(x)``, ``t.ok(x)`` and ``expect(x).to.be.ok``."""
    function = assertion.child_by_field_name("function") if assertion.type == "call_expression" else assertion
    last = function.child_by_field_name("property") if function is not None else None
    return text(last or function)


def _arguments(call: Node) -> list[Node]:
    found = call.child_by_field_name("arguments")
    if found is None or found.type != "arguments":
        return []
    return [n for n in found.named_children if n.type != "comment"]


def _names_something(node: Node) -> bool:
    """Return whether a constant is a key, an index, a directive, a title, a module, or the name of a type."""
    parent = node.parent
    if parent is None:
        return True
    if parent.type in ("expression_statement", "import_statement", "export_statement", "subscript_expression"):
        return True
    if parent.type in ("pair", "computed_property_name", "method_definition"):
        return parent.children[0] == node or parent.type != "pair"
    if parent.type == "binary_expression":
        return any(c.type == "unary_expression" and text(c).startswith("typeof") for c in parent.children)
    if parent.type == "arguments" and parent.parent is not None:
        function = parent.parent.child_by_field_name("function")
        last = text(function).rpartition(".")[2].rpartition("\n")[2].strip()
        return last in _BY_NAME and parent.named_children[0] == node
    return False


def _literal(node: Node) -> bool:
    if node.type in ("array", "object", "pair", "unary_expression"):
        return all(_literal(child) for child in node.named_children)
    return node.type in _CONSTANTS or node.type in (
        "property_identifier",
        "arrow_function",
        "function_expression",
        "spread_element",
        "comment",
    )


def _calls(node: Node) -> bool:
    return node.type == "call_expression" or any(map(_calls, node.named_children))


def _number(old: str) -> str:
    if re.fullmatch(r"\d{1,15}", old) and not re.match(r"0\d", old):
        return str(other_number(int(old)))
    if re.fullmatch(r"\d+\.\d+", old):
        return repr(float(old) * 1.25)
    return old
