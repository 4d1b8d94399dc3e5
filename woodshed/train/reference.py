"""Policies that the trained one is compared with: frozen, updated to it every so many steps, or its moving average."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.native.fused import fuse
from woodshed.policy.operators import products_in
from woodshed.policy.state import hf_state, load_hf_state

from .batch import TrainBatch
from .checkpoint import load_reference, save_reference
from .collate import collate, input_lengths
from .loss import target_logps
from .packing import micro_batches
from .settings import TrainSettings


def needs_reference(batch: TrainBatch) -> bool:
    """Return whether ``ref_kl`` weighs tokens of a batch that has no ``ref_logprobs`` yet."""
    return batch.ref_logprobs is None and "ref_kl" in batch.weights and bool(batch.weights["ref_kl"].any())


class Reference:
    """Computes log-probabilities under a policy that is not trained."""

    def __init__(self, decoder: Decoder, settings: TrainSettings) -> None:
        self.decoder, self.settings = decoder.requires_grad_(False), settings
        fuse(decoder, settings.products)

    @torch.no_grad()
    def fill(self, batch: TrainBatch) -> TrainBatch:
        """Return ``batch`` with ``ref_logprobs`` of the tokens that ``ref_kl`` weighs, normalised over the allowed
        tokens. Experts are the reference's own choice, not the replayed ones."""
        used_N = batch.weights["ref_kl"] != 0
        lengths = input_lengths(batch, used_N)
        ref_N = np.full(len(batch.tokens), np.nan, np.float32)
        chunk = max(1, self.settings.logits_elements // self.decoder.config.vocab_size)
        bare = replace(batch, routes=None)
        with products_in(self.settings.products):
            for rows in micro_batches(bare, lengths, self.settings.microbatch_tokens):
                micro = collate(bare, rows, lengths, used_N, self.decoder.device)
                hidden_MD = micro.hidden(self.decoder)
                for start in range(0, len(hidden_MD), chunk):
                    span = slice(start, start + chunk)
                    logp_C = target_logps(self.decoder, hidden_MD[span], micro, span)
                    ref_N[micro.index_M[span]] = logp_C.float().cpu().numpy()
        return replace(batch, ref_logprobs=ref_N)


@dataclass
class LaggedPolicy:
    """A copy of the policy that is updated every ``every`` steps, counted from ``start``, the step at which training
    started; with ``every`` 0 it stays the policy that training started from.

    ``name``: prefix of its files in ``checkpoints``, of which the newest ``keep`` are kept; ``fsync``: flush them to
    disk. ``load`` returns the policy that training started from; to save memory, it is called only when ``decoder`` is
    first called.
    """

    name: str
    every: int
    load: Callable[[], Decoder]
    checkpoints: Path
    keep: int
    start: int = 0
    fsync: bool = True
    _decoder: Decoder | None = field(default=None, init=False)

    def decoder(self, step: int) -> Decoder:
        """Return the policy to compare with in the step after ``step``. Raises CheckpointError without its file."""
        if self._decoder is None:
            self._decoder = self.load().requires_grad_(False)
            if (since := self._since(step)) > self.start:
                load_hf_state(self._decoder, load_reference(self.checkpoints, since, self.name))
        return self._decoder

    def follow(self, step: int, policy: Decoder) -> None:
        """Copy and save ``policy`` as it is after ``step``, if an update is due. Call it before the checkpoint of that
        step is saved, which is useless without this file."""
        if self._since(step) != step:
            return
        state = hf_state(policy)
        self._save(step, state)
        if self._decoder is not None:
            load_hf_state(self._decoder, state)

    def _save(self, step: int, state: Mapping[str, Tensor]) -> None:
        save_reference(self.checkpoints, step, state, keep=self.keep, fsync=self.fsync, name=self.name)

    def _since(self, step: int) -> int:
        return step - (step - self.start) % self.every if self.every else self.start


@dataclass
class AveragedPolicy(LaggedPolicy):
    """An exponential moving average of the policy, in float32: after each step, m <- (1 - rate) m + rate * policy, from
    the policy that training started from. ``every`` must be 1."""

    rate: float = 0.05

    def follow(self, step: int, policy: Decoder) -> None:
        """Move towards ``policy`` as it is after ``step``, and save the average. Call it as for a lagged policy."""
        average = self.decoder(step - 1)
        before, now = hf_state(average), hf_state(policy)
        state = {name: torch.lerp(before[name], tensor.to(before[name]), self.rate) for name, tensor in now.items()}
        load_hf_state(average, state)
        self._save(step, state)
