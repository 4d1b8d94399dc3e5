"""One iteration of the engine on the network: the forward pass, sampling, and reports of log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.engine.native.kernels import Kernels
from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead

from .attention import CausalMasks, StepAttention, places
from .cache import RowCache
from .drafting import Drafter, MtpDrafter, NgramDrafter
from .graphs import DecodeGraphs, Record
from .protocol import Sampling, TokenReport, point_mass
from .request import Request
from .sampler import adjusted_logits, draw, kept_sets
from .scheduler import Step


def token_reports(
    raw_BV: Tensor,
    adjusted_BV: Tensor,
    samplings: Sequence[Sampling],
    ids: Sequence[int],
    logprobs: Sequence[float],
) -> list[TokenReport | None]:
    """Return one report per row, None for rows without one. ``raw_BV`` are the policy's logits, ``adjusted_BV`` the
    logits that were sampled from, ``logprobs`` the log-probabilities of the sampled ``ids``. Greedy rows report a point
    mass unless they request ``raw_logprobs``."""
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
    truncated = [row for row, s in enumerate(samplings) if s.truncated]
    for row, kept in zip(truncated, kept_sets(adjusted_BV, truncated)):
        reports[row] = replace(reports[row] or TokenReport(logprobs[row]), kept=kept)
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


@dataclass
class Sampled:
    """The tokens that a step sampled for one request, at least one, with their log-probabilities and reports (None
    if the request asked for none)."""

    request: Request
    tokens: list[int]
    logprobs: list[float]
    reports: list[TokenReport | None]


class Forward:
    """Runs steps of a decoder on a cache. Engine's thread only, in inference mode.

    With ``record``, steps that only decode are recorded as graphs and replayed; not supported with experts or ``mtp``.
    ``kernels``, if given, compute instead of ``decoder``.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: RowCache,
        *,
        mtp: MtpHead | None = None,
        ngram: bool = False,
        record: Record | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.decoder, self.cache = decoder, cache
        self.compute_with(kernels)
        self.masks = CausalMasks(cache.device, cache.dtype)
        self._mtp = MtpDrafter(decoder, mtp, cache, self.masks, self._logits) if mtp is not None else None
        self.drafter: Drafter | None = NgramDrafter(cache) if ngram else self._mtp
        self._graphs = None if record is None else DecodeGraphs(decoder, cache, record)

    def compute_with(self, kernels: Kernels | None) -> None:
        """Use ``kernels`` from the next step on; None means torch."""
        self._kernels = kernels
        self._logits = self.decoder.logits if kernels is None else kernels.logits

    def run(self, step: Step) -> list[Sampled]:
        """Compute the step's tokens, and sample for the requests that have no pending tokens left. Updates the cache,
        not the requests."""
        cache = self.cache
        ends = np.cumsum([1] * len(step.decoding) + [chunk.count for chunk in step.chunks])
        sampled_at = self._sampled_at(step, ends - 1)
        hidden_ND = None
        if self._graphs is not None and not step.chunks:
            hidden_ND = self._graphs.decode(step.decode_rows)
        if hidden_ND is None:
            hidden_ND = self._hidden(step, ends, sampled_at)
        due = [(request, int(end) - 1, 1) for request, end in zip(step.decoding, ends)]
        last = {request.row: int(end) - 1 for request, end in zip(step.decoding, ends)}
        cache.lengths[step.decode_rows] += 1
        for request, chunk, end in zip(step.chunked, step.chunks, ends[len(step.decoding) :].tolist()):
            cache.lengths[chunk.row] = chunk.start + chunk.count
            last[chunk.row] = end - 1
            if chunk.start + chunk.count >= request.total:
                width = 1 + len(request.draft)
                due.append((request, end - width, width))
        if sampled_at is not None:
            place = {int(index): i for i, index in enumerate(sampled_at)}
            due = [(request, place[first], width) for request, first, width in due]
        results = self._sample(hidden_ND, due, last)
        if self._mtp is not None:
            cache.last[list(last)] = hidden_ND[list(last.values())]
        return results

    def _hidden(self, step: Step, ends: NDArray[np.int64], sampled_at: NDArray[np.int64] | None) -> Tensor:
        """Hidden states of the step's tokens, or only of those at ``sampled_at``."""
        cache = self.cache
        rows, positions = places(cache, step.decode_rows, step.chunks)
        kernels = self._kernels if self._kernels is not None and self._kernels.take(len(rows)) else None
        if kernels is not None and self._mtp is None:
            return kernels.forward(cache, rows, positions, len(step.decoding), sampled_at)
        attention = StepAttention(cache, self.decoder.config.num_heads, step.decode_rows, step.chunks, self.masks)
        tokens_N = self._tensor(cache.tokens[rows, positions].astype(np.int64))
        positions_N = self._tensor(positions)
        if kernels is not None:
            hidden_ND = kernels.forward(cache, rows, positions, len(step.decoding), None).to(self.decoder.dtype)
        else:
            hidden_ND = self._by_operators(rows, positions, tokens_N, positions_N, attention, sampled_at)
        if self._mtp is not None:
            firsts = [0, *ends[:-1].tolist()]
            self._mtp.follow(attention, tokens_N, positions_N, hidden_ND, firsts)
        return hidden_ND

    def _by_operators(
        self,
        rows: NDArray[np.int64],
        positions: NDArray[np.int64],
        tokens_N: Tensor,
        positions_N: Tensor,
        attention: StepAttention,
        sampled_at: NDArray[np.int64] | None,
    ) -> Tensor:
        sink: list[Tensor] | None = None if self.cache.routes is None else []
        wanted = None
        if sampled_at is not None:
            attention.only(sampled_at)
            wanted = self._tensor(sampled_at)
        hidden_ND = self.decoder.forward(tokens_N, positions_N, attention, route_sink=sink, ends=wanted)
        if sink is not None and self.cache.routes is not None:
            self.cache.routes[rows, positions] = torch.stack(sink, -2).cpu().numpy()
        return hidden_ND

    def _sampled_at(self, step: Step, ends: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Indices of the step's tokens that need the last layer, in order of their rows; None if all do, as with
        drafts, an MTP head or routes. ``ends``: index of the last token of every decoding row and chunk."""
        if self._mtp is not None or self.cache.routes is not None or any(request.draft for request in step.chunked):
            return None
        due = [(row, end) for row, end in zip(step.decode_rows.tolist(), ends.tolist())]
        for request, chunk, end in zip(step.chunked, step.chunks, ends[len(due) :].tolist()):
            if chunk.start + chunk.count >= request.total:
                due.append((chunk.row, end))
        if len(due) == len(step.decoding) + sum(chunk.count for chunk in step.chunks):
            return None
        return np.array([end for _, end in sorted(due)], np.int64)

    def _sample(self, hidden_ND: Tensor, due: list[tuple[Request, int, int]], last: dict[int, int]) -> list[Sampled]:
        """Sample for ``due``: (request, index of its first position to sample at, number of positions). If a drafted
        token was rejected, corrects the length of the cache row, and ``last``."""
        if not due:
            return []
        at = [first + i for _, first, width in due for i in range(width)]
        if at != list(range(len(hidden_ND))):
            hidden_ND = hidden_ND.index_select(0, self._tensor(np.array(at)))
        samplings = [request.sampling for request, _, width in due for _ in range(width)]
        uniforms = [u for request, _, width in due for u in request.uniforms(width)]
        allowed, penalised, first_row = [], [], 0
        for request, _, width in due:
            allowed += list(enumerate(request.allowed(), first_row))
            penalised += list(enumerate(request.counts_after_draft(), first_row))
            first_row += width
        raw_NV = self._logits(hidden_ND)
        adjusted_NV = adjusted_logits(raw_NV, samplings, allowed, penalised)
        ids, logprobs = draw(adjusted_NV, samplings, uniforms)
        reports: list[TokenReport | None] = [None] * len(ids)
        if any(sampling.with_reports for sampling in samplings):
            reports = token_reports(raw_NV, adjusted_NV, samplings, ids, logprobs)
        results, start = [], 0
        for request, first, width in due:
            count = request.agreeing(ids[start : start + width])
            kept = slice(start, start + count)
            results.append(Sampled(request, ids[kept], logprobs[kept], reports[kept]))
            self.cache.lengths[request.row] -= width - count
            last[request.row] = first + count - 1
            start += width
        return results

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self.cache.device)
