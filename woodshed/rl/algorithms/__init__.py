"""Algorithms: from the graded rollouts of one task to the weight of each of their tokens. One algorithm, one file."""

from .base import Algorithm, Weights, load_algorithm, names, spread

__all__ = ["Algorithm", "Weights", "load_algorithm", "names", "spread"]
