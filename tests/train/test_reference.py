"""Policies that the trained one is compared with, and the KL term to them from the recipe's setting to the gradient."""

import copy
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.state import hf_state
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.record.segment import Segment
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.train.batch import TrainBatch
from woodshed.train.checkpoint import CheckpointError
from woodshed.train.reference import AveragedPolicy, Reference, needs_reference
from woodshed.train.settings import (
    HintKlSettings,
    ImportanceSettings,
    KlSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)
from woodshed.train.token_sets import SetTable
from woodshed.train.trainer import Trainer
from woodshed.train.worker import Worker, batch_path
from woodshed.train.worker_config import WorkerConfig
from woodshed.weights.follow import Follower
from woodshed.weights.settings import WeightSettings

from .conftest import CONFIG, MOE

Teacher = Literal["lagged", "averaged"]


def asked(batch: TrainBatch) -> TrainBatch:
    return replace(batch, ref_logprobs=None)


def test_the_reference_agrees_with_a_forward_pass_of_every_sequence(decoder, make_batch) -> None:
    batch = asked(make_batch(parts=("rl", "ref_kl")))
    assert needs_reference(batch) and not needs_reference(make_batch(parts=("ref_kl",)))
    filled = Reference(decoder, TrainSettings(microbatch_tokens=40, logits_elements=200)).fill(batch)
    assert filled.ref_logprobs is not None and not needs_reference(filled)
    filled.check()
    used = batch.weights["ref_kl"] != 0
    assert np.isnan(filled.ref_logprobs[~used]).all()
    for start, end in zip(batch.offsets, batch.offsets[1:]):
        tokens = torch.from_numpy(batch.tokens[start:end]).long()[None]
        hidden = decoder.forward(tokens, torch.arange(tokens.shape[1])[None], causal_attend())
        logp = decoder.logits(hidden)[0].log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0].detach().numpy()
        here = used[start:end][1:]
        np.testing.assert_allclose(filled.ref_logprobs[start + 1 : end][here], logp[here], atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, MOE])
def test_an_averaged_policy_is_the_moving_average(tmp_path: Path, config) -> None:
    """theta'_n = (1 - r)^n theta_0 + sum over k of r (1 - r)^(n - k) theta_k, in float64; also after a restart."""
    rate, begin = 0.05, 3
    policies = [Decoder(config, seed=seed) for seed in range(6)]

    def averaged() -> AveragedPolicy:
        return AveragedPolicy("teacher", 1, lambda: copy.deepcopy(policies[0]), tmp_path, 2, begin, rate=rate)

    whole = averaged()
    for number, policy in enumerate(policies[1:4], 1):
        whole.follow(begin + number, policy)
    again = averaged()
    for number, policy in enumerate(policies[4:], 4):
        whole.follow(begin + number, policy)
        again.follow(begin + number, policy)
    states = [hf_state(policy) for policy in policies]
    ours, theirs = (hf_state(one.decoder(begin + 5)) for one in (whole, again))
    for name, tensor in ours.items():
        wanted = sum(rate * (1 - rate) ** (5 - k) * states[k][name].double() for k in range(1, 6))
        wanted = wanted + (1 - rate) ** 5 * states[0][name].double()
        torch.testing.assert_close(tensor.double(), wanted, rtol=0, atol=1e-6)
        assert torch.equal(tensor, theirs[name]), "a restarted trainer continues with the same average"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"teacher-00000{n}.safetensors" for n in (7, 8)]
    (tmp_path / "teacher-000008.safetensors").write_bytes(b"no such file")
    with pytest.raises(CheckpointError, match=r"teacher-000008\.safetensors: not the teacher"):
        averaged().decoder(8)


def test_the_reference_replays_no_experts(make_batch) -> None:
    batch, reference = asked(make_batch(parts=("ref_kl",))), Reference(Decoder(MOE, seed=1), TrainSettings())
    routes = np.random.default_rng(0).permuted(np.tile(np.arange(4), (len(batch.tokens), 2, 1)), axis=-1)[..., :2]
    plain, replayed = (reference.fill(b).ref_logprobs for b in (batch, replace(batch, routes=routes.astype(np.int16))))
    np.testing.assert_array_equal(plain, replayed)


