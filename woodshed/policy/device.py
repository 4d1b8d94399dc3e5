"""Choice of the device that networks run on."""

from __future__ import annotations

import torch

from woodshed.record.settings import Device


def resolve(device: Device) -> torch.device:
    """Return the torch device of that name. Raises ValueError for ``cuda`` if torch finds no GPU."""
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError("device is 'cuda', but torch finds no GPU; set 'auto' or 'cpu', or install a CUDA torch")
    return torch.device("cuda" if found and device != "cpu" else "cpu")
