"""Reward terms: what an episode is paid in training besides solving its task. One term is one function."""

from .base import RewardError, RewardFunction, RewardTerm, load_term, names, raw_outcome, reward_function
from .settings import RewardTerms, TermSettings

__all__ = [
    "RewardError",
    "RewardFunction",
    "RewardTerm",
    "RewardTerms",
    "TermSettings",
    "load_term",
    "names",
    "raw_outcome",
    "reward_function",
]