def test_under_a_grammar_the_reference_chooses_among_the_allowed_tokens(decoder, make_batch) -> None:
    batch = asked(make_batch(parts=("rl", "ref_kl")))
    vocabulary = decoder.config.vocab_size
    may = np.random.default_rng(3).random((len(batch.tokens), vocabulary)) < 0.3
    may[np.arange(len(batch.tokens)), batch.tokens] = True
    of = np.arange(len(batch.tokens), dtype=np.int32)
    of[::3] = -1
    table = SetTable()
    numbers = np.array([table.add_ids(np.flatnonzero(row)) for row in may], np.int32)
    allowed, numbers = table.build(np.where(of >= 0, numbers, -1).astype(np.int32))
    masked = replace(batch, allowed=allowed, allowed_of=numbers)
    filled = Reference(decoder, TrainSettings(microbatch_tokens=40, logits_elements=200)).fill(masked)
    assert filled.ref_logprobs is not None
    used = batch.weights["ref_kl"] != 0
    for start, end in zip(batch.offsets, batch.offsets[1:]):
        tokens = torch.from_numpy(batch.tokens[start:end]).long()[None]
        hidden = decoder.forward(tokens, torch.arange(tokens.shape[1])[None], causal_attend())
        logits = decoder.logits(hidden)[0].detach().double().numpy()[:-1]
        for t in np.flatnonzero(used[start:end][1:]):
            at = start + 1 + t
            allowed = may[at] if of[at] >= 0 else np.ones(vocabulary, bool)
            expected = logits[t, batch.tokens[at]] - np.log(np.exp(logits[t][allowed]).sum())
            assert filled.ref_logprobs[at] == pytest.approx(expected, abs=1e-5)


def test_the_gradient_is_that_of_k1_detached_in_the_advantage(decoder, make_batch) -> None:
    """Weights ``A - beta * (logp - ref)`` of the part ``rl`` alone, computed here, give the same step."""
    beta, settings = 0.3, TrainSettings(importance=ImportanceSettings(mode="off"), clip_norm=0.0)
    reference = copy.deepcopy(decoder)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    batch = make_batch(parts=("rl",))
    sampled = batch.weights["rl"] != 0
    weighted = np.where(sampled, beta, 0).astype(np.float32)
    whole = asked(
        replace(
            batch,
            weights={**batch.weights, "ref_kl": weighted},
            denominators={**batch.denominators, "ref_kl": batch.denominators["rl"]},
        )
    )
    theirs = Reference(reference, settings).fill(whole)
    own = Reference(copy.deepcopy(decoder), settings).fill(whole)
    assert theirs.ref_logprobs is not None and own.ref_logprobs is not None
    k1 = np.where(sampled, own.ref_logprobs - theirs.ref_logprobs, 0)
    by_hand = replace(batch, weights={"rl": (batch.weights["rl"] - beta * k1).astype(np.float32)})
    one, other = copy.deepcopy(decoder), copy.deepcopy(decoder)
    norms = [Trainer(one, settings).step(theirs)["grad_norm"], Trainer(other, settings).step(by_hand)["grad_norm"]]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4) and norms[0] > 0


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chat = get_format("compact")
    tokenizer = Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens))
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("policy") / "start"
    return save_policy(Policy(Decoder(config, seed=5), tokenizer, chat, config), folder)


def groups(rewards: tuple[float, float]) -> list[list[Trajectory]]:
    mask = np.array([False, True, True, True])
    segment = Segment(
        np.arange(5, 9, dtype=np.int32),
        mask,
        np.where(mask, -5.0, 0).astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32),
    )
    return [
        [
            Trajectory(f"t{i}", "t", "g", "train", "h", "p", "submitted", segments=[segment], rewards={"outcome": r})
            for i, r in enumerate(rewards)
        ]
    ]


def worker_config(root: Path, policy: Path, steps: int, train: TrainSettings, start: int = 0) -> WorkerConfig:
    return WorkerConfig(
        policy=policy,
        start=start,
        batches=root / "batches",
        weights=root / "weights",
        checkpoints=root / "checkpoints",
        metrics=root / "metrics.jsonl",
        steps=steps,
        chain=WeightSettings(fsync=False),
        train=train,
    )


def test_the_trainer_pulls_towards_the_policy_that_it_started_from(tmp_path: Path, policy_dir: Path) -> None:
    """Steps of RL away from it, then steps without a reward to compare: only with the term does the policy return."""
    gaps = {}
    for beta in (0.0, 1.0):
        train = TrainSettings(
            fsync=False,
            importance=ImportanceSettings(mode="off"),
            schedule=ScheduleSettings(warmup_steps=0),
            optimizer=OptimizerSettings(betas=(0.0, 0.95), lr=1e-3),
        )
        config = worker_config(tmp_path / str(beta), policy_dir, 12, train)
        for step in range(1, 13):
            rewards = (1.0, -1.0) if step == 1 else (1.0, 1.0)
            batch, _ = build_batch(
                groups(rewards),
                load_algorithm("mean_baseline", budget=10),
                step=step,
                batch_id=f"b{step}",
                generation_budget=4,
                kl_beta=beta if step > 1 else 0.0,
            )
            if step == 1:  # both rows hold the same tokens: reward one of them only
                batch.weights["rl"] = np.maximum(batch.weights["rl"], 0)
            batch.save(batch_path(config.batches, step))
        Worker(config).run()
        lines = [json.loads(line) for line in config.metrics.read_text().splitlines()]
        gaps[beta] = [line.get("kl") for line in lines]
    assert all(value is None for value in gaps[0.0])
    pulled = gaps[1.0][1:]
    assert abs(pulled[0]) > 0 and min(map(abs, pulled)) < 0.5 * abs(pulled[0]), "the distance falls"


