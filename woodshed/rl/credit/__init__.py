"""Credit assignment: from the rewards of a group to the advantages of its trajectories. One algorithm, one file."""

from .base import Credit, get_credit, names

__all__ = ["Credit", "get_credit", "names"]
