"""Weights to publish, the same for a version in every process."""

import torch
from torch import Tensor

from woodshed.weights.chain import Publisher
from woodshed.weights.store import Store


def raw(state: dict[str, Tensor]) -> dict[str, bytes]:
    """The bytes of every tensor."""
    return {k: v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for k, v in state.items()}


def state_at(version: int, *, scale: float = 1e-3) -> dict[str, Tensor]:
    """float32, bfloat16 and float8 tensors that all change a little, with values that differ only as bytes."""
    weights = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    for v in range(version):
        weights = weights + scale * torch.randn(64, 32, generator=torch.Generator().manual_seed(v + 1))
    odd = torch.tensor([0x7FC00000 + version, -0x80000000, 0x7F800001, 1], dtype=torch.int32).view(torch.float32)
    return {
        "a.weight": weights,
        "b.weight": weights.bfloat16(),
        "c": weights[:4].to(torch.float8_e4m3fn),
        "d": weights[:4].to(torch.float8_e5m2),
        "frozen": torch.ones(7),
        "scalar": torch.tensor(float(version)),
        "empty": torch.zeros(0, 3),
        "odd": odd,
    }


def publish(chain: str | Store, count: int, anchor_every: int = 4, *, keep_anchors: int = 0) -> Publisher:
    publisher = Publisher(chain, anchor_every, keep_anchors=keep_anchors, fsync=False)
    for v in range(count):
        publisher.publish(v, state_at(v))
    return publisher
