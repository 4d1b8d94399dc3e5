"""Static screen of a submission for the ``node`` grader: finds constructs that no honest change to library code needs.

As with pytest (``pytest_screen.py``), tests and submission share a process. A construct that the starting file or the
reference solution already uses is always allowed. The screen is a heuristic, one layer of several: names composed at
run time are left to the runner's guard and the held-out values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .syntax import SUFFIXES, parse, string_value, text, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node


_MODULES = words(
    "assert assert/strict test mocha tape chai expect.js should sinon fs fs/promises vm v8 inspector "
    "inspector/promises worker_threads child_process cluster module repl process async_hooks diagnostics_channel "
    "trace_events wasi net http https dgram os timers"
)
_PROPERTIES = words(
    "exit reallyExit abort kill binding _linkedBinding dlopen mainModule getBuiltinModule _load _cache _extensions "
    "_resolveFilename createRequire setPrototypeOf __proto__ __defineGetter__ __defineSetter__ __lookupGetter__ "
    "runInThisContext prepareStackTrace captureStackTrace getOwnPropertyDescriptors stdout stderr emitWarning "
    "exitCode argv execArgv caller callee toPrimitive species hasInstance"
)
_NAMES = words(
    "eval Function Proxy globalThis global process WebAssembly SharedArrayBuffer woodshed_seen woodshed_reporter "
    "describe beforeEach afterEach with"
)
_DEFINED = words("valueOf toJSON toString then constructor")
_INTRINSICS = words(
    "Object Function Array String Number Boolean Symbol BigInt Error TypeError RegExp Date Map Set Promise Reflect "
    "JSON Math Buffer console"
)
_STRINGS = ("/proc/", "node_modules", "mocha", "node:", "constructor", "prototype", "__proto__")


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
    for node in walk(root):
        kind = node.type
        if kind == "call_expression":
            yield from _loaded(node)
        elif kind == "import_statement":
            yield from _module(string_value(node.child_by_field_name("source")))
        elif kind in ("property_identifier", "private_property_identifier"):
            name = text(node)
            if name in _PROPERTIES:
                yield f".{name}"
            elif name in _DEFINED and _is_defined(node):
                yield f"defines {name}"
        elif kind == "identifier" and text(node) in _NAMES:
            yield text(node)
        elif kind == "with_statement":
            yield "with"
        elif kind == "string":
            yield from _string(text(node))
        elif kind in ("assignment_expression", "augmented_assignment_expression"):
            yield from _assigned(node.child_by_field_name("left"))


def _loaded(call: Node) -> Iterator[str]:
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function is None or arguments is None:
        return
    first = arguments.named_children[0] if arguments.named_children else None
    if text(function) in ("require", "import"):
        name = string_value(first)
        yield from [f"{text(function)} of a computed name"] if name is None else _module(name)
    elif text(function).startswith("Object.def") and text(first).partition(".")[0] in _INTRINSICS:
        yield f"defines properties of {text(first)}"
    elif text(function) == "Object.assign" and text(first).partition(".")[0] in _INTRINSICS:
        yield f"assigns to {text(first)}"


def _module(name: str | None) -> Iterator[str]:
    if name is not None and name.removeprefix("node:") in _MODULES:
        yield f"loads {name.removeprefix('node:')}"


def _string(literal: str) -> Iterator[str]:
    if " " not in literal:
        yield from (f"string {part!r}" for part in _STRINGS if part in literal)
        if literal[1:-1] in _PROPERTIES:
            yield f"string {literal}"


def _is_defined(name: Node) -> bool:
    """Return whether a property is defined or assigned here, in any form."""
    parent = name.parent
    if parent is None:
        return False
    if parent.type == "member_expression":
        above = parent.parent
        return above is not None and above.type == "assignment_expression" and above.children[0] == parent
    return parent.type in ("pair", "method_definition", "field_definition") and parent.children[0] == name


def _assigned(target: Node | None) -> Iterator[str]:
    if target is None or target.type not in ("member_expression", "subscript_expression"):
        return
    owner = text(target.child_by_field_name("object"))
    if owner.partition(".")[0] in _INTRINSICS or owner in ("require", "require.cache", "module.constructor"):
        yield f"changes {owner}"
