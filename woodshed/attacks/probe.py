"""``woodshed probe``: tries out what this machine can do and prints it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from woodshed.attacks.escapes.battery import attack_backend
from woodshed.sandbox.backends.by_name import installed_names, open_backend
from woodshed.sandbox.protocol import Probe, SandboxError
from woodshed.sandbox.settings import SandboxSettings

from .escapes import beside


def print_probe(console: Console, names: Sequence[str] = (), *, attack: bool = False) -> int:
    """Print what the sandbox backends ``names`` can do; without names, all that are installed or easily could be.

    Returns 0 if the backends asked for (without names: the default backend) work and nothing got out of a box,
    2 otherwise.
    """
    probes = {name: _probe(name) for name in names or installed_names()}
    for name, probe in probes.items():
        console.print(f"sandbox {name}: {'works' if probe.ok else 'does not work'}")
        for reason in probe.reasons:
            console.print(f"  {reason}", markup=False)
        if probe.capabilities:
            console.print(f"  can: {', '.join(sorted(probe.capabilities))}")
            console.print("  limits in force:" if probe.limits_in_force else "  no limits in force")
            for limit, how in sorted(probe.limits_in_force.items()):
                console.print(f"    {limit}: {how}", markup=False)
    console.print(f"cores: {len(os.sched_getaffinity(0))}")
    console.print(f"GPU: {'nvidia-smi found' if shutil.which('nvidia-smi') else 'none found'}")
    out = sum(_attacked(name, console) for name, probe in probes.items() if probe.ok) if attack else 0
    needed = names or [SandboxSettings().backend]
    return 0 if all(probes[name].ok for name in needed) and not out else 2


def _attacked(name: str, console: Console) -> int:
    """Try every way out of this backend's boxes; return how many attempts got out or disturbed another box."""
    with console.status(f"trying ways out of a {name} box"):
        tried = attack_backend(name)
    table = Table("attempt", "tries to", "outcome", title=f"ways out of a {name} box")
    for each in tried:
        outcome = Text(f"GOT OUT: {each.evidence}", style="red") if each.evidence else Text(each.refusal, style="dim")
        table.add_row(each.name, each.tries, outcome)
    console.print(table)
    out = sum(bool(each.evidence) for each in tried)
    console.print(f"{name}: {out} of {len(tried)} attempts got out")
    return out + (_attacked_beside(name, console) if name in beside.BACKENDS else 0)


def _attacked_beside(name: str, console: Console) -> int:
    """Run boxes against each other; return how many attempts another box noticed, without known exceptions."""
    with console.status(f"putting {name} boxes against each other"):
        tried = beside.beside_backend(name)
    table = Table("attempt", "tries to", "got", "outcome", title=f"a {name} box against another")
    for each in tried:
        outcome = Text("not noticed", style="dim")
        if each.evidence:
            known = f"SHARED ({each.known}): " if each.known else "NOTICED: "
            outcome = Text(known + each.evidence, style="yellow" if each.known else "red")
        table.add_row(each.name, each.tries, each.got, outcome)
    console.print(table)
    disturbed = sum(each.disturbed for each in tried)
    console.print(f"{name}: {disturbed} of {len(tried)} attempts were noticed by another box")
    return disturbed


def _probe(name: str) -> Probe:
    try:
        return open_backend(name).probe()
    except SandboxError as error:
        return Probe(False, (str(error),))
