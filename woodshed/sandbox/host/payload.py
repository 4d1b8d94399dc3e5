"""What a box whose first process is ``guest.machine`` brings along: the folder ``guest``, whole, as package ``box``."""

from __future__ import annotations

import os
import py_compile
import shutil

PLACE = "/.woodshed"
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP")
"""What the first process needs to become the box's user, and to end what that user started."""
_GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "guest")
# Never compared with the source, which cannot change.
_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def boot(module: str, place: str = PLACE) -> str:
    """Python source that runs ``main`` of a module of the box's package, which lies in ``place``."""
    return f"import sys; sys.path.insert(0, {place!r}); from box.{module} import main; del sys.path[0]; main()"


def copy_agent(base: str) -> None:
    """Put the folder ``guest`` below the folder ``base``."""
    os.makedirs(f"{base}{PLACE}/box")
    for name in sorted(os.listdir(_GUEST)):
        if not name.endswith(".py"):
            continue
        copy = f"{base}{PLACE}/box/{name}"
        shutil.copyfile(f"{_GUEST}/{name}", copy)
        # Compiled here: that costs a box time.
        py_compile.compile(copy, dfile=copy[len(base) :], invalidation_mode=_UNCHECKED)
