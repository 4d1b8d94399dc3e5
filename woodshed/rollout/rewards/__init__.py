"""Reward terms of training, one function each; ``base`` defines what a term is."""

from .base import (
    RewardError,
    RewardFunction,
    RewardTerm,
    RewardTerms,
    TermSettings,
    check_builtin,
    load_term,
    names,
    raw_outcome,
    reward_function,
)

__all__ = [
    "RewardError",
    "RewardFunction",
    "RewardTerm",
    "RewardTerms",
    "TermSettings",
    "check_builtin",
    "load_term",
    "names",
    "raw_outcome",
    "reward_function",
]
