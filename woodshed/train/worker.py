"""The trainer process: ``python -m woodshed.train.worker CONFIG.json``.

Batch n -> step n -> checkpoint n -> version n of the weight chain -> line n of the metrics. Each arrow is atomic and
repeatable and the checkpoint comes first, so a process killed anywhere continues with every batch trained exactly
once: on start, the chain and the metrics are brought up to the checkpoint, and whatever is ahead of it is dropped.
Versions are published in the background. If that takes longer than a step, the chain skips versions in between.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from woodshed.cluster.supervisor import FATAL
from woodshed.policy.decoder import Decoder
from woodshed.policy.device import resolve
from woodshed.policy.hf import load_decoder
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.weights.background import BackgroundPublisher
from woodshed.weights.chain import Publisher
from woodshed.weights.errors import ChainError

from .batch import BatchError, TrainBatch
from .checkpoint import CheckpointError, latest_checkpoint, load_reference, save_checkpoint, save_reference, steps
from .collate import collate, input_lengths, micro_batches
from .loss import target_logps
from .metrics_log import MetricsLog
from .settings import TrainSettings
from .trainer import Trainer
from .worker_config import WorkerConfig


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
            hidden_ND = self.decoder.forward(micro.tokens_N, micro.positions_N, micro.attention_fn)
            hidden_MD = hidden_ND.index_select(0, micro.at_M)
            for start in range(0, len(hidden_MD), chunk):
                span = slice(start, start + chunk)
                logp_C = target_logps(self.decoder, hidden_MD[span], micro, span)
                ref_N[micro.index_M[span]] = logp_C.float().cpu().numpy()
        return replace(batch, ref_logprobs=ref_N)


log = logging.getLogger("woodshed.train.worker")


def batch_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.safetensors"


class Worker:
    """Loads what there is, then trains one batch after the other."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.stopping = False
        decoder = load_decoder(config.policy, device=resolve(config.device), dtype=torch.float32)
        self.trainer = Trainer(decoder, config.train)
        chain = config.chain
        publisher = Publisher(
            config.weights,
            chain.anchor_every,
            keep_anchors=chain.keep_anchors,
            level=chain.level,
            fsync=chain.fsync,
            part_bytes=chain.part_mebibytes << 20,
        )
        self.publisher = BackgroundPublisher(publisher)
        self.metrics = MetricsLog(config.metrics)
        self._reference: Reference | None = None
        self.last_batch = ""
        self._mark = time.perf_counter()
        self._resume()

    def run(self) -> None:
        """Until ``config.steps`` is reached or ``stopping`` is set."""
        while not self.config.steps or self.trainer.step_count < self.config.steps:
            waited = time.perf_counter()
            batch = self._wait(self.trainer.step_count + 1)
            if batch is None:
                break
            self._train(batch, idle=time.perf_counter() - waited)
        self.publisher.close()

    def _resume(self) -> None:
        checkpoint = latest_checkpoint(self.config.checkpoints)
        if checkpoint is not None:
            load_hf_state(self.trainer.decoder, checkpoint.model, name=str(checkpoint.path))
            try:
                self.trainer.load_state(checkpoint.optimizer, checkpoint.state)
            except ValueError as error:
                raise CheckpointError(f"{checkpoint.path}: {error}") from None
            self.last_batch = checkpoint.state["batch"]
            log.info("continuing after step %d", checkpoint.step)
        head = self.publisher.head
        if head is None or head < self.trainer.step_count:
            self._publish()
            self.publisher.flush()
        if checkpoint is not None:
            self.metrics.append(checkpoint.state["metrics"])

    def _wait(self, step: int) -> TrainBatch | None:
        path = batch_path(self.config.batches, step)
        while not self.stopping:
            self.publisher.check()
            if path.exists():
                batch = TrainBatch.load(path)
                if batch.step != step:
                    raise BatchError(f"{path}: its header says step {batch.step}")
                if batch.id == self.last_batch:
                    raise BatchError(f"{path}: batch {batch.id!r} was already trained in step {step - 1}")
                return batch
            time.sleep(self.config.poll_seconds)
        return None

    def _train(self, batch: TrainBatch, *, idle: float) -> None:
        if needs_reference(batch):
            batch = self._load_reference().fill(batch)
        line: dict[str, Any] = {"step": batch.step, "batch": batch.id, **self.trainer.step(batch)}
        now = time.perf_counter()
        # Saving and publishing of the step before are busy time of this one: idle and busy add up to the wall time.
        line |= {"idle_seconds": idle, "busy_seconds": now - self._mark - idle, "time": time.time()}
        line["versions_skipped"] = self.publisher.skipped
        self._mark, self.last_batch = now, batch.id
        self._follow(batch.step)
        tensors, rest = self.trainer.state()
        s = self.config.train
        save_checkpoint(
            self.config.checkpoints,
            batch.step,
            hf_state(self.trainer.decoder),
            tensors,
            {**rest, "version": batch.step, "batch": batch.id, "metrics": line},
            keep=s.keep_checkpoints,
            fsync=s.fsync,
        )
        self._publish()
        self.metrics.append(line)
        if self.config.delete_batches:
            self._delete_batches()

    def _load_reference(self) -> Reference:
        """The policy that training started from, or the one of the last multiple of ``kl.reference_steps``. Read when a
        batch first asks for it: it is as large as the policy."""
        if self._reference is None:
            decoder = load_decoder(self.config.policy, device=resolve(self.config.device), dtype=torch.float32)
            if since := self._reference_step(self.trainer.step_count):
                load_hf_state(decoder, load_reference(self.config.checkpoints, since))
            self._reference = Reference(decoder, self.config.train)
        return self._reference

    def _reference_step(self, step: int) -> int:
        """The step after which the policy was what the reference is after ``step``; 0: where training started."""
        every = self.config.train.kl.reference_steps
        return step - step % every if every else 0

    def _follow(self, step: int) -> None:
        """Make the policy the reference where that is due; before the checkpoint, which is nothing without it."""
        if self._reference_step(step) != step:
            return
        state = hf_state(self.trainer.decoder)
        save_reference(self.config.checkpoints, step, state, keep=self.config.train.keep_checkpoints + 1)
        if self._reference is not None:
            load_hf_state(self._reference.decoder, state)

    def _publish(self) -> None:
        dtype = getattr(torch, self.config.chain.dtype)
        state: dict[str, Tensor] = {k: v.to(dtype) for k, v in hf_state(self.trainer.decoder).items()}
        self.publisher.publish(self.trainer.step_count, state)

    def _delete_batches(self) -> None:
        """Keep what a fall-back to the oldest kept checkpoint would need."""
        oldest = steps(self.config.checkpoints)[0]
        for path in self.config.batches.glob("step-*.safetensors"):
            if path.stem.removeprefix("step-").isdigit() and int(path.stem.removeprefix("step-")) <= oldest:
                path.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Exit status: 0 after the last step or SIGTERM, 2 for what no second try helps (bad usage, a damaged file)."""
    if len(argv) != 1:
        print("usage: python -m woodshed.train.worker CONFIG.json", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    config = WorkerConfig.model_validate_json(Path(argv[0]).read_bytes())
    torch.set_num_threads(config.threads)
    try:
        worker = Worker(config)

        def stop(signum: int, frame: object) -> None:
            worker.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        worker.run()
    except (BatchError, CheckpointError, ChainError) as error:
        print(f"{FATAL}{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
