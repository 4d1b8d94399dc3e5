"""Encoder of values as text, for altered tests; runs inside the box. Standard library only.

Plain values have the text of ``cases_runner.encode``, except that values of two built-in types that compare as equal
have one text. Values of other types are described by the data that they hold, read without calling any method of a
submission; no text contains an address. Objects show their public attributes, and the values of private ones only if
they have no others, because how an object stores its data, and in which module its class is defined, are internal.
"""

import array
import collections
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import re
import types
import uuid
import zoneinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNKNOWN = "?"
"""Text of a value without data: a function without a name, a generator, an open file."""

_DEPTH = 24
_NODES = 3000
_FLOAT = re.compile(r"\bf(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_PRIVATE = re.compile(r"cache|lock|hash|memo|weak", re.IGNORECASE)
"""Names of private attributes that are not data."""
_EXACT = {
    decimal.Decimal: lambda v: f"Decimal {decimal.Decimal.as_tuple(v)!r}",
    fractions.Fraction: lambda v: f"Fraction {_slot(v, '_numerator')}/{_slot(v, '_denominator')}",
    complex: lambda v: f"complex {v!r}",
    range: lambda v: f"{v!r}",
    slice: lambda v: f"{v!r}",
    bytearray: lambda v: f"b{v.hex()}",
    memoryview: lambda v: f"memoryview {v.tobytes().hex()}",
    datetime.date: lambda v: f"date {v.isoformat()}",
    datetime.timedelta: lambda v: f"timedelta {v.days} {v.seconds} {v.microseconds}",
    datetime.timezone: lambda v: f"timezone {v!r}",
    uuid.UUID: lambda v: f"UUID {_slot(v, 'int')}",
    re.Pattern: lambda v: f"pattern {v.pattern!r} {v.flags}",
    re.Match: lambda v: f"match {v.span()} {v.groups()!r}",
    array.array: lambda v: f"{v!r}",
    type(Ellipsis): lambda v: "Ellipsis",
    type(NotImplemented): lambda v: "NotImplemented",
}
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_SCALARS = (str, bytes, int, float, complex, bytearray, decimal.Decimal, datetime.date, datetime.timedelta)
_EQUAL = (list, tuple, dict, set, frozenset, str, bytes, int, float, collections.OrderedDict, collections.Counter)
"""Types that compare instances of subclasses by the data of the built-in type, unless the subclass compares itself."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def encode(value: "Any") -> str:
    """Return the canonical text of a value; ``?`` if it holds no data. Raises ValueError if it is too large."""
    return _Encoder().text(value, 0)


def rounded(text: str) -> str:
    """Round the floats of a text to nine digits: two correct ways to compute one may differ in the last bit."""
    return _FLOAT.sub(lambda match: f"f{float(match[1]) + 0.0:.9g}", text)


def plain(value: "Any") -> bool:
    """Return whether a value consists only of built-in types and their subclasses, at every level."""
    return _plain(value, 0)


class _Encoder:
    def __init__(self) -> None:
        self.left = _NODES
        self.path: list = []

    def text(self, value: "Any", depth: int) -> str:
        self.left -= 1
        if self.left < 0 or depth > _DEPTH:
            raise ValueError("too large")
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return json.dumps(value)
        if kind is float:
            return f"f{value!r}"
        if kind is bytes:
            return f"b{value.hex()}"
        if kind in _EXACT:
            return _EXACT[kind](value)
        for number, other in enumerate(reversed(self.path)):
            if other is value:
                return f"cycle {number}"
        self.path.append(value)
        try:
            return self._deep(value, kind, depth + 1)
        finally:
            self.path.pop()

    def _deep(self, value: "Any", kind: type, depth: int) -> str:
        if kind in (list, tuple, dict, set, frozenset):
            return self._contents(value, kind, depth)
        if issubclass(type(kind), enum.EnumMeta):
            return f"<{_name(kind)}.{_found(value, '_name_')}>"
        if issubclass(kind, type):
            return f"<class {_name(value)}>"
        if kind in _FUNCTIONS:
            return self._function(value, kind)
        if issubclass(kind, types.ModuleType) or kind in (types.GeneratorType, types.CoroutineType):
            return UNKNOWN
        if kind is datetime.datetime or kind is datetime.time:
            zone = value.tzinfo
            return f"{kind.__name__} {value.replace(tzinfo=None)!r} {self.text(zone, depth)}"
        parts = []
        for base in _CONTAINERS:
            if issubclass(kind, base):
                parts.append(self._contents(value, base, depth))
        parts += [_scalar(value, base) for base in _SCALARS if issubclass(kind, base)][:1]
        if issubclass(kind, pathlib.PurePath):
            parts.append(json.dumps(pathlib.PurePath.__str__(value)))
        elif issubclass(kind, BaseException):
            parts.append(self.text(BaseException.__dict__["args"].__get__(value), depth))
        elif kind is zoneinfo.ZoneInfo:
            parts.append(str(value.key))
        elif kind is not collections.defaultdict and (found := self._attributes(value, kind, depth, bare=not parts)):
            parts += found
        elif len(parts) == 1 and _compares_data(kind):
            return parts[0]
        return f"<{_name(kind)}{''.join(' ' + part for part in parts)}>" if parts else UNKNOWN

    def _contents(self, value: "Any", base: type, depth: int) -> str:
        if base is dict:
            pairs = [f"{self.text(k, depth)}:{self.text(v, depth)}" for k, v in dict.items(value)]
            return "{" + ",".join(sorted(pairs)) + "}"
        inner = [self.text(item, depth) for item in base.__iter__(value)]  # type: ignore[attr-defined]
        if base is set or base is frozenset:
            return "s{" + ",".join(sorted(inner)) + "}"
        return f"({','.join(inner)})" if base is tuple else f"[{','.join(inner)}]"

    def _function(self, value: "Any", kind: type) -> str:
        if kind is types.MethodType:
            return UNKNOWN
        name = object.__getattribute__(value, "__qualname__")
        return UNKNOWN if "<" in name else f"<function {name}>"

    def _attributes(self, value: "Any", kind: type, depth: int, *, bare: bool) -> list:
        found = _data(value, kind)
        public = {k: v for k, v in found.items() if not k.startswith("_")}
        if not public and bare:
            private = [v for k, v in found.items() if not k.startswith("__") and not _PRIVATE.search(k)]
            shown = sorted(text for text in (self.text(v, depth) for v in private) if text != UNKNOWN)
            return [f"{{{','.join(shown)}}}"] if shown else []
        texts = {k: self.text(v, depth) for k, v in public.items()}
        known = {k: text for k, text in texts.items() if text != UNKNOWN}
        return ["{" + ",".join(f"{k}={known[k]}" for k in sorted(known)) + "}"] if known else []


def _data(value: "Any", kind: type) -> dict:
    """Return the attributes of an instance, from dictionary and slots, read without the hooks of its class."""
    found: dict = {}
    for base in type.__dict__["__mro__"].__get__(kind):
        own = type.__dict__["__dict__"].__get__(base)
        for name, member in own.items():
            if type(member) is types.MemberDescriptorType and member.__objclass__ is base:
                try:
                    found.setdefault(str(name), member.__get__(value))
                except AttributeError:
                    continue
        holder = own.get("__dict__")
        if type(holder) is types.GetSetDescriptorType:
            found.update({k: v for k, v in dict.items(holder.__get__(value)) if type(k) is str})
    return found


def _compares_data(kind: type) -> bool:
    """Return whether instances of a class are compared by the data of a built-in type."""
    for base in type.__dict__["__mro__"].__get__(kind):
        if "__eq__" in type.__dict__["__dict__"].__get__(base):
            return base in _EQUAL
    return False


def _slot(value: "Any", name: str) -> "Any":
    return object.__getattribute__(value, name)


def _found(value: "Any", name: str) -> "Any":
    return _data(value, type(value)).get(name, "?")


def _name(kind: type) -> str:
    return str(type.__dict__["__qualname__"].__get__(kind))


def _scalar(value: "Any", base: "Any") -> str:
    if base is str:
        return json.dumps(str.__getitem__(value, slice(None)))
    if base is bytes or base is bytearray:
        return f"b{base.hex(value)}"
    if base is float:
        return f"f{float.__repr__(value)}"
    return base.__repr__(value).partition("(")[2] or base.__repr__(value)


def _plain(value: "Any", depth: int) -> bool:
    kind = type(value)
    if value is None or kind is bool or issubclass(kind, _SCALARS) or kind in _EXACT:
        return True
    if depth > _DEPTH:
        return False
    for base in _CONTAINERS:
        if issubclass(kind, base):
            inner = [*dict.keys(value), *dict.values(value)] if base is dict else list(base.__iter__(value))
            return len(inner) < _NODES and all([_plain(item, depth + 1) for item in inner])
    return False
