"""Publish versions to a chain, from one rank or from all ranks of a trainer; delete old versions; verify a chain.

Retention: the newest ``keep_anchors`` anchors and everything after the oldest of them are kept. The newest anchor is
never deleted, so a follower reaches the head from any weights or from none. A follower whose version is deleted while
it reads finds the manifest gone and plans again from what is left, so it needs no lease. A follower that holds a
version of the kept range continues with deltas alone.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing

from torch import Tensor

from .delta import Wanted, encode_parts
from .errors import ChainError, TornVersion, VersionConflict
from .fence import Fence, Writers
from .follow import Follower, read_version
from .image import Image, Piece, State, assemble, digest, take
from .manifest import (
    Kind,
    Manifest,
    Part,
    Parts,
    check_number,
    delete_version,
    fetch_ahead,
    read_manifest,
    sweep,
    version_key,
    versions,
    write_manifest,
    write_part,
)
from .ranks import Ranks
from .shards import Shard, own_part
from .store import Store, open_store


def collect_garbage(where: str | os.PathLike[str] | Store, *, keep_anchors: int = 2) -> list[int]:
    """Delete versions older than the ``keep_anchors``-th newest anchor; return their numbers."""
    if keep_anchors < 1:
        raise ValueError("collect_garbage: keep_anchors must be at least 1")
    store = open_store(where)
    found, writers = versions(store), Writers(store)
    writers.look()
    anchors = 0
    for at in range(len(found) - 1, -1, -1):  # Newest first, so that only manifests of kept versions are read.
        try:
            manifest = read_manifest(store, found[at])
            anchors += "full" in manifest.kinds and writers.counts(manifest)
        except (FileNotFoundError, TornVersion):
            continue  # No follower could start from it.
        if anchors == keep_anchors:
            for version in found[:at]:
                delete_version(store, version)
            return found[:at]
    return []


log = logging.getLogger(__name__)

Written = dict[Kind, list[Part]]


class Publisher:
    """The only writer of a chain: one process, or all ranks of a trainer together. Creating one takes the chain over
    from the previous publisher, whose next version is refused with PublisherFenced.

    Versions ascend; the first one is an anchor, and so is the first at or after each multiple of ``anchor_every``.
    Numbers may be left out: a delta names its base. Publishing a version again with equal weights does nothing, with
    other weights raises VersionConflict. A new Publisher continues where the chain ends.

    With several ranks every method is collective. Each rank compares its own pieces with those it published last and
    writes its own parts; rank 0 writes the manifest after all parts, so a version is visible whole or not at all. If a
    rank fails, all ranks raise an error that names it, and the same version can be published again.
    """

    def __init__(
        self,
        chain: str | os.PathLike[str] | Store,
        anchor_every: int = 25,
        *,
        keep_anchors: int = 0,
        level: int = 1,
        fsync: bool = True,
        part_bytes: int = 1 << 28,
        ranks: Ranks | None = None,
    ) -> None:
        if anchor_every < 1:
            raise ValueError("Publisher: anchor_every must be at least 1")
        self.store = open_store(chain, fsync=fsync)
        self.ranks = ranks or Ranks()
        self.anchor_every, self.keep_anchors = anchor_every, keep_anchors
        self.level, self.part_bytes = level, part_bytes
        self.bytes_written = 0
        """Bytes of parts that this rank has written."""
        self._fence: Fence | None = None
        self.head: int | None
        """Newest complete version, None for an empty chain."""
        self.head, self._writer = self.ranks.together(self._take_over)[0]
        self._base: tuple[int, Image] | None = None

    def _take_over(self) -> tuple[int | None, int]:
        """On rank 0, claim the chain; return the head and this publisher's number."""
        if self.ranks.rank:
            return None, 0
        self._fence = Fence(self.store)
        sweep(self.store, self._fence.head)
        return self._fence.head, self._fence.writer.number

    def publish(self, version: int, state: State) -> None:
        """Write ``version``; once this returns it is visible to followers."""
        self.write(version, self.snapshot(state))

    def snapshot(self, state: State) -> Image:
        """Copy this rank's pieces, for ``write``. Tensors that all ranks hold are distributed among them."""
        return take(own_part(state, self.ranks.rank, self.ranks.world))

    def write(self, version: int, image: Image) -> None:
        """Publish what ``snapshot`` copied; see ``publish``."""
        check_number(self.store.url, version)
        if self.head is not None and version <= self.head:
            self._republish(version, image)
            return
        receipts = self.ranks.together(lambda: (digest(image.values()), self._write_parts(version, image)))
        self.ranks.together(lambda: self._finish(self._fence, version, receipts) if self._fence else None)
        self.head, self._base = version, (version, image)

    def _write_parts(self, version: int, image: Image) -> Written:
        bases: dict[Kind, Image | None] = {}
        if self.head is not None:
            bases["delta"] = self._load(self.head, image)
        if self.head is None or version // self.anchor_every > self.head // self.anchor_every:
            bases["full"] = None
        parts: Written = {kind: [] for kind in bases}
        for kind, base in bases.items():
            encoded = encode_parts(image, base, level=self.level, part_bytes=self.part_bytes)
            for number, data in enumerate(encoded):
                name = f"{kind}-{self._writer:06d}-{self.ranks.rank:05d}-{number:05d}.bin"
                parts[kind].append(write_part(self.store, version, name, data))
                self.bytes_written += len(data)
        return parts

    def _finish(self, fence: Fence, version: int, receipts: list[tuple[int, Written]]) -> None:
        fence.check(version)
        kinds = {kind: [part for _, parts in receipts for part in parts[kind]] for kind in receipts[0][1]}
        manifest = Manifest(
            version=version,
            chain=fence.writer.chain,
            writer=fence.writer.number,
            base=self.head,
            base_digest=None if self.head is None else read_manifest(self.store, self.head).digest,
            digest=f"{sum(number for number, _ in receipts) % (1 << 128):032x}",
            kinds={kind: Parts(bytes=sum(p.bytes for p in parts), parts=parts) for kind, parts in kinds.items()},
        )
        self._show(fence, manifest)
        fence.check(version)  # A publisher that took over meanwhile may have read the head before this manifest.
        if "full" in kinds and self.keep_anchors:
            try:
                collect_garbage(self.store, keep_anchors=self.keep_anchors)
            except OSError as error:  # The next anchor tries again.
                log.warning("weights: old versions could not be deleted yet: %s", error)

    def _show(self, fence: Fence, manifest: Manifest) -> None:
        """Write the manifest; replace one by a fenced publisher, which does not count."""
        if write_manifest(self.store, manifest):
            return
        fence.check(manifest.version)
        if read_manifest(self.store, manifest.version).writer >= fence.writer.number:
            raise VersionConflict(f"{self.store.url}: version {manifest.version} already exists with other weights")
        write_manifest(self.store, manifest, replace=True)

    def _republish(self, version: int, image: Image) -> None:
        """Check that the version exists with these weights, however they are divided into pieces. Raises
        VersionConflict."""
        try:
            known = read_manifest(self.store, version).digest
        except FileNotFoundError:
            raise VersionConflict(
                f"{self.store.url}: version {version} is not in the chain, whose head is {self.head}; "
                "a version is published once, in order"
            ) from None
        total = sum(self.ranks.exchange(digest(image.values()))) % (1 << 128)
        if f"{total:032x}" == known:
            return
        whole = assemble(self._stored(version))
        names = set().union(*self.ranks.exchange({piece.name for piece in image.values()}))
        same = names == set(whole) and all(_holds(whole[piece.name], piece) for piece in image.values())
        if not all(self.ranks.exchange(same)):
            raise VersionConflict(
                f"{self.store.url}: version {version} was already published with other weights; "
                "a version never changes: give the run another chain or continue from its checkpoint"
            )

    def _load(self, head: int, image: Image) -> Image:
        """Return the weights that this rank's pieces are compared with; after a restart, read them from the chain."""
        if self._base is None or self._base[0] != head:
            self._base = (head, self._stored(head, wanted=lambda name, region: name + region.suffix in image))
        return self._base[1]

    def _stored(self, version: int, wanted: Wanted | None = None) -> Image:
        follower = Follower(self.store, wanted=wanted)
        if follower.advance(up_to=version) != version or follower.image is None:
            raise ChainError(f"{self.store.url}: version {version} cannot be rebuilt (reached {follower.version})")
        return follower.image


