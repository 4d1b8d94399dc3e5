"""The initial file system of a guest (busybox, missing kernel modules, a script that builds the box) and its kernel.

The script mounts the images by their serial numbers, stacks them below a writable layer in memory, and becomes the
agent. The kernel is unpacked here once, so that no guest has to do it.
"""

from __future__ import annotations

import lzma
import re
import stat
import struct
from pathlib import Path

from woodshed.record.walk import all_below

from .qemu import Missing, Programs

_WANTED = ("virtio_mmio", "virtio_blk", "virtio_console", "virtio_rng", "erofs", "overlay")
_FOLDERS = ("bin", "dev", "i", "modules", "new", "proc", "sys", "upper")

# ``disk`` (bytes) and ``run`` (the agent's interpreter) come from the kernel's command line. Standard input and output
# of the agent are the port to the host; the agent's program is ``/.woodshed/boot.py``.
_INIT = """#!/bin/busybox sh
set -e
trap 'fail "the script failed"' EXIT
fail() { echo "box: $1" > /dev/ttyS0; sleep 1; reboot -f; }
/bin/busybox mount -t proc proc /proc  # from here on the shell finds its own programs
mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module || fail "module $module"; done
tries=0
until [ -e /dev/vport0p1 ]; do
  tries=$((tries + 1)); [ $tries -lt 1000 ] || fail "no port to the host"
  sleep 0.01
done
lower=
for device in /sys/block/vd*; do
  name=$(cat $device/serial)
  mkdir /i/$name; mount -t erofs -o ro,nodev,nosuid /dev/${device##*/} /i/$name || fail "image $name"
  case $name in layer*) lower=/i/$name:$lower ;; esac
done
size=; [ -z "$disk" ] || size=size=$disk,
mount -t tmpfs -o ${size}nosuid,nodev,mode=755 upper /upper; mkdir /upper/u /upper/w
mount -t overlay -o nosuid,nodev,lowerdir=$lower/i/base,upperdir=/upper/u,workdir=/upper/w box /new || fail "layers"
while read -r name target; do
  from=/i/base/.woodshed/mask/$name:/i/$name
  mount -t overlay -o ro,nosuid,nodev,lowerdir=$from $name /new/$target || fail "$target"
done < /i/base/.woodshed/mounts
mount -t proc -o nosuid,nodev,noexec,hidepid=2 proc /new/proc
mount -t tmpfs -o nosuid,size=64k,mode=755 dev /new/dev
cd /new/dev
mknod -m 666 null c 1 3; mknod -m 666 zero c 1 5; mknod -m 666 full c 1 7; mknod -m 666 tty c 5 0
mknod -m 666 random c 1 8; mknod -m 666 urandom c 1 9
ln -s /proc/self/fd fd; ln -s fd/0 stdin; ln -s fd/1 stdout; ln -s fd/2 stderr; ln -s pts/ptmx ptmx
mkdir shm pts
shm=67108864; [ -z "$disk" ] || [ $disk -ge $shm ] || shm=$disk
mount -t tmpfs -o size=$shm,nosuid,nodev,mode=1777 shm shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=600,max=64 pts pts
echo 0 > /proc/sys/user/max_user_namespaces; echo 1 > /proc/sys/kernel/dmesg_restrict
echo 2 > /proc/sys/kernel/perf_event_paranoid; hostname box; ip link set lo up
exec 0<> /dev/vport0p1 1>&0 2> /dev/ttyS0
cd /
exec /bin/busybox switch_root /new $run -I -S /.woodshed/boot.py
"""


def build(programs: Programs) -> bytes:
    """Build the archive (cpio, "newc"). Raises Missing if a module cannot be found."""
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in _FOLDERS]
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, programs.busybox.read_bytes()))
    entries.append(("init", stat.S_IFREG | 0o755, _INIT.encode()))
    for number, (name, data) in enumerate(_modules(programs.modules).items()):
        entries.append((f"modules/{number:02d}-{name}.ko", stat.S_IFREG | 0o644, data))
    rows = [_entry(number, *entry) for number, entry in enumerate(entries, 1)]
    return b"".join([*rows, _entry(0, "TRAILER!!!", 0, b"")])


def _modules(folder: Path) -> dict[str, bytes]:
    """Return name -> content of the modules that are not built into the kernel, in loading order."""
    there = {path.name.partition(".ko")[0].replace("-", "_"): path for path in all_below(folder) if ".ko" in path.name}
    builtin = (folder / "modules.builtin").read_text().split()
    known = {Path(line).name.removesuffix(".ko").replace("-", "_") for line in builtin}
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in known or name in loaded:
            return
        if name not in there:
            raise Missing(f"the kernel of {folder} has no module {name}; run `scripts/install-qemu` again")
        data = there[name].read_bytes()
        if there[name].suffix == ".xz":
            data = lzma.decompress(data)
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for each in (found.group(1) if found else b"").decode().split(","):
            if each:
                load(each.replace("-", "_"))
        loaded[name] = data

    for name in _WANTED:
        load(name)
    return loaded


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """Encode one member: thirteen hexadecimal numbers (inode, mode, ..., size, ...), name and data; see cpio(5)."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


_SECTOR = 512


def unpack(data: bytes) -> bytes:
    """Return the ELF image in a bzImage packed with zstd; any other file as it is, which boots too, but more slowly.

    See Documentation/arch/x86/boot.rst: ``setup_sects`` at 0x1f1, ``payload_offset`` and ``payload_length`` at 0x248.
    """
    sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[(sectors + 1) * _SECTOR + offset :][:length]
    if not payload.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    import zstandard  # imported here: not needed once the kernel is unpacked

    return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
