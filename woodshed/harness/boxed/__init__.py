"""Small programs that the harness runs inside the box. Standard library only; each has a ``main(args)``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=16)
def _source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")


def program(name: str, args: dict[str, Any]) -> str:
    """Return source for ``exec_python``: the module ``name`` of this folder, then ``main(args)``.

    ``args`` holds plain data (str, int, bool, None, lists, dicts), whose ``repr`` is a Python literal.
    """
    return f"{_source(name)}\nmain({args!r})\n"
