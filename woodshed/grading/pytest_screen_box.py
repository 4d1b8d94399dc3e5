"""The static screen inside the box, for files that the box's interpreter can parse and the host's cannot.

It runs the host's screen (``pytest_screen.py``) in an isolated interpreter, before any code of the submission runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from woodshed.sandbox.protocol import Sandbox

from .pytest_screen import elsewhere

_MODULES = ("record.python_source", "grading.python_names", "grading.pytest_screen")
_SECONDS = 60.0
_PROGRAM = """
import base64, json, sys, types
request = json.load(sys.stdin)
for name, source in request["modules"]:
    parent = name.rpartition(".")[0]
    for package in ("woodshed", parent):
        sys.modules.setdefault(package, types.ModuleType(package)).__path__ = []
    module = types.ModuleType(name)
    module.__package__ = parent
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
changed, *known = [{n: base64.b64decode(d) for n, d in files.items()} for files in request["files"]]
lost = set(module.elsewhere(changed))
found = module.screen({n: d for n, d in changed.items() if n not in lost}, *known)
print(json.dumps(found))
"""


async def screen_in_box(
    box: Sandbox, found: Sequence[str], changed: Mapping[str, bytes], *known: Mapping[str, bytes]
) -> list[str]:
    """Replace entries of ``found`` for files that the host cannot parse by what the screen finds in the box.

    Files that the box cannot parse either get no entry, as nothing can import them. If the box does not answer,
    ``found`` stays as it is. Raises SandboxError if the sandbox fails.
    """
    names = elsewhere(changed)
    if not names:
        return list(found)
    files = [{n: base64.b64encode(d).decode() for n, d in part.items() if n in names} for part in (changed, *known)]
    request = json.dumps({"modules": _sources(), "files": files})
    done = await box.exec(["python3", "-I", "-B", "-c", _PROGRAM], stdin=request.encode(), timeout=_SECONDS)
    try:
        judged = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return list(found)
    unread = tuple(f"{name}: cannot be parsed by " for name in names)
    return sorted({*(entry for entry in found if not entry.startswith(unread)), *map(str, judged)})


@cache
def _sources() -> list[tuple[str, str]]:
    root = Path(__file__).parent.parent
    return [(f"woodshed.{name}", (root / f"{name.replace('.', '/')}.py").read_text("utf-8")) for name in _MODULES]
