"""Samples one token per row of a batch of logits, with its log-probability.

Sampling inverts the cumulative distribution at one uniform number per row, so a row's token depends only on its own
generator and logits, not on the rest of the batch, and needs no noise of vocabulary size.

Penalties make earlier tokens less (or more) likely. They change the logit x of a token that was generated c times as
follows, in this order, after grammar and bias and before temperature, as in vLLM:

- repetition (Keskar et al. 2019, section 4.1): x / r where x > 0, else x * r; tokens of the prompt count too;
- frequency and presence (OpenAI's definition): x - c * frequency - (c > 0) * presence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .protocol import Sampling

Counts = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Distinct token ids, and how often each was generated."""
Penalised = Sequence[tuple[int, Counts]]
"""Pairs of a row and the counts of the tokens that its penalties apply to."""


class TokenCounts:
    """Counts of the tokens of one request that penalties apply to. ``generated`` are the ``drawn`` tokens of its
    prompt."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], generated: Sequence[int]) -> None:
        seen = dict.fromkeys(prompt) if sampling.repetition_penalty != 1 else {}
        self._at = {token: i for i, token in enumerate(seen)}
        self._ids = array("q", seen)
        self._counts = array("f", bytes(4 * len(seen)))
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more generated token."""
        at = self._at.setdefault(token, len(self._ids))
        if at == len(self._ids):
            self._ids.append(token)
            self._counts.append(0.0)
        self._counts[at] += 1

    def after(self, draft: Sequence[int]) -> list[Counts]:
        """Return the counts now and after each token of ``draft``, without changing them."""
        known = len(self._ids)
        out = [self._now()]
        for token in draft:
            self.add(token)
            out.append(self._now())
        for token in draft:
            self._counts[self._at[token]] -= 1
        for token in self._ids[known:]:
            del self._at[token]
        del self._ids[known:], self._counts[known:]
        return out

    def _now(self) -> Counts:
        return np.array(self._ids, np.int64), np.array(self._counts, np.float32)


Allowed = Sequence[tuple[int, NDArray[np.uint8]]]
"""Pairs of a row and its allowed tokens as a bit mask, little endian; tokens beyond its end are not allowed."""

NUMBERS_AT_ONCE = 1 << 17
"""Logits that a CPU samples from at a time, so that intermediate results stay in its cache."""


