"""Sequence-level ratio and clipping (GSPO, Zheng et al. 2025, arXiv:2507.18071)."""

from __future__ import annotations

from .grpo import Grpo


class Gspo(Grpo):
    """The advantages of GRPO in the loss part ``gspo``: one importance ratio per sequence (the geometric mean of its
    tokens' ratios), where GRPO has one per token. A sequence here is a segment: what was sampled in one context."""

    parts = ("gspo",)
