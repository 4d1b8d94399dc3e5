"""Settings of the weight chain."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from woodshed.record.settings import Settings


class WeightSettings(Settings):
    """Where versions are stored and how they are written."""

    store: str = ""
    """``s3://bucket/prefix`` of the chain in any S3-compatible bucket; empty for the folder ``weights`` of the run.
    Each run needs a prefix of its own. Credentials and endpoint come from the environment (AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL), never from a recipe."""

    anchor_every: int = Field(default=25, ge=1)
    """The first version at or after each multiple of this also contains the full weights, so that a follower that is
    new or far behind need not replay the whole chain. Fireworks' published example uses 25."""

    keep_anchors: int = Field(default=2, ge=0)
    """Versions older than this many anchors are deleted after each new anchor; 0 keeps everything."""

    level: int = Field(default=1, ge=1, le=19)
    """zstd level. Higher levels cost trainer time and gain little: the XOR of two versions is mostly noise."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the published weights. The trainer keeps its own precision; bfloat16 halves an anchor, makes deltas far
    smaller, and is the dtype that engines on a GPU sample with."""

    part_mebibytes: int = Field(default=256, ge=1)
    """Approximate size of the weights in one object of a version. Objects are written one after the other and fetched
    several at once, so this bounds memory on both sides."""

    fsync: bool = True
    """In a folder, flush each version to the disk before it becomes visible, so that it also survives a power cut."""

    @field_validator("store")
    @classmethod
    def _names_a_prefix(cls, store: str) -> str:
        bucket, _, prefix = store.removeprefix("s3://").partition("/")
        if store and not (store.startswith("s3://") and bucket and prefix.strip("/")):
            raise ValueError(
                f'{store!r} is not the address of a chain: write "s3://bucket/prefix", or "" for the run\'s folder'
            )
        return store
