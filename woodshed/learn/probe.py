"""``woodshed probe``: what this machine can do, found by doing it."""

from __future__ import annotations

import os
import shutil

from rich.console import Console

from ..sandbox.backends import NAMES, open_backend
from ..sandbox.protocol import Probe, SandboxError
from ..sandbox.settings import SandboxSettings


def print_probe(console: Console) -> int:
    """0 where runs with the default sandbox can work here, 2 otherwise."""
    probes = {name: _probe(name) for name in NAMES}
    for name, probe in probes.items():
        console.print(f"sandbox {name}: {'works' if probe.ok else 'does not work'}")
        for reason in probe.reasons:
            console.print(f"  {reason}", markup=False)
        if probe.capabilities:
            console.print(f"  can: {', '.join(sorted(probe.capabilities))}")
            console.print(f"  limits in force: {', '.join(sorted(probe.limits_in_force)) or '-'}")
    console.print(f"cores: {len(os.sched_getaffinity(0))}")
    console.print(f"GPU: {'nvidia-smi found' if shutil.which('nvidia-smi') else 'none found'}")
    return 0 if probes[SandboxSettings().backend].ok else 2


def _probe(name: str) -> Probe:
    try:
        return open_backend(name).probe()
    except SandboxError as error:
        return Probe(False, (str(error),))