def trained(root: Path, policy: Path, train: TrainSettings, *stops: int, start: int = 0) -> list[dict[str, float]]:
    """Metrics of a trainer that was stopped at these steps, each time with the same eight batches to come."""
    lines: list[dict[str, float]] = []
    for steps in stops:
        config = worker_config(root, policy, steps, train, start)
        for step in range(start + 1, start + 9):
            batch, _ = build_batch(
                groups((1.0, 0.0)),
                load_algorithm("mean_baseline", budget=10),
                step=step,
                batch_id=f"b{step}",
                generation_budget=4,
                kl_beta=0.1,
            )
            batch.weights["rl"] = np.maximum(batch.weights["rl"], 0)  # both rows hold the same tokens
            batch.save(batch_path(config.batches, step))
        Worker(config).run()
        lines = [json.loads(line) for line in config.metrics.read_text().splitlines()]
    return lines


def following() -> TrainSettings:
    """Every three steps the policy becomes the reference."""
    schedule = ScheduleSettings(warmup_steps=4)
    return TrainSettings(
        fsync=False, kl=KlSettings(reference_steps=3), schedule=schedule, optimizer=OptimizerSettings(lr=1e-3)
    )


def test_a_later_round_is_trained_as_a_first_one(tmp_path: Path, policy_dir: Path) -> None:
    """Steps before a round move its numbers, and neither the schedule nor the reference."""
    first = trained(tmp_path / "first", policy_dir, following(), 8)
    later = trained(tmp_path / "later", policy_dir, following(), 102, 104, 108, start=100)
    assert [line["step"] for line in later] == [line["step"] + 100 for line in first]
    for key in ("loss", "kl", "lr", "grad_norm"):
        assert [line[key] for line in later] == [line[key] for line in first]
    (version, weights), (known, others) = (Follower(tmp_path / n / "weights").poll() for n in ("later", "first"))
    assert (version, known) == (108, 8) and all(torch.equal(weights[name], others[name]) for name in others)


def test_a_reference_that_follows_is_the_same_after_a_restart(tmp_path: Path, policy_dir: Path) -> None:
    train = following()
    whole, restarted = (
        trained(tmp_path / "whole", policy_dir, train, 8),
        trained(tmp_path / "restarted", policy_dir, train, 2, 5, 8),
    )
    assert [line["kl"] for line in restarted] == [line["kl"] for line in whole]
    assert [line["loss"] for line in restarted] == [line["loss"] for line in whole]
    at = [line["kl"] for line in whole]
    assert at[0] == at[3] == at[6] == 0, "a step on which the reference is the policy itself"
    assert all(at[step] > 0 for step in (1, 2, 4, 5, 7))
    (tmp_path / "restarted" / "checkpoints" / "reference-000006.safetensors").unlink()
    shutil.rmtree(tmp_path / "restarted" / "checkpoints" / "step-000008")
    with pytest.raises(CheckpointError, match=r"reference-000006\.safetensors: not the reference"):
        trained(tmp_path / "restarted", policy_dir, train, 8)


@pytest.mark.parametrize("teacher", ["lagged", "averaged"])
@pytest.mark.parametrize("fsync", [True, False])
def test_references_are_flushed_as_the_checkpoints_are(
    tmp_path: Path,
    policy_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    fsync: bool,
    teacher: Literal["lagged", "averaged"],
) -> None:
    train = TrainSettings(
        fsync=fsync, kl=KlSettings(reference_steps=1), hint_kl=HintKlSettings(teacher=teacher, teacher_steps=2)
    )
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")))
    trained(tmp_path, policy_dir, train, 2)
    names = {Path(path).name.strip(".").partition("-")[0] for path in flushed}
    assert {"reference", "teacher"} <= names if fsync else not flushed


def test_a_trainer_killed_before_its_checkpoint_finds_the_reference_of_the_one_before(
    tmp_path: Path, policy_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of a step is saved before its checkpoint."""
    train = TrainSettings(fsync=False, keep_checkpoints=1, kl=KlSettings(reference_steps=1))
    whole = trained(tmp_path / "whole", policy_dir, train, 3)
    trained(tmp_path / "killed", policy_dir, train, 1)

    def killed(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("woodshed.train.worker.save_checkpoint", killed)
        trained(tmp_path / "killed", policy_dir, train, 2)
    lines = trained(tmp_path / "killed", policy_dir, train, 3)
    assert [line["loss"] for line in lines] == [line["loss"] for line in whole]
    assert len(list((tmp_path / "killed" / "checkpoints").glob("reference-*"))) == 2, "no more are kept"
