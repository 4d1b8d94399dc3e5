"""API keys: one key is one trajectory. Only hashes are stored; a key is shown once, when its trajectory is opened."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from woodshed.cluster.service import AdminKey, bearer, key_hash


class Keys:
    """Issued keys by hash, and the admin key."""

    def __init__(self, admin_key: str) -> None:
        self._admin = AdminKey(admin_key)
        self._owners: dict[bytes, str] = {}

    def make(self) -> str:
        """Create a key; it is valid only after ``admit``."""
        return "ws-" + secrets.token_urlsafe(32)

    def admit(self, digest: bytes, owner: str) -> None:
        """Make the key with this hash valid for the trajectory ``owner``."""
        self._owners[digest] = owner

    def revoke(self, digest: bytes) -> None:
        self._owners.pop(digest, None)

    def owner(self, key: str) -> str | None:
        """Id of the trajectory of a key; None if the key is not valid."""
        return self._owners.get(key_hash(key))

    def is_admin(self, key: str | None) -> bool:
        return self._admin.matches(key)


def client_key(headers: Mapping[bytes, bytes]) -> str | None:
    """A client's key: a bearer token, as OpenAI's clients send it, or ``x-api-key``, as Anthropic's do."""
    key = bearer(headers.get(b"authorization"))
    return key or headers.get(b"x-api-key", b"").decode("latin-1").strip() or None
