"""The guest's kernel as the program inside the packed file, so that no guest has to unpack it."""

from __future__ import annotations

import struct

_SECTOR = 512


def unpack(data: bytes) -> bytes:
    """The ELF image in a bzImage that was packed with zstd; else the file as it is, which boots too, more slowly.

    See Documentation/arch/x86/boot.rst: ``setup_sects`` at 0x1f1, ``payload_offset`` and ``payload_length`` at 0x248.
    """
    sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[(sectors + 1) * _SECTOR + offset :][:length]
    if not payload.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    import zstandard  # here: what was unpacked once does without

    return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
