"""Weight swaps: what is asked for, checked, and loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.hf import hf_state, load_hf_state

KvPolicy = Literal["keep", "recompute", "drain"]


@dataclass(eq=False)
class Swap:
    """A swap that waits for the end of an iteration. ``future`` gets the seconds it took."""

    version: int
    state: Mapping[str, Tensor]
    kv: KvPolicy
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[float]


def expected_shapes(decoder: Decoder) -> dict[str, torch.Size]:
    """Hugging Face name -> shape of every tensor a state must hold."""
    return {name: tensor.shape for name, tensor in hf_state(decoder).items()}


def check_state(shapes: Mapping[str, torch.Size], state: Mapping[str, Tensor]) -> None:
    """Raises ValueError naming the first tensor that is missing, unknown or of the wrong shape."""
    missing, unknown = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    if missing:
        raise ValueError(f"the state lacks {missing[0]} ({len(missing)} tensors are missing)")
    if unknown:
        raise ValueError(f"the state holds {unknown[0]}, which the policy does not have ({len(unknown)} such tensors)")
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise ValueError(f"{name} has shape {list(state[name].shape)}; the policy's is {list(shape)}")


def load_state(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    """Copy a state into the decoder's own tensors."""
    load_hf_state(decoder, dict(state))
