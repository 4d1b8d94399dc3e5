"""QEMU's arguments for the virtual machine of a box, and whether this machine has hardware virtualisation.

The machine has one processor, memory that is a file, read-only images, a serial port that carries the agent's frames
and a source of randomness; no network, no display, no other bus. All boxes of a template have the same machine, so the
state of one fits all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_OVERHEAD = 256 << 20
"""Bytes of guest memory for kernel, agent and page cache, in addition to the box's processes and files."""
_UNLIMITED = 2 << 30
MAX_IMAGES = 20
"""Maximum number of disks of the machine."""

ACCELERATORS = {"kvm": "kvm,device=/kvm", "tcg": "tcg,tb-size=64"}
_INITRD = 128 << 20  # far above the kernel
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def guest_memory(memory: int | None, disk: int | None) -> int:
    """Return the machine's memory in bytes: ``memory`` (None: 2 GiB), ``disk`` (None: 0) and the guest's own need."""
    wanted = (_UNLIMITED if memory is None else memory) + (disk or 0) + _OVERHEAD
    return -(-wanted >> 21) << 21


def command_line(disk: int | None, interpreter: str, initrd: int, khz: int | None) -> str:
    """Return the command line of the guest's kernel.

    ``initrd``: size of its initial file system in bytes, reserved until the kernel has copied it. ``khz``: rate of its
    clock; under emulation the kernel's own measurement may never end.
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
    *,
    accelerator: str,
    memory: str,
    size: int,
    boot: bool,
    state: str,
    images: Mapping[str, str],
    kernel: str,
    initrd: str,
    append: str,
    firmware: list[str],
) -> list[str]:
    """Return QEMU's arguments; the inherited sockets 3 and 4 are the agent's channel and the control socket.

    ``boot``: boot the kernel, and write the guest's memory to the file ``memory``. Otherwise the machine goes on from
    ``memory`` and the devices' state in the file ``state``, and its changes stay private to the process.
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
        "migration.send-configuration=off",  # the state holds only devices, see ``backend.MicrovmBox.save``
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
    # Not with -initrd, which puts it at the end of memory, where it may overwrite the tables of the firmware.
    loader = f"loader,file={initrd},addr={_INITRD},force-raw=on"
    return [*out, "-kernel", kernel, "-append", append, "-device", loader]


@lru_cache(maxsize=1)
def clock_khz() -> int | None:
    """Return the approximate rate of the host's time stamp counter, good enough for the guest's first estimate."""
    found = re.search(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return round(float(found.group(1)) * 1000) if found else None


@lru_cache(maxsize=1)
def can_virtualise() -> bool:
    """Return whether the processor has VT-x or AMD-V and this process may use ``/dev/kvm``.

    The device alone proves nothing: on some nested hosts it runs ordinary kernels in an interpreter, or not at all.
    Only the first boot of a guest shows whether KVM works.
    """
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return bool(flags and {"vmx", "svm"} & set(flags.group(1).split())) and os.access("/dev/kvm", os.R_OK | os.W_OK)
