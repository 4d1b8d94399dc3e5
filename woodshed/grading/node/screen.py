"""Static screen of a submission for the ``node`` grader: finds constructs that no honest change to library code needs.

As with pytest (``pytest_screen.py``), tests and submission share a process. A construct that the starting file or the
reference solution already uses is always allowed. The screen is a heuristic, one layer of several: names composed at
run time are left to the runner's guard and the held-out values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .syntax import SUFFIXES, Place, parse, root_name, string_value, text, with_own_names, words

if TYPE_CHECKING:
    from tree_sitter import Node


_MODULES = words(
    "assert assert/strict test mocha tape chai expect.js should sinon fs fs/promises vm v8 inspector "
    "inspector/promises worker_threads child_process cluster module repl process async_hooks diagnostics_channel "
    "trace_events wasi net http https dgram os timers"
)
_PROPERTIES = words(
    "exit reallyExit kill binding _linkedBinding dlopen mainModule getBuiltinModule _load _cache _extensions "
    "_resolveFilename createRequire setPrototypeOf __proto__ __defineGetter__ __defineSetter__ __lookupGetter__ "
    "runInThisContext prepareStackTrace getOwnPropertyDescriptors stdout stderr exitCode argv execArgv caller callee "
    "toPrimitive species hasInstance"
)
_PROCESS = words("arch cwd emitWarning env hrtime memoryUsage nextTick pid platform uptime version versions")
"""Properties of ``process`` that any library may read."""
_OF_PROCESS = words("exit kill binding stdout stderr exitCode argv execArgv _cache")
"""Names that are suspicious only as parts of ``process`` and ``require``, which no object of one's own is."""
_SHADOWED = words(
    "Function Proxy globalThis global process WebAssembly SharedArrayBuffer woodshed_seen woodshed_truth "
    "woodshed_step woodshed_reporter describe beforeEach afterEach"
)
_NAMES = _SHADOWED | {"eval", "with"}
_DEFINED = words("valueOf toJSON toString then constructor")
_OF_CLASSES = words("valueOf toJSON toString constructor")
"""Methods that any class may have: a comparison that calls them does not tell them the other value."""
_INTRINSICS = words(
    "Object Function Array String Number Boolean Symbol BigInt Error TypeError RegExp Date Map Set Promise Reflect "
    "JSON Math Buffer console"
)
_STRINGS = ("/proc/", "node_modules", "mocha", "node:", "constructor", "prototype", "__proto__")
_COMPARISONS = words("=== !== == !=")
_LOOKUPS = words("includes indexOf")
_ASSIGNMENTS = words("assignment_expression augmented_assignment_expression")
_NAME_FIELDS = {"pair": "key", "method_definition": "name", "field_definition": "property"}
_LONGEST, _DEEPEST = 80, 8
"""Bytes of an expression whose text is read, and members of members; hostile code nests them without end."""


def screen(submission: Mapping[str, bytes], *known: Mapping[str, bytes]) -> list[str]:
    """List constructs of the submitted JavaScript files that none of the ``known`` versions of the same file uses.

    Each entry reads ``path: construct``; the list is empty for an unsuspicious submission.
    """
    found: list[str] = []
    for path, data in sorted(submission.items()):
        if not path.endswith(SUFFIXES):
            continue
        suspicious = _constructs(data)
        for version in known:
            if path in version:
                suspicious -= _constructs(version[path])
        found += [f"{path}: {construct}" for construct in sorted(suspicious)]
    return found


def _constructs(data: bytes) -> set[str]:
    root = parse(data)
    # Node may run code that this parser cannot read.
    return {"is no JavaScript that can be read"} if root is None else set(_suspicious(root))


def _suspicious(root: Node) -> Iterator[str]:
    for place in with_own_names(root, _SHADOWED):
        node, kind = place.node, place.node.type
        if kind == "call_expression":
            yield from _loaded(node)
        elif kind == "import_statement":
            yield from _module(string_value(node.child_by_field_name("source")))
        elif kind in ("property_identifier", "private_property_identifier"):
            name = text(node)
            if name in _PROPERTIES:
                if not (name in _OF_PROCESS and _is_own(place)) and not _is_no_prototype(place):
                    yield f".{name}"
            elif name in _DEFINED and _is_defined(place) and not (name in _OF_CLASSES and _is_of_class(place)):
                yield f"defines {name}"
        elif kind in ("identifier", "shorthand_property_identifier"):
            name = text(node)
            if name in _NAMES and name not in place.own and not (name == "process" and _is_common(place)):
                yield name
        elif kind == "with_statement":
            yield "with"
        elif kind == "string":
            if not _is_compared(place):
                yield from _string(text(node))
        elif kind in _ASSIGNMENTS:
            yield from _assigned(node.child_by_field_name("left"))


