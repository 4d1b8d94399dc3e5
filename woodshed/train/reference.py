"""Log-probabilities under the reference policy, for the loss part ``ref_kl``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from woodshed.policy.decoder import Decoder

from .batch import TrainBatch
from .collate import collate, input_lengths, micro_batches
from .loss import target_logps
from .settings import TrainSettings


def needs_reference(batch: TrainBatch) -> bool:
    """Whether ``ref_kl`` weighs tokens and their log-probabilities under the reference are not there yet."""
    return batch.ref_logprobs is None and "ref_kl" in batch.weights and bool(batch.weights["ref_kl"].any())


class Reference:
    """A frozen policy: the one that RL started from, or one that follows the trained one in steps."""

    def __init__(self, decoder: Decoder, settings: TrainSettings) -> None:
        self.decoder, self.settings = decoder.requires_grad_(False), settings

    @torch.no_grad()
    def fill(self, batch: TrainBatch) -> TrainBatch:
        """``batch`` with the log-probabilities of the tokens that ``ref_kl`` weighs, among those that grammars allowed.
        Experts are the reference's own choice, not the replayed ones."""
        used_N = batch.weights["ref_kl"] != 0
        lengths = input_lengths(batch, used_N)
        ref_N = np.full(len(batch.tokens), np.nan, np.float32)
        chunk = max(1, self.settings.logits_elements // self.decoder.config.vocab_size)
        bare = replace(batch, routes=None)
        for rows in micro_batches(lengths, self.settings.microbatch_tokens):
            micro = collate(bare, rows, lengths, used_N, self.decoder.device)
            hidden_ND = self.decoder.forward(micro.tokens_N, micro.positions_N, micro.attend)
            hidden_MD = hidden_ND.index_select(0, micro.at_M)
            for start in range(0, len(hidden_MD), chunk):
                span = slice(start, start + chunk)
                logp_C = target_logps(self.decoder, hidden_MD[span], micro, span)
                ref_N[micro.index_M[span]] = logp_C.float().cpu().numpy()
        return replace(batch, ref_logprobs=ref_N)