def verify_chain(chain: str | os.PathLike[str] | Store) -> list[int]:
    """Decode every version from the oldest anchor on, through deltas and through anchors, and compare.

    Returns the versions verified. Raises TornVersion, WrongBase, or ChainError (a missing version, no anchor, or an
    anchor that disagrees with the deltas).
    """
    store = open_store(chain)
    image: Image | None = None
    last: Manifest | None = None
    found = Writers(store).counting()
    for version in found:
        manifest = read_manifest(store, version)
        where = f"{store.url}/{version_key(version)}"
        if last is not None and manifest.base != last.version:
            raise ChainError(f"{where}: its base, version {manifest.base}, is missing (before it is {last.version})")
        kinds: tuple[Kind, ...] = ("delta", "full")
        for kind in kinds:
            if kind not in manifest.kinds or (kind == "delta" and last is None):
                continue
            parts = [(version, part) for part in manifest.kinds[kind].parts]
            with closing(fetch_ahead(store, parts, ahead=2)) as fetched:
                image = read_version(
                    store, manifest, kind, fetched, base=image, base_digest=last.digest if last else None
                )
            assemble(image)
        if image is None:
            raise ChainError(f"{where}: the oldest version is not an anchor")
        last = manifest
    return found


def _holds(tensor: Tensor, piece: Piece) -> bool:
    """Return whether the piece's region of a whole tensor has the piece's dtype and bytes."""
    region = piece.region
    if tuple(tensor.shape) != region.whole:
        return False
    (there,) = take({piece.name: Shard(tensor[region.slices], region)}).values()
    return (there.dtype, there.checksum) == (piece.dtype, piece.checksum)
