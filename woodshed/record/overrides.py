"""``--set field=value`` options of commands: merged into a table of settings, and named in errors about its values."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


def apply(table: dict[str, Any], overrides: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Put ``overrides`` (``engine.threads=2``) into ``table``; return the option text of each field they set. Raises
    ValueError."""
    origin: dict[tuple[str, ...], str] = {}
    for override in overrides:
        keys, value = _parsed(override)
        target = table
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise ValueError(f"--set {override}: {key} is a value, not a table")
        target[keys[-1]] = value
        origin[keys] = f"--set {override}"
    return origin


def validated(model: type[M], table: dict[str, Any], overrides: Sequence[str]) -> M:
    """Validate ``table`` with ``overrides``. Raises ValueError that names the option and the nearest valid field."""
    origin = apply(table, overrides)
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    keys = tuple(map(str, first["loc"]))
    said = [text for path, text in origin.items() if keys[: len(path)] == path or path[: len(keys)] == keys]
    where = said[-1] if said else "--" + ".".join(keys).replace("_", "-")
    if first["type"] != "extra_forbidden":
        raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}")
    names = fields_at(model, keys[:-1])
    near = difflib.get_close_matches(keys[-1], names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    raise ValueError(f"{where}: no such field; {hint}")


def fields_at(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Return the names of the fields of the table at ``keys``."""
    remaining = iter(keys)
    for key in remaining:
        field = model.model_fields.get(key)
        candidates = [field.annotation, *get_args(field.annotation)] if field else []
        inner = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if inner is None:
            return []
        model = inner
        if field is not None and get_origin(field.annotation) is dict:
            next(remaining, None)  # the key of the dictionary, which names no field
    return list(model.model_fields)


def _parsed(override: str) -> tuple[tuple[str, ...], Any]:
    name, equals, value = override.partition("=")
    keys = _keys(name.strip())
    if not equals or not keys:
        quoted = 'put a name with a colon in quotes, as in rl.rewards."my_module:my_term"=0.1'
        raise ValueError(f"--set {override}: {quoted if ':' in name else 'write field=value, as in rl.group_size=16'}")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    return keys, parsed


def _keys(name: str) -> tuple[str, ...]:
    """Return the parts of a dotted key as TOML reads it; () if it is none."""
    if "\n" in name:
        return ()
    try:
        table: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    keys: list[str] = []
    while isinstance(table, dict):
        keys += table
        (table,) = table.values()
    return tuple(keys)
