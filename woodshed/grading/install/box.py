"""What is handed in for an install, and how it is run in a box."""

from __future__ import annotations

import json

from woodshed.sandbox.protocol import ExecResult, Sandbox

WORKDIR = "/workspace"
SCRATCH = ".woodshed"
"""Folder of the workspace for what is handed in; it is no part of the repository."""

SETUP = f"{SCRATCH}/setup.sh"
SETUP_SECONDS, TARGET_SECONDS = 900.0, 300.0

_LIST = """
import json, pathlib, site
folder = pathlib.Path(site.getusersitepackages())
print(json.dumps(sorted(p.name.removesuffix(".dist-info") for p in folder.glob("*.dist-info"))))
"""


async def shell(box: Sandbox, command: str, *, timeout: float) -> ExecResult:
    """Run a command line in the workspace, errors among the output."""
    return await box.exec(f"exec 2>&1\n{command}", cwd=WORKDIR, timeout=timeout, max_output=1 << 20)


async def installed_in(box: Sandbox) -> list[str]:
    """``NAME-VERSION`` of what was installed; only ever used to look up what the index served."""
    done = await box.exec(["python3", "-I", "-c", _LIST], timeout=30.0)
    try:
        found = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
