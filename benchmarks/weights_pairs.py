"""Pairs of consecutive checkpoints: from an RL run, from a pretrained model that is fine-tuned here, and synthetic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from woodshed.policy.hf import load_policy
from woodshed.policy.state import hf_state
from woodshed.train.batch import Sequence, pack
from woodshed.train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer
from woodshed.weights.image import Image, take

Pair = tuple[Image, Image]


def of_run(run: Path) -> tuple[str, Pair]:
    """Return a name and the two newest checkpoints of an RL run, as its engine gets them (float32)."""
    found = sorted(run.glob("checkpoints/step-*/model.safetensors"))[-2:]
    if len(found) < 2:
        raise SystemExit(f"{run}: has no two checkpoints under checkpoints/; name a run that did RL with --run")
    old, new = (load_file(path) for path in found)
    return f"{run.name}: {found[0].parent.name} to {found[1].parent.name}, float32", (take(old), take(new))


def as_bfloat16(pair: Pair) -> Pair:
    """Return the same weights in bfloat16, as an engine on a GPU gets them."""

    def cast(image: Image) -> Image:
        return take({piece.name: piece.tensor().bfloat16() for piece in image.values()})

    return cast(pair[0]), cast(pair[1])


def fine_tuned(policy: Path, lr: float, steps: int, tokens: int) -> Pair:
    """Return bfloat16 copies of float32 masters before and after the last of ``steps`` AdamW steps on this
    repository."""
    model = load_policy(policy, dtype=torch.float32)
    settings = TrainSettings(optimizer=OptimizerSettings(lr=lr), schedule=ScheduleSettings(warmup_steps=1))
    trainer = Trainer(model.decoder, settings)
    texts = sorted((Path(__file__).parents[1] / "woodshed").rglob("*.py"))
    old: Image = {}
    for step in range(1, steps + 1):
        ids = model.tokenizer.encode(texts[step * 7 % len(texts)].read_text())[:tokens]
        weight = torch.ones(len(ids)).numpy()
        weight[0] = 0.0
        if step == steps:
            old = snapshot(trainer)
        row = Sequence(torch.tensor(ids, dtype=torch.int32).numpy(), {"ce": weight}, None)
        trainer.step(pack([row], id=str(step), step=step, denominators={"ce": float(len(ids))}))
    return old, snapshot(trainer)


def snapshot(trainer: Trainer) -> Image:
    return take({name: tensor.bfloat16() for name, tensor in hf_state(trainer.decoder).items()})


def synthetic(parameters: int, lr: float, *, shard: int = 1 << 24) -> Iterator[Pair]:
    """Yield bfloat16 weights before and after one Adam step, in its stationary state, of float32 masters with standard
    deviation 0.02.

    If gradients are noise of variance 1, the first moment is N(0, (1 - b1) / (1 + b1)) and the second is 1. Yields one
    shard at a time, so that memory does not grow with ``parameters``.
    """
    b1, b2 = 0.9, 0.999
    for number, start in enumerate(range(0, parameters, shard)):
        generator = torch.Generator().manual_seed(number)
        count = min(shard, parameters - start)
        master, moment, gradient = (torch.empty(count).normal_(generator=generator) for _ in range(3))
        master *= 0.02
        old = take({f"shard{number}": master.bfloat16()})
        second = gradient.square().mul_(1 - b2).add_(b2).sqrt_()
        moment.mul_(b1 * ((1 - b1) / (1 + b1)) ** 0.5).add_(gradient, alpha=1 - b1)
        master.addcdiv_(moment, second, value=-lr)
        yield old, take({f"shard{number}": master.bfloat16()})
