"""What a box whose first process is ``guest`` brings along: the agent's modules, as package ``box``."""

from __future__ import annotations

import os
import py_compile
import shutil

PLACE = "/.woodshed"
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP")
"""What the first process needs to become the box's user, and to end what that user started."""
_MODULES = (
    "agent", "boxfiles", "cgroups", "frames", "guest", "guestnet", "jobs", "kernel", "masks", "processes", "pyrun",
    "seccomp", "template", "turns", "vmguest",
)  # fmt: skip
# Never compared with the source, which cannot change.
_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def boot(module: str, place: str = PLACE) -> str:
    """Python source that runs ``main`` of a module of the box's package, which lies in ``place``."""
    return f"import sys; sys.path.insert(0, {place!r}); from box.{module} import main; del sys.path[0]; main()"


def copy_agent(base: str, *more: str) -> None:
    """Put the modules that a first process imports, and ``more`` (``folder/name``), below the folder ``base``."""
    source = os.path.dirname(os.path.abspath(__file__))
    os.makedirs(f"{base}{PLACE}/box")
    open(f"{base}{PLACE}/box/__init__.py", "w").close()
    for name in (*_MODULES, *more):
        copy = f"{base}{PLACE}/box/{name}.py"
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(f"{source}/{name}.py", copy)
        # Compiled here: that costs a box time.
        py_compile.compile(copy, dfile=copy[len(base) :], invalidation_mode=_UNCHECKED)
