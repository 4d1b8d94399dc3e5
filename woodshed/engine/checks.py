"""What is refused before anything runs. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import ContextLengthExceeded
from .protocol import Sampling

MOST_TOP_LOGPROBS = 20
"""Alternatives per token, as in the API of OpenAI."""
MOST_PENALTY = 2.0
"""Of presence and frequency, either way, as in the API of OpenAI."""


def checked_prompt(tokens: Sequence[int], vocabulary: int, context: int) -> NDArray[np.int32]:
    """The prompt as int32 ``[P]``. Raises ValueError (ContextLengthExceeded where it is too long)."""
    prompt = np.asarray(tokens, dtype=np.int64)
    if prompt.ndim != 1 or not len(prompt):
        raise ValueError("tokens: a request needs a flat sequence of at least one token")
    if len(prompt) + 1 > context:
        raise ContextLengthExceeded(len(prompt), context)
    wrong = (prompt < 0) | (prompt >= vocabulary)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"tokens[{at}] is {prompt[at]}; the policy knows ids 0 to {vocabulary - 1}")
    return prompt.astype(np.int32)


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises ValueError naming the field that is out of range."""
    limits = (
        ("max_tokens", sampling.max_tokens >= 1, "must be at least 1"),
        ("temperature", 0 <= sampling.temperature < math.inf, "must be finite and not negative"),
        ("top_p", 0 < sampling.top_p <= 1, "must be above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "must be 0 (off) or more"),
        ("drawn", sampling.drawn >= 0, "must be 0 or more"),
        ("min_p", 0 <= sampling.min_p <= 1, "must be from 0 to 1"),
        ("presence_penalty", abs(sampling.presence_penalty) <= MOST_PENALTY, "must be from -2 to 2"),
        ("frequency_penalty", abs(sampling.frequency_penalty) <= MOST_PENALTY, "must be from -2 to 2"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "must be finite and above 0"),
        ("top_logprobs", 0 <= sampling.top_logprobs <= MOST_TOP_LOGPROBS, f"must be from 0 to {MOST_TOP_LOGPROBS}"),
    )
    for name, fine, rule in limits:
        if not fine:
            raise ValueError(f"sampling.{name} is {getattr(sampling, name)}; it {rule}")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise ValueError(f"sampling.logit_bias names token {token}; the policy knows ids 0 to {vocabulary - 1}")
        if math.isnan(bias) or bias == math.inf:
            raise ValueError(f"sampling.logit_bias of token {token} is {bias}; it must be finite or -inf")
