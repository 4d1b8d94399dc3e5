"""Measure how long an engine pauses while it follows a trainer: both are real, in two processes, with a chain in a
folder.

``python benchmarks/weights_pause.py POLICY CHAIN STEPS BATCH`` is the trainer's side.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from woodshed.engine.local import LocalEngine
from woodshed.engine.opening import ChainWatch
from woodshed.engine.protocol import Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.hf import load_policy
from woodshed.policy.state import hf_state
from woodshed.train.batch import Sequence, pack
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer
from woodshed.weights.background import BackgroundPublisher
from woodshed.weights.chain import Publisher


def train(policy: Path, chain: Path, steps: int, rows: int) -> dict[str, float]:
    """Take RL steps on artificial rollouts, each published in the background like in the trainer process."""
    model = load_policy(policy, dtype=torch.float32)
    trainer = Trainer(model.decoder, TrainSettings())
    publisher = BackgroundPublisher(Publisher(chain, 25, keep_anchors=2))
    rng, vocabulary = np.random.default_rng(0), model.decoder.config.vocab_size
    began = time.perf_counter()
    for step in range(1, steps + 1):
        sequences = []
        for _ in range(rows):
            sampled = rng.random(160) < 0.25
            sampled[0] = False
            weight = np.where(sampled, rng.choice([-0.4, 0.6]), 0).astype(np.float32)
            behaviour = np.where(sampled, -np.log(vocabulary), np.nan).astype(np.float32)
            sequences.append(Sequence(rng.integers(0, vocabulary, 160).astype(np.int32), {"rl": weight}, behaviour))
        trainer.step(pack(sequences, id=str(step), step=step, denominators={"rl": rows * 40.0}))
        publisher.publish(step, hf_state(trainer.decoder))
    wall = time.perf_counter() - began
    publisher.close()
    return {
        "step_s": wall / steps,
        "trainer_copy_share": publisher.copy_seconds / wall,
        "versions": publisher.published,
        "skipped": publisher.skipped,
    }


async def follow(policy: Path, chain: Path, steps: int, rows: int) -> dict[str, float]:
    """Let an engine sample without a break from before the first version until after the last; return the pauses."""
    loaded = load_policy(policy)
    engine = LocalEngine(loaded.decoder, settings=EngineSettings(threads=1), version=0)
    prompt = list(range(1, 33))

    async def sample() -> None:
        while True:
            await engine.generate(prompt, Sampling(max_tokens=64))

    samplers = [asyncio.create_task(sample()) for _ in range(4)]
    command = [sys.executable, __file__, str(policy), str(chain), str(steps), str(rows)]
    trainer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    watch = ChainWatch(engine, str(chain), poll_seconds=0.05, timeout_seconds=600)
    while not chain.exists():
        await asyncio.sleep(0.05)
    watching = asyncio.create_task(watch.run())
    assert trainer.stdout is not None
    printed = await trainer.stdout.read()
    if await trainer.wait():
        raise SystemExit("the trainer of the pause measurement failed")
    await watch.follow(steps)
    stats = engine.stats()
    for task in (*samplers, watching):
        task.cancel()
    await engine.close()
    trained = json.loads(printed.splitlines()[-1])
    pause = stats["swap_seconds"] / max(1, stats["swaps"])
    return {**trained, "swaps": stats["swaps"], "pause_s": pause, "pause_share": pause / trained["step_s"]}


def measure(policy: Path, chain: Path, steps: int, rows: int) -> dict[str, float]:
    """Return the measurements. ``pause_share``: pause of sampling at a swap, as a share of a training step."""
    return asyncio.run(follow(policy, chain, steps, rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
