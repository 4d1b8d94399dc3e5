"""The draft head of a stage that was killed after its last step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.stages.test_solved import run_with
from tests.train.conftest import CONFIG
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.hf import Policy, load_policy
from woodshed.policy.mtp import MtpHead, mtp_state
from woodshed.recipe.load import load_recipe
from woodshed.recipe.stages import MtpSettings
from woodshed.stages import mtp
from woodshed.stages.examples import Example, batches, save_examples


class Killed(BaseException):
    """Ends the first start."""


def test_the_figures_of_the_last_step_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise Killed

    run = run_with(tmp_path)
    run.policy("rl").rename(run.policy("sft"))
    tokens = np.random.default_rng(0).integers(0, 60, 24).astype(np.int32)
    save_examples(run.examples(), [Example(tokens, (np.arange(24) > 0).astype(np.float32))])
    recipe = load_recipe("smoke", ["learn.mtp={steps=2, batch_tokens=16}", "policy.device='cpu'"])
    monkeypatch.setattr(mtp, "Every", lambda seconds: lambda: True)
    with monkeypatch.context() as first:
        first.setattr(mtp, "save_policy", killed)
        with pytest.raises(Killed):
            mtp.distill_head(recipe, run)
    mtp.distill_head(recipe, run)
    assert run.read_result_of("mtp")["loss"] > 0


def test_a_killed_stage_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same head, from the same batches and learning rates, after a kill behind the second of four steps."""
    rng = np.random.default_rng(0)
    shown = [Example(rng.integers(0, 60, 24).astype(np.int32), (np.arange(24) > 0).astype(np.float32)) for _ in "abc"]
    recipe = load_recipe("smoke", ["learn.mtp={steps=4, batch_tokens=16}", "policy.device='cpu'"])
    save, heads, lines = mtp.save_checkpoint, list[bytes](), list[str]()

    def killed(folder: Path, step: int, *rest: Any, **more: Any) -> None:
        save(folder, step, *rest, **more)
        if step == 2:
            raise Killed

    monkeypatch.setattr(mtp, "Every", lambda seconds: lambda: True)
    for kill in (False, True):
        run = run_with(tmp_path / str(kill))
        run.policy("rl").rename(run.policy("sft"))
        save_examples(run.examples(), shown)
        if kill:
            with monkeypatch.context() as first:
                first.setattr(mtp, "save_checkpoint", killed)
                with pytest.raises(Killed):
                    mtp.distill_head(recipe, run)
        mtp.distill_head(recipe, run)
        heads.append((run.policy("sft") / "mtp.safetensors").read_bytes())
        lines.append(run.stage_metrics("mtp").read_text())
    assert heads[0] == heads[1] and lines[0] == lines[1]


SEED = 7


def distilled(folder: Path, steps: int, lr: float) -> tuple[list[Example], Policy, Policy, list[dict[str, float]]]:
    """Run the stage; return its examples, the policy without a head and with it, and the lines of the metrics."""
    rng = np.random.default_rng(0)
    shown = [Example(rng.integers(0, 60, 24).astype(np.int32), (np.arange(24) > 0).astype(np.float32)) for _ in "abc"]
    settings = f"learn.mtp={{steps={steps}, batch_tokens=16, lr={lr}}}"
    recipe = load_recipe("smoke", [settings, f"seed={SEED}", "policy.device='cpu'"])
    run = run_with(folder)
    run.policy("rl").rename(run.policy("sft"))
    save_examples(run.examples(), shown)
    before = load_policy(run.policy("sft"))
    mtp.distill_head(recipe, run)
    lines = [json.loads(line) for line in run.stage_metrics("mtp").read_text().splitlines()]
    return shown, before, load_policy(run.policy("sft")), lines


def test_the_head_and_the_order_of_its_batches_are_of_the_seed(tmp_path: Path) -> None:
    """Two epochs at a learning rate of almost 0: the losses are those of the head that the seed draws."""
    shown, policy, _, lines = distilled(tmp_path, steps=6, lr=1e-9)
    head, settings = MtpHead(policy.config, seed=SEED), MtpSettings(batch_tokens=16)
    epochs = [batches(shown, 16, seed=SEED + epoch) for epoch in range(2)]
    losses = [mtp.distill_batch(policy.decoder, head, batch, settings, 4096)[0] for each in epochs for batch in each]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-4)


def test_the_steps_of_the_head_are_of_the_learning_rate(tmp_path: Path) -> None:
    """AdamW moves a parameter whose gradient keeps its sign by the rate; that of the second step of two is halved."""
    _, before, after, lines = distilled(tmp_path, steps=2, lr=4e-3)
    assert [line["lr"] for line in lines] == pytest.approx([4e-3, 2e-3])
    assert after.mtp is not None
    start, end = mtp_state(MtpHead(before.config, seed=SEED)), mtp_state(after.mtp)
    assert max(float((end[name] - start[name]).abs().max()) for name in start) == pytest.approx(6e-3, rel=0.02)


def test_a_tokens_weight_is_that_of_its_prediction() -> None:
    """Against the loss of each row alone: only token 7 is weighed, which position 6 predicts."""
    policy, head = Decoder(CONFIG, seed=1).requires_grad_(False), MtpHead(CONFIG, seed=2)
    rng, loss = np.random.default_rng(0), 0.0
    weights = (np.arange(12) == 7).astype(np.float32)
    examples = [Example(rng.integers(0, 61, n).astype(np.int32), weights[:n]) for n in (12, 9)]
    (batch,) = batches(examples, 100, seed=0)
    for example in examples:
        tokens = torch.from_numpy(example.tokens).long()[None]
        positions = torch.arange(tokens.shape[1])[None]
        hidden = policy.forward(tokens, positions, causal_attend())
        before = torch.nn.functional.pad(hidden, (0, 0, 1, -1))
        guess = head(policy, before, tokens, positions, causal_attend())
        p, q = (policy.logits(x[0, 6]).log_softmax(-1) for x in (hidden, guess))
        loss += float((p.exp() * (p - q)).sum().detach()) / 2
    for microbatch_tokens in (1, 100):
        found, _ = mtp.distill_batch(policy, head, batch, MtpSettings(depth=1), microbatch_tokens)
        assert found == pytest.approx(loss, rel=1e-5)
