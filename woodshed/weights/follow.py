"""Follow a chain: from the held weights, if any, to the newest version that can be reached."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from torch import Tensor

from .delta import Wanted, decode_part
from .errors import ChainError, ChainReplaced, TornVersion, WrongBase
from .fence import Writers
from .image import Image, State, assemble, digest, take
from .manifest import Kind, Manifest, fetch_ahead, read_manifest, version_key, versions
from .store import Store, open_store

log = logging.getLogger(__name__)

_PLANS = 5
Path = list[tuple[int, Kind]]


class Held(NamedTuple):
    """Weights in memory, their version and its digest."""

    version: int
    image: Image
    digest: str


class Follower:
    """Reads a chain that a ``Publisher`` may be writing at the same time; never writes.

    Decoding makes new arrays and does not touch the held ones until every checksum has been verified. So an interrupted
    call can be repeated, and an engine decodes before it pauses. A follower starts from nothing, or from a version
    already in memory (``version`` and ``state``, whole tensors), which saves fetching an anchor.

    ``wanted`` selects pieces, for a reader that needs only a part of the weights: use ``advance`` and ``image``.
    ``ahead``: number of parts that are fetched while another is decoded.
    """

    def __init__(
        self,
        chain: str | os.PathLike[str] | Store,
        *,
        version: int | None = None,
        state: State | None = None,
        wanted: Wanted | None = None,
        ahead: int = 4,
    ) -> None:
        if (version is None) != (state is None):
            raise ValueError("Follower: give version and state together, or neither")
        self.store = open_store(chain)
        self.version = version
        self.bytes_read = 0
        self._wanted, self._ahead = wanted, ahead
        self._image: Image | None = take(state) if state is not None else None
        self._digest = f"{digest(self._image.values()):032x}" if self._image is not None else None
        self._manifests: dict[int, Manifest] = {}
        self._unreadable: ChainError | None = None
        """Error of the first manifest that is damaged."""
        self._writers = Writers(self.store)
        self._chain: str | None = None
        """Identity of the chain that the held version came from."""
        self._publisher: str | None = None
        """Token of the newest publisher under which the chain was seen to have the held version."""

    @property
    def image(self) -> Image | None:
        """The held version as bytes."""
        return self._image

    def poll(self, *, up_to: int | None = None) -> tuple[int, dict[str, Tensor]] | None:
        """Return (version, whole tensors) of the newest reachable version above the held one (at most ``up_to``), or
        None.

        See ``advance``. The tensors share the follower's bytes: copy them, do not write into them.
        """
        version = self.advance(up_to=up_to)
        return None if version is None or self._image is None else (version, assemble(self._image))

    def advance(self, *, up_to: int | None = None) -> int | None:
        """Move to the newest reachable version above the held one (at most ``up_to``); return its number, or None if
        there is none.

        A version without a manifest is still being written and is ignored. Damaged versions are bypassed through an
        anchor if there is one, with a warning. Raises WrongBase or TornVersion if they, or a missing version, make
        every newer version unreachable, ChainReplaced if another chain is stored there now, OSError if the store does
        not answer.
        """
        for _ in range(_PLANS):
            try:
                return self._advance(up_to)
            except FileNotFoundError as error:
                log.info("weights: %s: deleted while it was read; planning again", error)
                self._manifests.clear()
        return None

    def _advance(self, up_to: int | None) -> int | None:
        best: Held | None = None
        paths = self._paths(up_to)
        problem = None if paths else self._unreachable()
        for path in paths:
            held, problem = self._walk(path)
            if held is not None and (best is None or held.version > best.version):
                best = held
            if problem is None:
                break
            log.warning("weights: %s", problem)
        if best is not None:
            self.version, self._image, self._digest = best.version, best.image, best.digest
            self._chain = self._manifests[best.version].chain
            return self.version
        if problem is not None:
            raise problem
        return None

    def _walk(self, path: Path) -> tuple[Held | None, ChainError | None]:
        """Follow a path as far as it is undamaged; return the version reached and the error that ended it."""
        steps = [(self._manifests[version], kind) for version, kind in path]
        parts = [(manifest.version, part) for manifest, kind in steps for part in manifest.kinds[kind].parts]
        held: Held | None = None
        image, known = self._image, self._digest
        with closing(fetch_ahead(self.store, parts, ahead=self._ahead)) as fetched:
            counted = self._counted(fetched)
            for manifest, kind in steps:
                try:
                    image = read_version(
                        self.store,
                        manifest,
                        kind,
                        counted,
                        base=image,
                        base_digest=known,
                        wanted=self._wanted,
                    )
                except ChainError as error:
                    return held, error
                known = manifest.digest
                held = Held(manifest.version, image, known)
        return held, None

    def _counted(self, fetched: Iterator[bytes]) -> Iterator[bytes]:
        for data in fetched:
            self.bytes_read += len(data)
            yield data

    def _paths(self, up_to: int | None) -> list[Path]:
        """Paths to the newest reachable version, the fewest bytes first; then paths to older ones."""
        found = versions(self.store, above=None if self.version is None else self.version - 1)
        self._writers.look()
        if self._chain is not None and self.version is not None:
            self._writers.check_same(self._chain, self.version)
            self._check_held(self.version, found)
        newer = [v for v in found if v != self.version and (up_to is None or v <= up_to)]
        self._unreadable = None
        self._manifests = {v: m for v in newer if (m := self._manifest(v)) is not None}
        following = {m.base: v for v, m in self._manifests.items() if "delta" in m.kinds}
        starts: list[tuple[int | None, Path, int]] = [(self.version, [], 0)] if self.version is not None else []
        for v, manifest in self._manifests.items():
            if "full" in manifest.kinds:
                starts.append((v, [(v, "full")], manifest.kinds["full"].bytes))
        ways: list[tuple[int, int, Path]] = []
        for start, path, cost in starts:
            at = start
            while at in following:
                at = following[at]
                path = [*path, (at, "delta")]
                cost += self._manifests[at].kinds["delta"].bytes
            if path and at is not None:
                ways.append((-at, cost, path))
        return [path for _, _, path in sorted(ways, key=lambda way: way[:2])]

    def _check_held(self, version: int, found: list[int]) -> None:
        """Raise ChainReplaced if the chain went back: its newest version is older than the held one, or the held number
        has other weights now. ``found``: versions from the held one on."""
        newest = self._writers.newest
        gone = not found  # the newest version is never deleted
        if newest is not None and newest.token != self._publisher and version in found:
            try:
                gone = read_manifest(self.store, version).digest != self._digest
            except (FileNotFoundError, TornVersion):
                return
            if not gone:
                self._publisher = newest.token
        if gone:
            raise ChainReplaced(
                f"{self.store.url}: version {version}, which came from this chain, is no longer in it, as after a "
                "restored backup; restart its followers"
            )

    def _manifest(self, version: int) -> Manifest | None:
        try:
            manifest = self._manifests.get(version) or read_manifest(self.store, version)
            return manifest if self._writers.counts(manifest) else None
        except (FileNotFoundError, ChainError) as error:
            log.warning("weights: version %d is not readable: %s", version, error)
            if self._unreadable is None and isinstance(error, ChainError):
                self._unreadable = error
            return None

    def _unreachable(self) -> ChainError | None:
        """Return the reason why no path leads to the newer versions, None if there are none."""
        if self._unreadable is not None or not self._manifests:
            return self._unreadable
        version, manifest = min(self._manifests.items())
        where = f"{self.store.url}/{version_key(version)}"
        return WrongBase(f"{where}: version {manifest.base}, which this delta was made from, is missing; use an anchor")


def read_version(
    store: Store,
    manifest: Manifest,
    kind: Kind,
    fetched: Iterator[bytes],
    *,
    base: Image | None,
    base_digest: str | None,
    wanted: Wanted | None = None,
) -> Image:
    """Decode one version from the bytes of its parts of one kind (``fetched`` yields those next).

    Raises WrongBase if the delta was not made from the weights with ``base_digest``, TornVersion if a part is damaged
    or the digest of the result is not the version's.
    """
    where = f"{store.url}/{version_key(manifest.version)}"
    if kind == "delta" and base_digest != manifest.base_digest:
        raise WrongBase(f"{where}: this delta was made from other weights than those held; use an anchor")
    image: Image = {}
    for part in manifest.kinds[kind].parts:
        data = next(fetched)
        image |= decode_part(data, base if kind == "delta" else None, where=where + part.name, wanted=wanted)
    if wanted is None and f"{digest(image.values()):032x}" != manifest.digest:
        raise TornVersion(f"{where}: the digest of its parts is not the one in the manifest")
    return image
