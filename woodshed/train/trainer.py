"""One optimizer step from one batch, and its metrics."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.moe import Experts
from woodshed.policy.native.fused import fuse
from woodshed.policy.operators import products_in

from .batch import TrainBatch
from .collate import collate, input_lengths, weighted
from .loss import TokenStats, backward
from .optim import Optimizer, lr_factor
from .packing import micro_batches
from .settings import TrainSettings
from .teacher import read_hints, weighs_hints


def summarise(seen: TokenStats) -> dict[str, float]:
    """Return statistics of the trained tokens of a step.

    ``dlogp_mean``, ``dlogp_p99``, ``dlogp_max``: of |logp - behaviour|, the train/rollout mismatch. ``ratio_p1``,
    ``ratio_p50``, ``ratio_p99``: percentiles of r = exp(logp - behaviour), without interpolation. ``k3``: mean of
    r - 1 - log r, an estimate of KL(behaviour || pi) in nats. ``ess``: effective sample size (sum r)^2 / (n sum r^2),
    1 when on-policy. ``masked_share``: share of tokens whose importance weight is 0, or that are clipped. ``kl``: mean
    of logp - ref, the k1 estimate of the divergence from the reference, in nats per token. ``entropy``: in nats per
    token. Over the tokens of marked messages: ``hint_kl``: mean divergence from the teacher after the gate, in nats;
    ``hint_gap``: mean of log q (teacher) - log p (student) of the sampled token; ``hint_gated_share``: 1 minus the mean
    gate; ``hint_tokens``: number of these tokens.
    """
    out = {f"loss_{part}": value for part, value in seen.loss.items()}
    out["loss"] = sum(seen.loss.values())
    out["trained_tokens"] = float(seen.trained_tokens)
    if seen.entropy:
        out["entropy"] = float(torch.cat(seen.entropy).mean())
    if seen.gap:
        out["kl"] = float(torch.cat(seen.gap).mean())
    if seen.hint_gap:
        out["hint_kl"] = float(torch.cat(seen.hint_value).double().mean())
        out["hint_gap"] = float(torch.cat(seen.hint_gap).double().mean())
        out["hint_gated_share"] = 1 - float(torch.cat(seen.hint_gate).double().mean())
        out["hint_tokens"] = float(sum(map(len, seen.hint_gap)))
    if seen.dlogp:
        log_ratio = torch.cat(seen.dlogp).double()
        gap = log_ratio.abs().sort().values
        ratio = log_ratio.exp()
        out["dlogp_mean"] = float(gap.mean())
        out["dlogp_p99"] = float(gap[min(len(gap) - 1, int(0.99 * len(gap)))])
        out["dlogp_max"] = float(gap[-1])
        ordered = ratio.sort().values
        for percent in (1, 50, 99):
            out[f"ratio_p{percent}"] = float(ordered[min(len(ordered) - 1, percent * len(ordered) // 100)])
        out["k3"] = float((ratio - 1 - log_ratio).mean())
        out["ess"] = float(ratio.sum().square() / (len(ratio) * ratio.square().sum()))
        out["masked_share"] = float((torch.cat(seen.importance) == 0).double().mean())
    return out


log = logging.getLogger(__name__)


class Trainer:
    """Holds a decoder (trained in place) and its optimizer.

    ``start``: number of batches consumed in earlier rounds, where the learning-rate schedule begins; ``step_count``:
    number of batches consumed, including these. Equal policy, state and batches give bitwise equal results on the same
    machine with the same number of threads.
    """

    def __init__(self, decoder: Decoder, settings: TrainSettings, start: int = 0) -> None:
        self.decoder, self.settings, self.start = decoder, settings, start
        self.decoder.recompute = settings.recompute
        self.decoder.replay_ratio = settings.replay_ratio
        fuse(decoder, settings.products)
        self.optimizer = Optimizer(decoder, settings.optimizer)
        self.step_count = start

    def step(self, batch: TrainBatch, teacher: Decoder | None = None) -> dict[str, float]:
        """Train on ``batch`` and return its metrics.

        ``teacher``: policy that reads the hints of the batch, by default the trained policy itself. A batch without a
        weighted token, or whose gradient is not finite, changes no policy weight; the step counts all the same. Raises
        BatchError if ``ref_kl`` weighs tokens and the batch lacks ``ref_logprobs``.

        Metrics: of ``summarise``, ``grad_norm`` (before clipping), ``lr``, ``tokens`` (computed), ``spared_share``
        (share of all tokens that were not computed because rows share them), ``sequences``, ``rollouts`` (with at least
        one sequence), ``staleness_mean`` and ``staleness_max`` (versions between sampling and this step), ``seconds``,
        ``skipped`` (1 if no weight changed), ``teacher_tokens`` (positions that the teacher computed). For a mixture of
        experts whose routes the engine recorded, as shares of the experts to replay at computed positions:
        ``replay_differs_share`` (the trainer would not have chosen them) and ``replay_refused_share`` (rejected by
        ``replay_ratio``).
        """
        with products_in(self.settings.products):
            return self._step(batch, teacher)

    def _step(self, batch: TrainBatch, teacher: Decoder | None) -> dict[str, float]:
        started = time.perf_counter()
        used_N = weighted(batch)
        lengths = input_lengths(batch, used_N)
        seen, tokens, spared = TokenStats(), 0, 0
        read = None
        if weighs_hints(batch):
            read = read_hints(self.decoder if teacher is None else teacher, batch, self.settings)
        for rows in micro_batches(batch, lengths, self.settings.microbatch_tokens):
            micro = collate(batch, rows, lengths, used_N, self.decoder.device)
            backward(self.decoder, micro, batch.denominators, self.settings, seen, read)
            tokens += len(micro.tokens_N)
            spared += micro.spared_tokens
        metrics = summarise(seen)
        metrics["tokens"] = float(tokens)
        metrics["spared_share"] = spared / (tokens + spared) if tokens else 0.0
        if read is not None:
            metrics["teacher_tokens"] = float(read.tokens)
        metrics |= {"sequences": float(len(batch)), "rollouts": float(len(set(batch.trajectories)))}
        metrics |= _staleness(batch)
        metrics |= _replay(self.decoder)
        metrics |= self._update(skip=not tokens)
        metrics["seconds"] = time.perf_counter() - started
        return metrics

    def _update(self, *, skip: bool) -> dict[str, float]:
        factor = lr_factor(self.step_count - self.start, self.settings.schedule)
        self.step_count += 1
        out = {"lr": self.settings.optimizer.lr * factor, "skipped": float(skip), "grad_norm": 0.0}
        if skip:
            return out
        gradients = [p.grad for p in self.decoder.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        out["grad_norm"] = float(norm)
        if bool(norm.isfinite()):
            if self.settings.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(self.decoder.parameters(), self.settings.clip_norm, norm)
            self.optimizer.step(factor)
        else:
            out["skipped"] = 1.0
            log.warning("step %d: the gradient norm is %s; weights left as they were", self.step_count, float(norm))
        self.decoder.zero_grad(set_to_none=True)
        return out

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return (optimizer tensors, JSON-serialisable rest). With the weights this is all the state of training."""
        rng = torch.get_rng_state().numpy().tobytes().hex()
        return self.optimizer.state(), {"step": self.step_count, "torch_rng": rng}

    def load_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Load what ``state`` returned; the caller loads the decoder's weights."""
        self.optimizer.load_state(tensors)
        self.step_count = int(rest["step"])
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(rest["torch_rng"]), dtype=torch.uint8))


def _replay(decoder: Decoder) -> dict[str, float]:
    """Return the replay shares (see ``Trainer.step``) since the last call; empty if no experts were replayed."""
    layers = [module for module in decoder.modules() if isinstance(module, Experts) and module.replayed is not None]
    counts = [layer.replayed.tolist() for layer in layers if layer.replayed is not None]
    for layer in layers:
        layer.replayed = None
    asked, differs, refused = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    if not asked:
        return {}
    return {"replay_differs_share": differs / asked, "replay_refused_share": refused / asked}


def _staleness(batch: TrainBatch) -> dict[str, float]:
    """Return mean and maximum staleness. The weights before this step are version ``step - 1``; a token sampled by them
    has staleness 0."""
    sampled = batch.versions[batch.versions >= 0]
    if not len(sampled):
        return {}
    lag = batch.step - 1 - sampled
    return {"staleness_mean": float(lag.mean()), "staleness_max": float(lag.max())}
