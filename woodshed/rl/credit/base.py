"""What every credit algorithm does, and how to get one by name.

An algorithm sees the rewards of one group (the rollouts of one task) and nothing about their lengths. To add one,
write a class with ``advantages`` in a file of its own and name it in ``_NAMES``, or pass any object of this protocol
to ``build_batch``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_NAMES = {
    "mean_baseline": "MeanBaseline",
    "leave_one_out": "LeaveOneOut",
    "grpo": "Grpo",
}


class Credit(Protocol):
    def advantages(self, rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        """Advantages ``[G]`` of the rewards ``[G]`` of one group; G is at least 2."""
        ...


def names() -> tuple[str, ...]:
    return tuple(_NAMES)


def get_credit(name: str) -> Credit:
    """Raises ValueError for an unknown name."""
    if name not in _NAMES:
        raise ValueError(f"unknown credit {name!r}; known: {', '.join(_NAMES)}")
    return getattr(import_module(f"{__package__}.{name}"), _NAMES[name])()
