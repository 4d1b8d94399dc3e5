"""Follow a chain: from whatever is held to the newest version that can be reached."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from .delta import decode_image
from .errors import ChainError
from .image import Image, State, take
from .manifest import Part, read_manifest, read_part, version_dir, versions

log = logging.getLogger(__name__)


class Follower:
    """Reads a chain that a ``Publisher`` may be writing at the same time; never writes.

    Decoding makes new arrays and leaves the held ones alone until every checksum has been verified, so an
    interrupted ``poll`` is simply repeated, and an engine decodes before it pauses. Start from nothing, or from a
    version already in memory (``version`` and ``state``), which saves fetching an anchor.
    """

    def __init__(self, chain: Path | str, *, version: int | None = None, state: State | None = None) -> None:
        if (version is None) != (state is None):
            raise ValueError("Follower: give version and state together, or neither")
        self.chain = Path(chain)
        self.version = version
        self.bytes_read = 0
        self._image: Image | None = take(state) if state is not None else None

    @property
    def image(self) -> Image | None:
        """The held version as bytes."""
        return self._image

    def poll(self, *, up_to: int | None = None) -> tuple[int, dict[str, Tensor]] | None:
        """(version, state) of the newest reachable version above the held one (at most ``up_to``), or None.

        A version without a manifest is still being written: it is not there yet. Damaged versions are stepped around
        through an anchor where one exists, with a warning. Raises WrongBase or TornVersion if nothing newer can be
        reached because of them. The tensors share the follower's bytes: copy them, do not write into them.
        """
        found = [v for v in versions(self.chain) if up_to is None or v <= up_to]
        held = self.version
        newer = [v for v in found if held is None or v > held]
        problem: ChainError | None = None
        for path in self._paths(set(found), newer):
            version, image = held, self._image
            for step, part in path:
                try:
                    version, image = step, self._apply(step, part, image)
                except FileNotFoundError:
                    break  # Collected as garbage between listing and reading: a newer anchor exists.
                except ChainError as error:
                    problem = error
                    log.warning("weights: %s", error)
                    break
            if image is not None and version is not None and version != held:
                self.version, self._image = version, image
                return version, {name: part.tensor() for name, part in image.items()}
        if problem is not None:
            raise problem
        return None

    def _paths(self, found: set[int], newer: list[int]) -> list[list[tuple[int, Part]]]:
        """Ways to the newest reachable version, the fewest bytes first; then ways to older ones."""
        manifests = {v: m for v in newer if (m := self._manifest(v)) is not None}
        starts: list[tuple[int | None, list[tuple[int, Part]], int]] = []
        if self.version is not None:
            starts.append((self.version, [], 0))
        for v, manifest in manifests.items():
            if "full" in manifest["parts"]:
                starts.append((v, [(v, "full")], manifest["parts"]["full"]["bytes"]))
        ways: list[tuple[int, int, list[tuple[int, Part]]]] = []
        for at, path, cost in starts:
            while at is not None and at + 1 in manifests and "delta" in manifests[at + 1]["parts"]:
                at += 1
                path = [*path, (at, "delta")]
                cost += manifests[at]["parts"]["delta"]["bytes"]
            if path and at is not None:
                ways.append((-at, cost, path))
        return [path for _, _, path in sorted(ways, key=lambda way: way[:2])]

    def _manifest(self, version: int) -> dict[str, Any] | None:
        try:
            return read_manifest(self.chain, version)
        except (FileNotFoundError, ChainError) as error:
            log.warning("weights: version %d is not readable: %s", version, error)
            return None

    def _apply(self, version: int, part: Part, base: Image | None) -> Image:
        manifest = read_manifest(self.chain, version)
        data = read_part(self.chain, manifest, part)
        self.bytes_read += len(data)
        where = str(version_dir(self.chain, version) / f"{part}.bin")
        return decode_image(data, manifest["parts"][part], base if part == "delta" else None, where=where)
