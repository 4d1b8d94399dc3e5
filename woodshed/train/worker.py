"""The trainer process: ``python -m woodshed.train.worker CONFIG.json``.

Batch n -> step n -> checkpoint n -> line n of the metrics -> version n of the weight chain. Each arrow is atomic and
repeatable and the checkpoint comes first, so that a killed process resumes with every batch trained exactly once: on
start, the metrics and the chain are brought up to the checkpoint, and what they already have beyond it is not written
again. Versions are published in the background. If that takes longer than a step, the chain skips versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from .checkpoint import CheckpointError, latest_checkpoint, save_checkpoint, steps
from .metrics_log import MetricsLog
from .reference import AveragedPolicy, LaggedPolicy, Reference, needs_reference
from .teacher import weighs_hints
from .trainer import Trainer
from .worker_config import WorkerConfig

log = logging.getLogger("woodshed.train.worker")


def batch_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.safetensors"


class Worker:
    """Resumes from the latest checkpoint, then trains one batch after the other."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.stopping = False
        self.trainer = Trainer(self._start(), config.train, config.start)
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
        self._reference = self._lagged("reference", config.train.kl.reference_steps)
        self._teacher = self._make_teacher()
        self.last_batch = ""
        self._mark = time.perf_counter()
        self._resume()

    def run(self) -> None:
        """Train until ``config.steps`` is reached or ``stopping`` is set."""
        while self.config.steps is None or self.trainer.step_count < self.config.steps:
            waited = time.perf_counter()
            batch = self._wait(self.trainer.step_count + 1)
            if batch is None:
                break
            idle = time.perf_counter() - waited
            with self._computing():
                self._train(batch, idle=idle)
        self.publisher.close()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Hold the lock that keeps engines off this process's cores; it is released if the process is killed."""
        if self.config.lock is None:
            yield
            return
        with self.config.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

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
        if checkpoint is not None:
            self.metrics.append(checkpoint.state["metrics"])
        head, step = self.publisher.head, self.trainer.step_count
        if head is not None and head > step and not batch_path(self.config.batches, step + 1).exists():
            raise CheckpointError(
                f"{self.config.checkpoints}: version {head} of the weights is published, training can only be "
                f"continued after step {step}, and the batch of step {step + 1} was deleted: the checkpoints after it "
                "are damaged or missing. Restore one of them, or start over with --fresh"
            )
        if head is None or head < step:
            self._publish()
            self.publisher.flush()

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
        before = batch.step - 1
        if needs_reference(batch):
            batch = Reference(self._reference.decoder(before), self.config.train).fill(batch)
        teacher = None
        if self._teacher is not None and weighs_hints(batch):
            teacher = self._teacher.decoder(before)
        line: dict[str, Any] = {"step": batch.step, "batch": batch.id, **self.trainer.step(batch, teacher)}
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
        self.metrics.append(line)
        self._publish()
        if self.config.delete_batches:
            self._delete_batches()

    def _start(self) -> Decoder:
        """Load the policy that training started from."""
        return load_decoder(self.config.policy, device=resolve(self.config.device), dtype=torch.float32)

    def _lagged(self, name: str, every: int, rate: float | None = None) -> LaggedPolicy:
        config = self.config
        place: dict[str, Any] = {
            "name": name,
            "every": every,
            "load": self._start,
            "checkpoints": config.checkpoints,
            "keep": config.train.keep_checkpoints + 1,  # a file is saved before the checkpoint of its step
            "start": config.start,
            "fsync": config.train.fsync,
        }
        return LaggedPolicy(**place) if rate is None else AveragedPolicy(**place, rate=rate)

    def _make_teacher(self) -> LaggedPolicy | None:
        """Return the policy that reads hints; None for the trained policy itself. If it is equal to the reference, both
        share one copy."""
        hint_kl = self.config.train.hint_kl
        if hint_kl.teacher == "live":
            return None
        if hint_kl.teacher == "averaged":
            return self._lagged("teacher", 1, hint_kl.teacher_rate)
        every = hint_kl.teacher_steps if hint_kl.teacher == "lagged" else 0
        return self._reference if every == self._reference.every else self._lagged("teacher", every)

    def _follow(self, step: int) -> None:
        """Update the reference and the teacher to the policy if that is due. Done before the checkpoint is saved, which
        is useless without their files."""
        self._reference.follow(step, self.trainer.decoder)
        if self._teacher is not None and self._teacher is not self._reference:
            self._teacher.follow(step, self.trainer.decoder)

    def _publish(self) -> None:
        dtype = getattr(torch, self.config.chain.dtype)
        state: dict[str, Tensor] = {k: v.to(dtype) for k, v in hf_state(self.trainer.decoder).items()}
        self.publisher.publish(self.trainer.step_count, state)

    def _delete_batches(self) -> None:
        """Delete batches that a fall-back to the oldest kept checkpoint would not need."""
        oldest = steps(self.config.checkpoints)[0]
        for path in self.config.batches.glob("step-*.safetensors"):
            if path.stem.removeprefix("step-").isdigit() and int(path.stem.removeprefix("step-")) <= oldest:
                path.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Run the worker. Return the exit status: 0 after the last step, 2 for errors that a retry cannot fix (bad usage, a
    damaged file). After SIGTERM or SIGINT 0 if ``config.steps`` is None, else 128 plus the signal: a supervisor takes 0
    for the end of training."""
    if len(argv) != 1:
        print("usage: python -m woodshed.train.worker CONFIG.json", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    config = WorkerConfig.model_validate_json(Path(argv[0]).read_bytes())
    torch.set_num_threads(config.threads)
    status = 0
    try:
        worker = Worker(config)

        def stop(signum: int, frame: object) -> None:
            nonlocal status
            worker.stopping, status = True, 128 + signum

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        worker.run()
    except (BatchError, CheckpointError, ChainError) as error:
        print(f"{FATAL}{error}", file=sys.stderr)
        return 2
    unfinished = config.steps is not None and worker.trainer.step_count < config.steps
    return status if unfinished else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