def _loaded(call: Node) -> Iterator[str]:
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function is None or arguments is None:
        return
    first = arguments.named_children[0] if arguments.named_children else None
    if function.type == "import" or (function.type == "identifier" and text(function) == "require"):
        name = string_value(first)
        yield from [f"{text(function)} of a computed name"] if name is None else _module(name)
    elif function.type == "member_expression" and root_name(function) == "Object":
        called = text(function.child_by_field_name("property"))
        if (called.startswith("def") or called == "assign") and (owner := root_name(first)) in _INTRINSICS:
            yield f"{'assigns to' if called == 'assign' else 'defines properties of'} {owner}"


def _module(name: str | None) -> Iterator[str]:
    if name is not None and name.removeprefix("node:") in _MODULES:
        yield f"loads {name.removeprefix('node:')}"


def _string(literal: str) -> Iterator[str]:
    if " " not in literal:
        yield from (f"string {part!r}" for part in _STRINGS if part in literal)
        if literal[1:-1] in _PROPERTIES:
            yield f"string {literal}"


def _is_compared(string: Place) -> bool:
    """Return whether a text is only compared with, as in a check against prototype pollution: it reaches nothing."""
    above = string.above
    if above is None:
        return False
    if above.node.type == "binary_expression":
        return text(above.node.child_by_field_name("operator")) in _COMPARISONS
    if above.node.type == "switch_case":
        return above.node.child_by_field_name("value") == string.node
    member, call = above.parent, above.above.parent if above.above is not None else None
    if above.node.type != "array" or member is None or member.type != "member_expression":
        return False
    is_called = call is not None and call.child_by_field_name("function") == member
    return is_called and text(member.child_by_field_name("property")) in _LOOKUPS


def _is_common(process: Place) -> bool:
    """Return whether of ``process`` only its existence or a property is read that any library may use."""
    member = process.above
    if member is None:
        return False
    if member.node.type == "unary_expression":
        return text(member.node.child_by_field_name("operator")) == "typeof"
    if member.node.type != "member_expression" or member.node.child_by_field_name("object") != process.node:
        return False
    if text(member.node.child_by_field_name("property")) not in _PROCESS:
        return False
    for _ in range(_DEEPEST):
        above = member.above
        if above is None or above.node.child_by_field_name("object") != member.node:
            return above is None or above.node.type not in _ASSIGNMENTS or above.node.children[0] != member.node
        member = above  # process.env.NAME
    return False


def _is_own(name: Place) -> bool:
    """Return whether a property is one of ``this``, or of a class or an object that is written here."""
    parent = name.parent
    if parent is not None and parent.type == "member_expression":
        owner = parent.child_by_field_name("object")
        return owner is not None and owner.type == "this"
    return _is_defined(name)


def _is_no_prototype(name: Place) -> bool:
    """Return whether this is ``__proto__: null`` in an object."""
    value = name.parent.child_by_field_name("value") if name.parent is not None and name.parent.type == "pair" else None
    return text(name.node) == "__proto__" and value is not None and value.type == "null"


def _is_defined(name: Place) -> bool:
    """Return whether a property is defined or assigned here, in any form."""
    parent = name.parent
    if parent is None:
        return False
    if parent.type == "member_expression":
        above = name.above.parent if name.above is not None else None
        return above is not None and above.type == "assignment_expression" and above.children[0] == parent
    field = _NAME_FIELDS.get(parent.type)
    return field is not None and parent.child_by_field_name(field) == name.node


def _is_of_class(name: Place) -> bool:
    """Return whether a property that is defined here is a method of a class or of a prototype of one's own."""
    above = name.above
    if above is None:
        return False
    if above.node.type == "method_definition":
        return above.parent is not None and above.parent.type == "class_body"
    owner = above.node.child_by_field_name("object") if above.node.type == "member_expression" else None
    if owner is None or owner.type != "member_expression":
        return False
    type_ = owner.child_by_field_name("object")
    is_prototype = text(owner.child_by_field_name("property")) == "prototype"
    return is_prototype and type_ is not None and type_.type == "identifier" and text(type_) not in _INTRINSICS


def _assigned(target: Node | None) -> Iterator[str]:
    if target is None or target.type not in ("member_expression", "subscript_expression"):
        return
    owner = target.child_by_field_name("object")
    if owner is None:
        return
    root = root_name(owner)
    whole = text(owner) if owner.end_byte - owner.start_byte < _LONGEST else ""
    if root in _INTRINSICS or whole in ("require", "require.cache", "module.constructor"):
        yield f"changes {whole or root}"
