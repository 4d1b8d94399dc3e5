"""Copies the folder ``guest`` into boxes whose first process is ``guest.machine``, as the package ``box``."""

from __future__ import annotations

import os
import py_compile
import shutil

PLACE = "/.woodshed"
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP")
"""Capabilities that the first process needs to become the box's user and to end that user's processes."""
_GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "guest")
# Not compared with the source, which never changes.
_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def boot(module: str, place: str = PLACE) -> str:
    """Return Python source that runs ``main`` of a module of the package ``box`` in the folder ``place``."""
    return f"import sys; sys.path.insert(0, {place!r}); from box.{module} import main; del sys.path[0]; main()"


def copy_agent(base: str) -> None:
    """Copy and compile the folder ``guest`` into ``base``."""
    os.makedirs(f"{base}{PLACE}/box")
    for name in sorted(os.listdir(_GUEST)):
        if not name.endswith(".py"):
            continue
        copy = f"{base}{PLACE}/box/{name}"
        shutil.copyfile(f"{_GUEST}/{name}", copy)
        # Compiled here, because compiling in the box would delay its start.
        py_compile.compile(copy, dfile=copy[len(base) :], invalidation_mode=_UNCHECKED)
