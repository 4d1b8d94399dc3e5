"""What requests asked to know about their tokens, for the rows of one step that asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .protocol import Sampling, TokenReport, point_mass


def token_reports(
    raw_BV: Tensor, adjusted_BV: Tensor, samplings: Sequence[Sampling], ids: Sequence[int]
) -> list[TokenReport | None]:
    """One per row, None where nothing is asked. ``raw_BV`` are the policy's logits, ``adjusted_BV`` those that were
    drawn from. Greedy rows drew from a point mass, so that is what they report unless asked for the policy."""
    reports: list[TokenReport | None] = [None] * len(samplings)
    for raw in (False, True):
        rows = [
            row
            for row, s in enumerate(samplings)
            if s.reported and s.raw_logprobs == raw and (raw or s.temperature != 0)
        ]
        if rows:
            logits_BV = raw_BV if raw else adjusted_BV
            for row, report in zip(rows, _of_rows(logits_BV, rows, samplings, ids)):
                reports[row] = report
    for row, s in enumerate(samplings):
        if s.reported and reports[row] is None:
            reports[row] = point_mass(ids[row], s)
    return reports


def _of_rows(
    logits_BV: Tensor, rows: Sequence[int], samplings: Sequence[Sampling], ids: Sequence[int]
) -> list[TokenReport]:
    logprobs_BV = logits_BV[torch.tensor(rows, device=logits_BV.device)].float().log_softmax(-1)
    chosen_B1 = torch.tensor([[ids[row]] for row in rows], device=logits_BV.device)
    chosen = logprobs_BV.gather(-1, chosen_B1)[:, 0].tolist()
    most = min(max(samplings[row].top_logprobs for row in rows), logits_BV.shape[-1])
    if not most:
        return [TokenReport(logprob) for logprob in chosen]
    best = logprobs_BV.topk(most)
    reports = []
    for row, logprob, tokens, values in zip(rows, chosen, best.indices.tolist(), best.values.tolist()):
        pairs = list(zip(tokens, values))[: samplings[row].top_logprobs]
        reports.append(TokenReport(logprob, tuple((t, v) for t, v in pairs if v != -math.inf)))
    return reports
