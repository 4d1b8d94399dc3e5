"""Writer of TOML (the standard library only reads it)."""

from __future__ import annotations

from typing import Any


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """Write nested tables with scalars and lists (of scalars or flat tables). Raises TypeError for anything else."""
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not isinstance(v, dict)]
    out = "\n".join(lines) + ("\n" if lines else "")
    for key, value in table.items():
        if isinstance(value, dict):
            path = f"{prefix}{_key(key)}"
            out += f"\n[{path}]\n" + to_toml(value, path + ".")
    return out


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        escaped = "".join(
            {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c)
            or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c)
            for c in value
        )
        return f'"{escaped}"'
    if isinstance(value, (list, tuple)) and any(isinstance(v, dict) for v in value):
        return "[\n" + "".join(f"  {_value(v)},\n" for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    raise TypeError(f"TOML cannot hold {type(value).__name__}: {value!r}")
