"""The shard of a decoder on each of several tensor-parallel engine ranks (Megatron-LM, arXiv:1909.08053, section 3).

Projections into heads and into the MLP's hidden units are split by output (rows), those out of them by input
(columns), embedding and head by vocabulary; norms, output biases and routers are whole on every rank.
"""

from __future__ import annotations

import re
from dataclasses import replace

from woodshed.policy.config import DecoderConfig

from .layout import Layout, Slot
from .shards import Region

_ROWS = re.compile(r"(q|k|v|gate|up)_proj\.(weight|bias)$|embed_tokens\.weight$|lm_head\.weight$")
_COLUMNS = re.compile(r"(o|down)_proj\.weight$")


def tensor_parallel(layout: Layout, config: DecoderConfig, rank: int, size: int) -> Layout:
    """Restrict the ``layout`` of a whole decoder to the shard of ``rank`` of ``size``, its local tensors without gaps.

    With fewer key/value heads than ranks, several ranks share a head. Raises ValueError if heads, hidden units or
    vocabulary are not divisible by the number of ranks.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of {size}")
    return {local: _close_up([_share(slot, config, rank, size) for slot in slots]) for local, slots in layout.items()}


def local_shape(slots: list[Slot]) -> tuple[int, ...]:
    """Shape of the local tensor that ``slots`` fill."""
    return tuple(max(to for _, to in axis) for axis in zip(*(slot.local for slot in slots)))


def _share(slot: Slot, config: DecoderConfig, rank: int, size: int) -> Slot:
    axis = 0 if _ROWS.search(slot.name) else 1 if _COLUMNS.search(slot.name) else None
    if axis is None:
        return slot
    units, part, parts = slot.region.shape[axis], rank, size
    if ".k_proj." in slot.name or ".v_proj." in slot.name:
        parts = min(size, config.num_kv_heads)
        part = rank * parts // size
        units = config.num_kv_heads
    elif ".q_proj." in slot.name or ".o_proj." in slot.name:
        units = config.num_heads
    if units % parts or size % parts:
        raise ValueError(f"{slot.name}: {units} cannot be divided evenly among {size} engine ranks")
    each = slot.region.shape[axis] // parts
    shape = tuple(each if i == axis else n for i, n in enumerate(slot.region.shape))
    start = tuple(part * each if i == axis else 0 for i in range(len(shape)))
    return replace(slot, region=Region(slot.region.whole, start, shape))


def _close_up(slots: list[Slot]) -> list[Slot]:
    """Move slots together along the first axis of the tensor they fuse, separately for each stacked expert."""
    filled: dict[tuple[int, ...], int] = {}
    out = []
    for slot in sorted(slots, key=lambda s: s.at):
        lead = slot.at[: len(slot.at) - len(slot.region.shape)]
        row = filled.get(lead, 0)
        out.append(replace(slot, at=(*lead, row, *(0,) * (len(slot.region.shape) - 1))))
        filled[lead] = row + slot.region.shape[0]
    return out
