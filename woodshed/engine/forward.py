"""One iteration on the network: forward, sample, record."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.engine.attention import CausalMasks, StepAttention
from woodshed.engine.cache import RowCache
from woodshed.engine.request import Request
from woodshed.engine.sampler import sample
from woodshed.engine.scheduler import Step
from woodshed.policy.decoder import Decoder


class Forward:
    """Runs steps of a decoder on a cache. Engine's thread only, in inference mode."""

    def __init__(self, decoder: Decoder, cache: RowCache) -> None:
        self.decoder, self.cache = decoder, cache
        self.masks = CausalMasks(cache.device, cache.dtype)

    def run(self, step: Step) -> list[tuple[Request, int, float]]:
        """Compute the step's tokens; returns (request, sampled token, log-probability) for those whose sequence is
        now complete. Nothing of the requests is changed; the cache is."""
        attention = StepAttention(self.cache, self.decoder.config.num_heads, step.decode_rows, step.chunks, self.masks)
        rows, positions = attention.rows, attention.positions
        tokens = self._tensor(self.cache.tokens[rows, positions].astype(np.int64))
        sink: list[Tensor] | None = None if self.cache.routes is None else []
        hidden = self.decoder.forward(tokens, self._tensor(positions), attention, route_sink=sink)
        if sink is not None and self.cache.routes is not None:
            self.cache.routes[rows, positions] = torch.stack(sink, -2).cpu().numpy()
        sampled, last = list(step.decoding), list(range(len(step.decoding)))
        self.cache.lengths[step.decode_rows] += 1
        end = len(step.decoding)
        for request, chunk in zip(step.chunked, step.chunks):
            end += chunk.count
            self.cache.lengths[chunk.row] = chunk.start + chunk.count
            if chunk.start + chunk.count == request.total:
                sampled.append(request)
                last.append(end - 1)
        if not sampled:
            return []
        if len(last) != len(rows):
            hidden = hidden.index_select(0, self._tensor(np.array(last)))
        logits = self.decoder.logits(hidden)
        ids, logprobs = sample(logits, [r.sampling for r in sampled], [r.rng.random() for r in sampled])
        return list(zip(sampled, ids, logprobs))

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self.cache.device)
