"""What of a chain is kept.

The rule: the newest ``keep_anchors`` anchors and everything after the oldest of them. From any weights, or from none,
a follower reaches the head through the newest anchor, which is never deleted; one that is reading a version while it
is deleted sees its manifest gone and plans again from what is there. So a follower needs no lease. One that holds a
version of the kept range goes on with deltas alone.
"""

from __future__ import annotations

import os

from .errors import TornVersion
from .fence import Writers
from .manifest import delete_version, read_manifest, versions
from .store import Store, open_store


def collect_garbage(where: str | os.PathLike[str] | Store, *, keep_anchors: int = 2) -> list[int]:
    """Delete versions older than the ``keep_anchors``-th newest anchor; returns their numbers."""
    if keep_anchors < 1:
        raise ValueError("collect_garbage: keep_anchors must be at least 1")
    store = open_store(where)
    found, writers = versions(store), Writers(store)
    writers.look()
    anchors = 0
    for at in range(len(found) - 1, -1, -1):  # Newest first: what is kept is read, what is deleted is not.
        try:
            manifest = read_manifest(store, found[at])
            anchors += "full" in manifest.kinds and writers.counts(manifest)
        except (FileNotFoundError, TornVersion):
            continue  # Not an anchor that anybody could start from.
        if anchors == keep_anchors:
            for version in found[:at]:
                delete_version(store, version)
            return found[:at]
    return []
