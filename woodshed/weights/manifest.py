"""One version in a store: ``v000012/manifest.json`` (written last) beside its parts. Imports no torch.

Parts are named ``delta-WRITER-RANK-NUMBER.bin`` (and ``full-...`` in anchors), so that no two writers write the same
one. An anchor also keeps its delta, so that a follower that is up to date never fetches full weights. ``fetch_ahead``
fetches parts ahead of their decoding.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import ChainError, TornVersion
from .store import Store, open_store

Kind = Literal["delta", "full"]
MAX_VERSION = 999_999
_STRICT = ConfigDict(extra="forbid", frozen=True)
_MANIFEST = re.compile(r"v(\d{6})/manifest\.json")


class Part(BaseModel):
    """Manifest entry of one part; ``checksum`` is the xxh3-128 of its bytes, as hex."""

    model_config = _STRICT

    name: str = Field(pattern=r"^(delta|full)-\d{6,}-\d{5}-\d{5}\.bin$")
    bytes: int
    checksum: str


class Parts(BaseModel):
    """The parts of one kind, and their total size in bytes."""

    model_config = _STRICT

    bytes: int
    parts: list[Part]


class Manifest(BaseModel):
    """Description of a version. ``base`` and ``base_digest`` are those of the version that the delta was made from,
    None in a chain's first version; ``digest`` is ``image.digest`` of the result, as hex. ``chain`` is the chain's
    random identity and ``writer`` the number of its publisher (``fence``)."""

    model_config = _STRICT

    format: Literal["woodshed-weights-3"] = "woodshed-weights-3"
    chain: str
    writer: int
    version: int
    base: int | None
    base_digest: str | None
    digest: str
    kinds: dict[Kind, Parts]


def version_key(version: int, name: str = "") -> str:
    return f"v{version:06d}/{name}"


def versions(where: str | os.PathLike[str] | Store, *, above: int | None = None) -> list[int]:
    """Return the numbers of all versions with a manifest, ascending; only those ``above`` a number if given. If one
    publisher took over from another, some of these versions may not count (``fence.Writers``)."""
    after = "" if above is None else version_key(above, "~")  # "~" sorts after every name used in a version
    found = (_MANIFEST.fullmatch(key) for key in open_store(where).listing(after=after))
    return [int(match[1]) for match in found if match]


def read_manifest(store: Store, version: int) -> Manifest:
    """Read a manifest. Raises FileNotFoundError if the version is not complete, TornVersion if the file is damaged."""
    key = version_key(version, "manifest.json")
    data = store.get(key)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise TornVersion(
            f"{store.url}/{key}: not a manifest of a weight chain: {field or 'file'}: {first['msg']}"
        ) from None
    if manifest.version != version or (manifest.base is not None and manifest.base >= version):
        raise TornVersion(f"{store.url}/{key}: is the manifest of version {manifest.version} with base {manifest.base}")
    return manifest


def read_part(store: Store, version: int, part: Part) -> bytes:
    """Read a part and check it against the manifest's entry. Raises TornVersion if they differ, FileNotFoundError if
    the whole version was deleted meanwhile."""
    key = version_key(version, part.name)
    where = f"{store.url}/{key}"
    try:
        data = store.get(key)
    except FileNotFoundError:
        store.get(version_key(version, "manifest.json"))
        raise TornVersion(f"{where}: missing, though the manifest names it") from None
    if len(data) != part.bytes:
        raise TornVersion(f"{where}: {len(data)} bytes, the manifest says {part.bytes}")
    if xxhash.xxh3_128_hexdigest(data) != part.checksum:
        raise TornVersion(f"{where}: does not match the manifest's checksum")
    return data


def write_part(store: Store, version: int, name: str, data: bytes) -> Part:
    """Write a part and return its entry for the manifest."""
    store.put(version_key(version, name), data)
    return Part(name=name, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))


def write_manifest(store: Store, manifest: Manifest, *, replace: bool = False) -> bool:
    """Make a version visible whose parts are all written. Unless ``replace``, an existing other manifest stays, and the
    result is False."""
    key, data = version_key(manifest.version, "manifest.json"), manifest.model_dump_json().encode()
    if not replace:
        return store.create(key, data)
    store.put(key, data)
    return True


def delete_version(store: Store, version: int) -> None:
    """Delete a version, its manifest first, so that it disappears at once."""
    store.delete(version_key(version, "manifest.json"))
    store.delete(version_key(version))


def sweep(store: Store, head: int | None) -> None:
    """Delete what interrupted publishing left after ``head``, the newest version."""
    after = "" if head is None else version_key(head, "~")
    for folder in sorted({key.partition("/")[0] for key in store.listing(after=after)}):
        if re.fullmatch(r"v\d{6}", folder):
            store.delete(folder + "/")


def check_number(where: str, version: int) -> None:
    if not 0 <= version <= MAX_VERSION:
        raise ChainError(f"{where}: version {version} is not between 0 and {MAX_VERSION}")


def fetch_ahead(store: Store, parts: Sequence[tuple[int, Part]], *, ahead: int) -> Generator[bytes, None, None]:
    """Yield the bytes of each ``(version, part)``, in order, while the next ``ahead`` are being fetched.

    At most ``ahead + 1`` parts are held. An error of a part is raised when its turn comes; see ``read_part``.
    """
    waiting = iter(parts)
    under_way: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(max(1, ahead), thread_name_prefix="weights") as pool:
        try:
            under_way.extend(pool.submit(read_part, store, *part) for part in islice(waiting, ahead))
            while True:
                under_way.extend(pool.submit(read_part, store, *part) for part in islice(waiting, 1))
                if not under_way:
                    return
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
