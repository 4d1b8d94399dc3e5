"""Figures of one step from what its tokens looked like."""

from __future__ import annotations

import torch

from .loss import Observed


def summarise(seen: Observed) -> dict[str, float]:
    """Means over the trained tokens of a step.

    ``dlogp_mean``, ``dlogp_p99``, ``dlogp_max``: of |logp - behaviour|, the train/rollout mismatch. ``k3``: mean of
    r - 1 - log r with r = pi / behaviour, an estimate of KL(behaviour || pi) in nats. ``ess``: effective sample size
    (sum r)^2 / (n sum r^2), 1 when on-policy. ``masked_share``: tokens whose importance weight is 0, or that are
    clipped. ``kl``: mean of logp - ref, k1 of the divergence from the reference, in nats per token. ``entropy``: nats
    per token.
    """
    out = {f"loss_{part}": value for part, value in seen.loss.items()}
    out["loss"] = sum(seen.loss.values())
    out["trained_tokens"] = float(seen.trained_tokens)
    if seen.entropy:
        out["entropy"] = float(torch.cat(seen.entropy).mean())
    if seen.gap:
        out["kl"] = float(torch.cat(seen.gap).mean())
    if seen.dlogp:
        log_ratio = torch.cat(seen.dlogp).double()
        gap = log_ratio.abs().sort().values
        ratio = log_ratio.exp()
        out["dlogp_mean"] = float(gap.mean())
        out["dlogp_p99"] = float(gap[min(len(gap) - 1, int(0.99 * len(gap)))])
        out["dlogp_max"] = float(gap[-1])
        out["k3"] = float((ratio - 1 - log_ratio).mean())
        out["ess"] = float(ratio.sum().square() / (len(ratio) * ratio.square().sum()))
        out["masked_share"] = float((torch.cat(seen.importance) == 0).double().mean())
    return out
