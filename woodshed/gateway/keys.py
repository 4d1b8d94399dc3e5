"""API keys: one key is one trajectory. Only hashes are kept; a key is shown once, to whoever opened it."""

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
        """A new key; it opens nothing before ``admit``."""
        return "ws-" + secrets.token_urlsafe(32)

    def admit(self, digest: bytes, owner: str) -> None:
        """The key with this hash is ``owner``'s, also after a restart."""
        self._owners[digest] = owner

    def revoke(self, digest: bytes) -> None:
        self._owners.pop(digest, None)

    def owner(self, key: str) -> str | None:
        """Id of the trajectory that the key belongs to."""
        return self._owners.get(key_hash(key))

    def is_admin(self, key: str | None) -> bool:
        return self._admin.matches(key)


def client_key(headers: Mapping[bytes, bytes]) -> str | None:
    """A client's key, as OpenAI's clients send it or, in ``x-api-key``, as Anthropic's do."""
    key = bearer(headers.get(b"authorization"))
    return key or headers.get(b"x-api-key", b"").decode("latin-1").strip() or None
