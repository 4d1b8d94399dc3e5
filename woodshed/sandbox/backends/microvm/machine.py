"""The virtual machine of a box, as QEMU is told: no network, no display, no bus but the virtio devices it needs.

One processor, memory that is a file, images read-only, one serial port that carries the agent's frames, a source of
randomness. Every box of a template has the same machine, so that the state of one fits all.

Whether this machine can run a guest's instructions itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_OVERHEAD = 256 << 20
"""Guest memory beside what processes and files of a box may take: its kernel, the agent, the cache of its images."""
_UNLIMITED = 2 << 30
MAX_IMAGES = 20
"""Disks that the machine has places for."""

ACCELERATORS = {"kvm": "kvm,device=/kvm", "tcg": "tcg,tb-size=64"}
_INITRD = 128 << 20  # far above the kernel
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def guest_memory(memory: int | None, disk: int | None) -> int:
    """Bytes of memory of the machine: both limits (2 GiB where there is none) and what the guest needs itself."""
    wanted = (_UNLIMITED if memory is None else memory) + (disk or 0) + _OVERHEAD
    return -(-wanted >> 21) << 21


def command_line(disk: int | None, interpreter: str, initrd: int, khz: int | None) -> str:
    """Of the guest's kernel.

    ``initrd``: bytes of its initial file system, which it is told to leave alone until it has copied them. ``khz``:
    rate of its clock; under emulation its own measurement of that may never end.
    """
    words = [
        "console=ttyS0",
        "quiet",
        "loglevel=2",
        "panic=-1",
        "reboot=t",
        "mitigations=off",
        "audit=0",
        "lsm=capability",
        "rcupdate.rcu_expedited=1",
        "tsc=reliable",
        f"run={interpreter}",
        f"initrdmem={_INITRD},{initrd}",
        f"memmap={-(-initrd >> 20)}M${_INITRD}",
    ]
    words += [f"disk={disk}"] if disk is not None else []
    words += [f"tsc_early_khz={khz}"] if khz else []
    return " ".join(words)


def arguments(
    *, accelerator: str, memory: str, size: int, boot: bool, state: str, images: Mapping[str, str], kernel: str,
    initrd: str, append: str, firmware: list[str],
) -> list[str]:  # fmt: skip
    """QEMU's arguments; the inherited sockets 3 and 4 lead to the agent and to whoever controls the machine.

    ``boot``: from the kernel, and what the guest writes goes to the file ``memory``. Else the machine goes on from
    ``memory`` and the file ``state`` (of its devices), and what it writes stays with its process.
    """
    processor = "host,-arch-capabilities" if accelerator == "kvm" else "max"
    mode = "share=on" if boot else "share=off,readonly=on,rom=off"
    found = [option for folder in firmware for option in ("-L", folder)]
    out = [
        *found,
        "-M",
        "microvm,acpi=on,rtc=on,pit=on,pic=off,isa-serial=on,memory-backend=m,suppress-vmdesc=on",
        "-accel",
        ACCELERATORS[accelerator],
        "-cpu",
        processor,
        "-smp",
        "1",
        "-m",
        f"{size >> 20}M",
        "-object",
        f"memory-backend-file,id=m,size={size},mem-path={memory},{mode}",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-sandbox",
        _SANDBOX,
        "-serial",
        "stdio",
        "-global",
        "migration.send-configuration=off",  # a state holds nothing but devices, see ``box.MicrovmBox.save``
        "-chardev",
        "socket,id=c,fd=3",
        "-device",
        "virtio-serial-device,max_ports=2",
        "-device",
        "virtserialport,chardev=c,name=agent",
        "-device",
        "virtio-rng-device",
        "-chardev",
        "socket,id=q,fd=4",
        "-mon",
        "chardev=q,mode=control",
    ]
    for name, path in images.items():
        drive = f"id=d-{name},file={path},format=raw,if=none,readonly=on,file.locking=off"
        out += ["-drive", drive, "-device", f"virtio-blk-device,drive=d-{name},serial={name}"]
    if not boot:
        return [*out, "-incoming", f"file:{state}"]
    # Not by -initrd: that lies at the end of memory, where the firmware has put its tables, and may overwrite them.
    loader = f"loader,file={initrd},addr={_INITRD},force-raw=on"
    return [*out, "-kernel", kernel, "-append", append, "-device", loader]


@lru_cache(maxsize=1)
def clock_khz() -> int | None:
    """Rate of the host's time stamp counter, near enough for a guest's first guess."""
    found = re.search(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return round(float(found.group(1)) * 1000) if found else None


@lru_cache(maxsize=1)
def can_virtualise() -> bool:
    """The processor has VT-x or AMD-V and ``/dev/kvm`` is ours to use.

    The device alone says nothing: some nested hosts have one that runs ordinary kernels in an interpreter, or not at
    all. What a guest's first boot shows decides in the end.
    """
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return bool(flags and {"vmx", "svm"} & set(flags.group(1).split())) and os.access("/dev/kvm", os.R_OK | os.W_OK)