def truncate(logits_BV: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits with everything outside top-k, top-p and min-p at -inf, applied in that order.

    ``logits_BV`` float32 ``[B, V]`` after temperature; ``top_k`` int64 ``[B]`` (0 is off), ``top_p`` and ``min_p``
    float32 ``[B]``. Top-p keeps the smallest set of tokens whose probability reaches p (Holtzman et al. 2020, section
    3.1), min-p those with at least p times the largest probability (Nguyen et al. 2025, section 3); the most probable
    token always stays.
    """
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    vocabulary = logits_BV.shape[-1]
    rank_V = torch.arange(vocabulary, device=logits_BV.device)
    limit_B = torch.where(top_k > 0, top_k, vocabulary)
    sorted_BV = sorted_BV.masked_fill(rank_V >= limit_B[:, None], -torch.inf)
    probs_BV = sorted_BV.softmax(-1)
    before_BV = probs_BV.cumsum(-1) - probs_BV
    drop_BV = ((before_BV >= top_p[:, None]) & (top_p[:, None] < 1)) | (probs_BV < min_p[:, None] * probs_BV[:, :1])
    drop_BV[:, 0] = False
    sorted_BV = sorted_BV.masked_fill(drop_BV, -torch.inf)
    return torch.empty_like(logits_BV).scatter_(-1, order_BV, sorted_BV)


def kept_sets(adjusted_BV: Tensor, rows: Sequence[int]) -> list[bytes]:
    """Ids of the tokens that can be sampled in each of ``rows``: int32 little endian, ascending.

    ``adjusted_BV`` float32 ``[B, V]`` as ``adjusted_logits`` returns them: everything outside the set is at -inf.
    """
    if not rows:
        return []
    kept_RV = adjusted_BV[torch.tensor(rows, device=adjusted_BV.device)] > -torch.inf
    ends = kept_RV.sum(-1).cumsum(0).tolist()
    ids = kept_RV.nonzero()[:, 1].to(torch.int32).cpu().numpy().astype("<i4", copy=False)
    return [part.tobytes() for part in np.split(ids, ends[:-1])]


def adjusted_logits(
    logits_BV: Tensor, samplings: Sequence[Sampling], allowed: Allowed = (), penalised: Penalised = ()
) -> Tensor:
    """Float32 logits ``[B, V]`` after grammar, bias, penalties, temperature and truncation, in this order. Temperature
    0 does not scale. ``logits_BV`` is not modified."""
    logits_BV = logits_BV.float()
    device = logits_BV.device
    if allowed:
        index = torch.tensor([row for row, _ in allowed], device=device)
        bits = np.unpackbits(np.stack([b for _, b in allowed]), axis=1, count=logits_BV.shape[1], bitorder="little")
        kept_BV = torch.from_numpy(bits.view(np.bool_)).to(device)
        logits_BV = logits_BV.index_copy(0, index, logits_BV[index].masked_fill(~kept_BV, -torch.inf))
    biased = [(row, s.logit_bias) for row, s in enumerate(samplings) if s.logit_bias]
    if biased:
        logits_BV = logits_BV.clone()
        for row, bias in biased:
            ids = torch.tensor(list(bias.keys()), device=device)
            logits_BV[row, ids] += torch.tensor(list(bias.values()), dtype=torch.float32, device=device)
    if penalised:
        logits_BV = penalise(logits_BV, samplings, penalised)
    if any(s.temperature not in (0.0, 1.0) for s in samplings):
        temperature = torch.tensor([s.temperature or 1.0 for s in samplings], device=device)
        logits_BV = logits_BV / temperature[:, None]
    rows = [row for row, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1 or s.min_p > 0]
    if rows:
        index = torch.tensor(rows, device=device)
        chosen = [samplings[row] for row in rows]
        cut = truncate(
            logits_BV[index],
            torch.tensor([s.top_k for s in chosen], device=device),
            torch.tensor([s.top_p for s in chosen], device=device),
            torch.tensor([s.min_p for s in chosen], device=device),
        )
        logits_BV = logits_BV.index_copy(0, index, cut)
    return logits_BV


def penalise(logits_BV: Tensor, samplings: Sequence[Sampling], penalised: Penalised) -> Tensor:
    """Float32 logits ``[B, V]`` with the penalties of the given rows, as defined at the top of this file."""
    lengths = [len(ids) for _, (ids, _) in penalised]
    rows_N = np.repeat([row for row, _ in penalised], lengths)
    ids_N = np.concatenate([ids for _, (ids, _) in penalised])
    if not len(ids_N):
        return logits_BV
    given = [samplings[row] for row, _ in penalised]

    def column(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), lengths)).to(logits_BV.device)

    at = (torch.from_numpy(rows_N).to(logits_BV.device), torch.from_numpy(ids_N).to(logits_BV.device))
    counts_N = torch.from_numpy(np.concatenate([counts for _, (_, counts) in penalised])).to(logits_BV.device)
    repetition_N = column([s.repetition_penalty for s in given])
    x_N = logits_BV[at]
    x_N = torch.where(x_N > 0, x_N / repetition_N, x_N * repetition_N)
    x_N = x_N - counts_N * column([s.frequency_penalty for s in given])
    x_N = x_N - (counts_N > 0) * column([s.presence_penalty for s in given])
    return logits_BV.index_put(at, x_N)


def sample(
    logits_BV: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float], allowed: Allowed = ()
) -> tuple[list[int], list[float]]:
    """Adjust logits ``[B, V]`` of any float type with ``adjusted_logits``, then ``draw``."""
    return draw(adjusted_logits(logits_BV, samplings, allowed), samplings, uniforms)


def draw(logits_BV: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """One token id and its natural log-probability per row.

    ``logits_BV`` float32 ``[B, V]`` from ``adjusted_logits``; ``uniforms`` in [0, 1), one per row. The log-probability
    is that under the distribution drawn from, so it is 0 in greedy decoding (temperature 0), which draws from a point
    mass. A row whose logits are not finite yields log-probability nan.
    """
    greedy = [row for row, s in enumerate(samplings) if s.temperature == 0.0]
    if len(greedy) == len(samplings):
        return _greedy(logits_BV)
    points_B = torch.as_tensor(np.asarray(uniforms), device=logits_BV.device)
    at_once = max(1, NUMBERS_AT_ONCE // logits_BV.shape[1]) if logits_BV.device.type == "cpu" else len(logits_BV)
    ids, logps = [], []
    for some_BV, points in zip(logits_BV.split(at_once), points_B.split(at_once)):
        drawn, logps_of_them = _draw(some_BV, points)
        ids += drawn
        logps += logps_of_them
    if greedy:
        for row, token, logp in zip(greedy, *_greedy(logits_BV[greedy])):
            ids[row], logps[row] = token, logp
    return ids, logps


def _draw(logits_BV: Tensor, points_B: Tensor) -> tuple[list[int], list[float]]:
    probs_BV = logits_BV.softmax(-1)
    cdf_BV = probs_BV.cumsum(-1, dtype=torch.float64)
    total_B1 = cdf_BV[:, -1:]
    point_B1 = points_B[:, None] * total_B1
    # rounding must not push the point to the total: the first entry above it always has a positive probability
    point_B1 = torch.minimum(point_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    ids_B1 = torch.searchsorted(cdf_BV, point_B1, right=True).clamp_(max=logits_BV.shape[-1] - 1)
    return ids_B1[:, 0].tolist(), probs_BV.gather(-1, ids_B1).log_()[:, 0].tolist()


def _greedy(logits_BV: Tensor) -> tuple[list[int], list[float]]:
    best = logits_BV.max(-1)
    return best.indices.tolist(), (best.values * 0.0).tolist()  # 0, and nan where the logits are not finite
