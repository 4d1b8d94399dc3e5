"""Algorithms: turn the graded rollouts of one task into a weight for each token. One algorithm per file."""

from .base import Algorithm, AlgorithmError, Weights, annotate, load_algorithm, names, spread

__all__ = ["Algorithm", "AlgorithmError", "Weights", "annotate", "load_algorithm", "names", "spread"]
