"""Training on completions that followed a grammar: the trainer's distribution is the one that was sampled from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.grammars import end_of, json_lark, spans_of, texts, tiny_vocabulary
from tests.engine.models import decoder, prompt, run
from woodshed.engine.grammar import Grammars, library
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.record.segment import Constraint, Segment
from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import allowed_sets, build_batch
from woodshed.train.batch import BatchError, TrainBatch
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer

TOKENIZER = tiny_vocabulary()
END = end_of(TOKENIZER)
GRAMMARS = Grammars.of(TOKENIZER)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["ab", "aba", "b"]}, "b": {"type": "boolean"}, "c": {"enum": [10, 100, 7]}},
    "required": ["a"],
    "additionalProperties": False,
}
GRAMMAR = json_lark(SCHEMA)


def sampled(policy: Decoder, count: int = 4) -> list[Trajectory]:
    """Trajectories of two turns each, of which the first is constrained, and of the last one the second as well."""

    async def main() -> list[Trajectory]:
        engine = LocalEngine(policy, grammars=GRAMMARS)
        made = []
        for i in range(count):
            first = Sampling(max_tokens=60, seed=i, stop_ids=(END,), grammar=GRAMMAR)
            start = prompt(8, seed=1)
            one = await engine.generate(start, first)
            more = [*start, *one.tokens, *prompt(4, seed=i)]
            constrained = i == count - 1
            second = Sampling(max_tokens=6, seed=50 + i, stop_ids=(END,), grammar=GRAMMAR if constrained else None)
            two = await engine.generate(more, second)
            made.append(of_two_turns(i, start, one, more, two, constrained=constrained))
        await engine.close()
        return made

    return run(main())


def of_two_turns(
    i: int, start: list[int], one: Completion, more: list[int], two: Completion, *, constrained: bool
) -> Trajectory:
    tokens = [*more, *two.tokens]
    segment = Segment(
        np.array(tokens, np.int32),
        np.zeros(len(tokens), np.bool_),
        np.zeros(len(tokens), np.float32),
        np.full(len(tokens), -1, np.int32),
    )
    for at, done in ((len(start), one), (len(more), two)):
        where = slice(at, at + len(done.tokens))
        segment.sampled[where], segment.logprobs[where], segment.versions[where] = True, done.logprobs, 0
        if done is one or constrained:
            segment.constraints.append(Constraint(where.start, where.stop, GRAMMAR, (END,), library() or ""))
    segment.check()
    return Trajectory(f"t{i}", "task", "g", "train", "h", "p", "submitted", [segment], rewards={"r": float(i % 2)})


def batch_of(group: list[Trajectory], **fields: Any) -> TrainBatch:
    given = {"grammars": lambda: GRAMMARS, **fields}
    return build_batch(
        [group], load_algorithm("mean_baseline", budget=10), step=1, batch_id="b", generation_budget=64, **given
    )[0]


def observed(policy: Decoder, batch: TrainBatch) -> TokenStats:
    policy.zero_grad()
    policy.requires_grad_(True)
    settings, used, seen = TrainSettings(microbatch_tokens=100, entropy=True), weighted(batch), TokenStats()
    lengths = input_lengths(batch, used)
    for rows in micro_batches(batch, lengths, settings.microbatch_tokens):
        backward(policy, collate(batch, rows, lengths, used, policy.device), batch.denominators, settings, seen)
    return seen


def test_the_sets_are_those_of_trying_every_token() -> None:
    language = texts(SCHEMA)
    for trajectory in sampled(decoder()):
        (segment,) = trajectory.segments
        allowed, of_T = allowed_sets(segment, GRAMMARS)
        inside = np.zeros(len(segment), np.bool_)
        for constraint in segment.constraints:
            where = slice(constraint.start, constraint.end)
            inside[where] = True
            for at, expected in zip(
                range(where.start, where.stop), spans_of(language, segment.tokens[where], TOKENIZER)
            ):
                assert set(allowed.of(of_T[at]).tolist()) == expected
        assert ((of_T >= 0) == inside).all() and len(np.unique(allowed.bits, axis=0)) == len(allowed)


def test_at_step_zero_the_trainer_finds_the_engines_log_probabilities_and_ratios_of_one(tmp_path: Any) -> None:
    policy = decoder()
    group = [trajectory_from_bytes(trajectory_to_bytes(t)) for t in sampled(policy)]
    batch = batch_of(group)
    batch.save(tmp_path / "b.safetensors")
    batch = TrainBatch.load(tmp_path / "b.safetensors")
    seen = observed(policy, batch)
    gaps, ratios = torch.cat(seen.dlogp), torch.cat(seen.importance)
    assert len(gaps) == sum(t.sampled_tokens for t in group)
    assert gaps.abs().max() < 1e-4 and (ratios - 1).abs().max() < 1e-4
    assert all(bool(e.isfinite().all()) for e in seen.entropy) and torch.cat(seen.entropy).min() > -1e-5
    metrics = Trainer(policy, TrainSettings()).step(batch)
    assert metrics["skipped"] == 0 and np.isfinite(list(metrics.values())).all()
    # without the sets the same batch is of another distribution
    batch.allowed = batch.allowed_of = None
    assert torch.cat(observed(decoder(), batch).dlogp).abs().max() > 0.5


def test_gradients_are_those_of_autograd_among_the_allowed_tokens() -> None:
    policy = decoder(sharpness=3.0)
    group = sampled(policy)
    batch = batch_of(group)
    observed(policy, batch)
    got = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    twin = Decoder(policy.config, seed=None, dtype=torch.float64)
    twin.load_state_dict({k: v.double() for k, v in policy.state_dict().items()})
    language, total = texts(SCHEMA), torch.zeros((), dtype=torch.float64)
    mean = np.mean([t.reward for t in group])
    advantages = {t.id: t.reward - mean for t in group}
    for trajectory in group:
        (segment,) = trajectory.segments
        tokens = torch.from_numpy(segment.tokens.astype(np.int64))
        hidden = twin.forward(tokens[None], torch.arange(len(tokens))[None], causal_attend())
        logits = F.linear(hidden[0, :-1], twin.head_weight)
        mask = torch.zeros_like(logits)
        for c in segment.constraints:
            for at, allowed in enumerate(spans_of(language, segment.tokens[c.start : c.end], TOKENIZER), c.start):
                mask[at - 1] = -torch.inf
                mask[at - 1, sorted(allowed)] = 0.0
        logp = (logits + mask).log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]
        chosen = torch.from_numpy(segment.sampled[1:])
        total = total - advantages[trajectory.id] * logp[chosen].sum() / batch.denominators["rl"]
    total.backward()
    assert got.keys() == {name for name, p in twin.named_parameters() if p.grad is not None}
    for name, p in twin.named_parameters():
        if p.grad is not None:
            assert torch.allclose(got[name].double(), p.grad, atol=3e-6, rtol=1e-3), name


def test_what_cannot_be_renormalised_is_refused() -> None:
    group = sampled(decoder())
    with pytest.raises(ValueError, match="no grammars"):
        batch_of(group, grammars=None)
    (segment,) = group[0].segments
    kept = segment.constraints[0]
    segment.constraints[0] = Constraint(kept.start, kept.end, kept.grammar, kept.stop_ids, "llguidance 0.0.1")
    with pytest.raises(ValueError, match=r"llguidance 0\.0\.1"):
        batch_of(group)
    segment.constraints[0] = Constraint(kept.start, kept.end, 'start: "b"\n', kept.stop_ids, kept.library)
    with pytest.raises(ValueError, match="forbidden"):
        batch_of(group)
    segment.constraints[0] = kept
    batch = batch_of(group)
    assert batch.allowed is not None
    batch.allowed.bits[:] = 0
    with pytest.raises(BatchError, match="sampled from"):
        batch.check()


def test_records_without_constraints_load_as_before() -> None:
    trajectory = sampled(decoder(), 1)[0]
    (segment,) = trajectory.segments
    assert trajectory_from_bytes(trajectory_to_bytes(trajectory)).segments[0].constraints == segment.constraints
    segment.constraints.clear()
    data = trajectory_to_bytes(trajectory)
    assert b"constraints" not in data and trajectory_from_bytes(data).segments[0].constraints == []
    segment.constraints.append(Constraint(0, 3, GRAMMAR, (END,), ""))
    with pytest.raises(ValueError, match="not sampled"):
        segment.check()
