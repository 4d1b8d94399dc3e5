"""Keys of HTTP services: one admin key per service, compared as hashes and in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

ADMIN_VARIABLE = "WOODSHED_ADMIN_KEY"


def key_hash(key: str) -> bytes:
    """SHA-256. Keys are 256 random bits, so neither salt nor stretching would add anything."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class AdminKey:
    """The key of a service's operator. Raises ValueError where it is too short."""

    def __init__(self, key: str) -> None:
        if len(key) < 16:
            raise ValueError("the admin key is shorter than 16 characters; write a long random one")
        self._digest = key_hash(key)

    def matches(self, key: str | None) -> bool:
        return key is not None and hmac.compare_digest(key_hash(key), self._digest)


def bearer(header: bytes | None) -> str | None:
    """The key in an ``Authorization: Bearer KEY`` header."""
    if header is None or header[:7].lower() != b"bearer ":
        return None
    return header[7:].decode("latin-1").strip() or None


def read_admin_key(path: Path | None) -> str:
    """From the file if one is given, else from the environment. Raises ValueError saying what to do."""
    if path is not None:
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"{path}: cannot read the admin key: {error.strerror}") from None
    key = os.environ.get(ADMIN_VARIABLE, "").strip()
    if not key:
        raise ValueError(f"no admin key: name a file with --admin-key-file, or set {ADMIN_VARIABLE}")
    return key
