"""Publish versions to a chain, check a chain, delete what nobody can need."""

from __future__ import annotations

import shutil
from pathlib import Path

from .delta import decode_image, encode_image
from .errors import ChainError, VersionConflict
from .follow import Follower
from .image import Image, State, digest, take
from .manifest import Part, read_manifest, read_part, version_dir, versions, write_version


class Publisher:
    """The one writer of a chain.

    The first version may have any number and is an anchor; after it numbers are consecutive. Publishing a version
    again with equal weights does nothing, with other weights raises VersionConflict. A new Publisher continues
    where the chain ends.
    """

    def __init__(
        self, chain: Path | str, anchor_every: int = 25, *, keep_anchors: int = 0, level: int = 1, fsync: bool = True
    ) -> None:
        if anchor_every < 1:
            raise ValueError("Publisher: anchor_every must be at least 1")
        self.chain = Path(chain)
        self.chain.mkdir(parents=True, exist_ok=True)
        self.anchor_every, self.keep_anchors = anchor_every, keep_anchors
        self.level, self.fsync = level, fsync
        self._base: tuple[int, Image] | None = None

    @property
    def head(self) -> int | None:
        """Newest complete version, None for an empty chain."""
        found = versions(self.chain)
        return found[-1] if found else None

    def publish(self, version: int, state: State) -> Path:
        """Write ``version`` and return its folder once it is visible to followers."""
        image = take(state)
        head = self.head
        if head is not None and version <= head:
            return self._republish(version, image, head)
        if head is not None and version != head + 1:
            raise VersionConflict(f"{self.chain}: version {version} cannot follow {head}; publish {head + 1}")
        parts: dict[Part, tuple[bytes, dict]] = {}
        if head is not None:
            parts["delta"] = encode_image(image, self._load(head), level=self.level)
        if head is None or version % self.anchor_every == 0:
            parts["full"] = encode_image(image, None, level=self.level)
        folder = write_version(self.chain, version, digest(image), parts, fsync=self.fsync)
        self._base = (version, image)
        if "full" in parts and self.keep_anchors:
            collect_garbage(self.chain, keep_anchors=self.keep_anchors)
        return folder

    def _republish(self, version: int, image: Image, head: int) -> Path:
        try:
            known = read_manifest(self.chain, version)["digest"]
        except FileNotFoundError:
            raise VersionConflict(f"{self.chain}: version {version} is older than the chain (head {head})") from None
        if known != digest(image):
            raise VersionConflict(
                f"{self.chain}: version {version} was already published with other weights; "
                "a version never changes: give the run a new folder or continue from its checkpoint"
            )
        return version_dir(self.chain, version)

    def _load(self, head: int) -> Image:
        if self._base is None or self._base[0] != head:
            follower = Follower(self.chain)
            follower.poll()
            if follower.version != head or follower.image is None:
                raise ChainError(f"{self.chain}: head {head} cannot be rebuilt (reached {follower.version})")
            self._base = (head, follower.image)
        return self._base[1]


def verify_chain(chain: Path | str) -> list[int]:
    """Decode every version from the oldest anchor on, through deltas and through anchors, and compare.

    Returns the versions verified. Raises TornVersion, WrongBase, or ChainError (a gap, no anchor, or an anchor that
    disagrees with the deltas).
    """
    chain = Path(chain)
    image: Image | None = None
    last: int | None = None
    found = versions(chain)
    for version in found:
        manifest = read_manifest(chain, version)
        if last is not None and version != last + 1:
            raise ChainError(f"{chain}: version {last + 1} is missing between {last} and {version}")
        for part in ("delta", "full"):
            if part not in manifest["parts"] or (part == "delta" and last is None):
                continue
            data = read_part(chain, manifest, part)
            where = str(version_dir(chain, version) / f"{part}.bin")
            image = decode_image(data, manifest["parts"][part], image if part == "delta" else None, where=where)
            if digest(image) != manifest["digest"]:
                raise ChainError(f"{where}: result does not match the version's digest")
        if image is None:
            raise ChainError(f"{chain}: the oldest version {version} is no anchor")
        last = version
    return found


def collect_garbage(chain: Path | str, *, keep_anchors: int = 2) -> list[int]:
    """Delete versions older than the ``keep_anchors``-th newest anchor; returns their numbers."""
    if keep_anchors < 1:
        raise ValueError("collect_garbage: keep_anchors must be at least 1")
    chain = Path(chain)
    found = versions(chain)
    anchors = [v for v in found if "full" in read_manifest(chain, v)["parts"]]
    if len(anchors) < keep_anchors:
        return []
    old = [v for v in found if v < anchors[-keep_anchors]]
    for version in old:
        # The manifest goes first: a version is gone at once or not at all.
        (version_dir(chain, version) / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(version_dir(chain, version), ignore_errors=True)
    return old
