"""The teacher of ``hint_kl``: the final hidden states of marked messages, read with their hints, without a gradient.

Hidden states ``[H, D]`` are kept instead of logits ``[H, V]``: the loss computes the teacher's logits from them, chunk
by chunk like the student's, so every form of the divergence sees the whole vocabulary without storing it for all
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Decoder

from .batch import TrainBatch
from .collate import AllowedSets, collate, input_lengths
from .packing import micro_batches
from .settings import TrainSettings

_CHUNK = 512
"""Number of tokens whose logits are computed at once."""


@dataclass(frozen=True)
class Teacher:
    """Hidden states of the teacher. ``hidden_HD``: of the token before each marked one. ``row_N`` int64 ``[N]``: row of
    ``hidden_HD`` for each token of the batch (-1: none). ``counts_N`` bool ``[N]``: True for marked tokens that count
    (``hint_kl.until_rejected``). ``tokens``: number of positions that were computed."""

    decoder: Decoder
    hidden_HD: Tensor
    row_N: NDArray[np.int64]
    counts_N: NDArray[np.bool_]
    tokens: int

    @torch.no_grad()
    def logits(self, index_C: NDArray[np.int64]) -> Tensor:
        """Return the logits, float32 ``[C, V]``, for marked tokens, given by their indices in the batch."""
        rows_C = torch.from_numpy(self.row_N[index_C]).to(self.hidden_HD.device)
        return self.decoder.logits(self.hidden_HD.index_select(0, rows_C))


def weighs_hints(batch: TrainBatch) -> bool:
    """Return whether ``hint_kl`` weighs a token, so that a teacher is needed."""
    return "hint_kl" in batch.weights and bool(batch.weights["hint_kl"].any())


@torch.no_grad()
def read_hints(decoder: Decoder, batch: TrainBatch, settings: TrainSettings) -> Teacher:
    """Compute the teacher's hidden states for the hinted sequences of ``batch``. Experts are the teacher's own choice,
    since its context differs from the engine's."""
    hinted = batch.hinted
    assert hinted is not None, "TrainBatch.check sees to it that hints come with their weights"
    own_H, count = hinted.own_targets(), len(hinted.tokens)
    used_Q = np.zeros(count, np.bool_)
    used_Q[own_H] = True
    sequences = replace(
        batch,
        tokens=hinted.tokens,
        lengths=hinted.lengths,
        weights={},
        behaviour_logprobs=np.full(count, np.nan, np.float32),
        versions=np.full(count, -1, np.int32),
        trajectories=[""] * len(hinted),
        ref_logprobs=None,
        routes=None,
        allowed=None,
        allowed_of=None,
        hinted=None,
    )
    lengths = input_lengths(sequences, used_Q)
    order_Q = np.full(count, -1, np.int64)
    order_Q[own_H] = np.arange(len(own_H))
    hidden_HD = torch.empty((len(own_H), decoder.config.d_model), dtype=decoder.dtype, device=decoder.device)
    computed = 0
    for rows in micro_batches(sequences, lengths, settings.microbatch_tokens):
        micro = collate(sequences, rows, lengths, used_Q, decoder.device)
        place_M = torch.from_numpy(order_Q[micro.index_M]).to(decoder.device)
        hidden_HD.index_copy_(0, place_M, micro.hidden(decoder))
        computed += len(micro.tokens_N)
    row_N, counts_N = np.full(len(batch.tokens), -1, np.int64), np.zeros(len(batch.tokens), np.bool_)
    row_N[hinted.batch_targets()] = np.arange(len(own_H))
    counts_N[hinted.batch_targets()] = _before_rejection(decoder, hidden_HD, batch, settings.hint_kl.until_rejected)
    return Teacher(decoder, hidden_HD, row_N, counts_N, computed)


def _before_rejection(decoder: Decoder, hidden_HD: Tensor, batch: TrainBatch, nats: float) -> NDArray[np.bool_]:
    """Return bool ``[H]``: False for the tokens of a message after the first rejected one, whose log-probability under
    the teacher is more than ``nats`` below that at sampling. All True if ``nats`` is 0."""
    hinted = batch.hinted
    assert hinted is not None
    target_H = hinted.batch_targets()
    counts_H = np.ones(len(target_H), np.bool_)
    if not nats:
        return counts_H
    allowed = None if batch.allowed is None else AllowedSets.on(hidden_HD.device, batch.allowed)
    logq_H = np.empty(len(target_H), np.float32)
    for start in range(0, len(target_H), _CHUNK):
        span = slice(start, start + _CHUNK)
        token_C = torch.from_numpy(batch.tokens[target_H[span]].astype(np.int64)).to(hidden_HD.device)
        logits_CV = decoder.logits(hidden_HD[span])
        if allowed is not None and batch.allowed_of is not None:
            of_C = torch.from_numpy(batch.allowed_of[target_H[span]].astype(np.int64)).to(hidden_HD.device)
            logits_CV = logits_CV.masked_fill(~allowed.mask(of_C, logits_CV.shape[1]), -torch.inf)
        logq_H[span] = logits_CV.log_softmax(-1).gather(-1, token_C[:, None]).squeeze(-1).cpu().numpy()
    rejected_H = logq_H - batch.behaviour_logprobs[target_H] < -nats
    begin = 0
    for count in hinted.targets:
        before = np.cumsum(rejected_H[begin : begin + count])
        counts_H[begin : begin + count] = np.concatenate(([0], before[:-1])) == 0
        begin += count
    return counts_H
