"""The operations on a box that a box server offers, by name: checks arguments, returns the reply's head and body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from woodshed.sandbox.guest.frames import FrameError, pack_files, unpack_files
from woodshed.sandbox.protocol import Sandbox, Unsupported

from . import wire

Reply = tuple[dict[str, Any], bytes]
Arguments = dict[str, Any]

_NUMBER, _TEXT, _MAYBE = (int, float), (str,), (str, type(None))
_RUN: Mapping[str, tuple[type, ...]] = {"cwd": _MAYBE, "timeout": _NUMBER, "max_output": (int,)}


async def _exec(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    return wire.encode_result(await box.exec(given.pop("command"), stdin=body, **given))


async def _python(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    size = given.pop("source")
    if not 0 <= size <= len(body):
        raise ValueError("source: longer than the request's body")
    source = body[:size].decode("utf-8", "surrogatepass")
    return wire.encode_result(await box.exec_python(source, stdin=body[size:], **given))


async def _read(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    return {}, await box.read(given["path"], max_bytes=given["max_bytes"])


async def _put(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    try:
        files = unpack_files(given["files"], body)
    except FrameError as error:
        raise ValueError(f"files: {error}") from None
    await box.put(dict(files))
    return {}, b""


async def _get(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    found = await box.get(given["patterns"], max_bytes=given["max_bytes"])
    table, data = pack_files(list(found.items()))
    return {"files": table}, data


async def _list(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    return {"entries": await box.list(given.pop("path"), **given)}, b""


async def _delete(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    await box.delete(given["path"])
    return {}, b""


async def _usage(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    usage = getattr(box, "usage", None)
    if usage is None:
        raise Unsupported("this backend does not count what a box uses")
    return {"usage": await usage()}, b""


async def _pause(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    await box.pause()
    return {}, b""


async def _resume(box: Sandbox, given: Arguments, body: bytes) -> Reply:
    await box.resume()
    return {}, b""


_Operation = Callable[[Sandbox, Arguments, bytes], Awaitable[Reply]]
_OPERATIONS: Mapping[str, tuple[_Operation, Mapping[str, tuple[type, ...]]]] = {
    "exec": (_exec, {"command": (str, list), "env": (dict,), **_RUN}),
    "exec_python": (_python, {"source": (int,), **_RUN}),
    "read": (_read, {"path": _TEXT, "max_bytes": (int,)}),
    "put": (_put, {"files": (list,)}),
    "get": (_get, {"patterns": (list,), "max_bytes": (int,)}),
    "list": (_list, {"path": _TEXT, "recursive": (bool,), "limit": (int,)}),
    "delete": (_delete, {"path": _TEXT}),
    "usage": (_usage, {}),
    "pause": (_pause, {}),
    "resume": (_resume, {}),
}
_OF_STRINGS = ("command", "patterns", "env")


async def operate(name: str, box: Sandbox, given: Arguments, body: bytes) -> Reply:
    """Run the operation ``name`` of a box. Raises ValueError naming a wrong argument, and what the box raises."""
    if name not in _OPERATIONS:
        raise ValueError(f"no operation of a box is called {name!r:.60}")
    operation, wanted = _OPERATIONS[name]
    if set(given) != set(wanted):
        raise ValueError(f"{name} takes {', '.join(sorted(wanted)) or 'no arguments'}, and nothing else")
    for key, kinds in wanted.items():
        if not _fits(key, given[key], kinds):
            raise ValueError(f"{name}: {key} has a wrong type or value: {given[key]!r:.60}")
    return await operation(box, given, body)


def _fits(key: str, value: Any, kinds: tuple[type, ...]) -> bool:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    if isinstance(value, (int, float)) and not 0 <= value < 1 << 53:
        return False
    if key in _OF_STRINGS and isinstance(value, (list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return all(isinstance(item, str) for item in items)
    return True
