"""``woodshed probe``: report which sandboxes work on this machine, and attack them with ``--attack``."""

from __future__ import annotations

import os
import shutil

from rich.console import Console
from rich.table import Table
from rich.text import Text

from woodshed.attacks.escapes.battery import attack_backend
from woodshed.sandbox.backends.by_name import NAMES, open_backend
from woodshed.sandbox.protocol import Probe, SandboxError
from woodshed.sandbox.settings import SandboxSettings

from .escapes import beside


def print_probe(console: Console, *, attack: bool = False) -> int:
    """Print the report. Return 0 where the default sandbox works here and no attempt got out of a box, else 2."""
    probes = {name: _probe(name) for name in NAMES}
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
    return 0 if probes[SandboxSettings().backend].ok and not out else 2


def _attacked(name: str, console: Console) -> int:
    """Run all attempts to get out of this backend's boxes; return how many succeeded."""
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
    """Run all attempts of one box against another; return how many were noticed, without the known exceptions."""
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
