"""From graded groups to the batch of one training step.

Every sampled token of every segment of a trajectory carries the trajectory's advantage, the summaries it wrote
included; prompts, tool results and summaries it only read carry none. The denominator is a constant, so a long
rollout weighs neither less nor more per token than a short one. Rollouts lost to infrastructure, and those that
the recipe quarantines, are masked and the baseline is taken over the rest; nothing else is ever left out of a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.grammar import GrammarError, Grammars, library
from woodshed.record.segment import Constraint, Segment
from woodshed.record.trajectory import Trajectory
from woodshed.rl.credit import Credit
from woodshed.train.batch import Sequence as TrainSequence
from woodshed.train.batch import TrainBatch, pack


@dataclass
class BatchStats:
    """Where every rollout of a batch went: ``trained``, ``zero_advantage``, ``infra_errors``, ``quarantined`` and
    ``unpaired`` add up to ``rollouts``.

    ``unpaired``: rollouts whose group had fewer than two left to compare. ``zero_groups``: groups in which every
    advantage is 0. ``empty_segments``: segments without a sampled token.
    """

    groups: int = 0
    rollouts: int = 0
    trained: int = 0
    zero_advantage: int = 0
    infra_errors: int = 0
    quarantined: int = 0
    unpaired: int = 0
    zero_groups: int = 0
    segments: int = 0
    empty_segments: int = 0
    sampled_tokens: int = 0
    reward_mean: float = 0.0
    reward_best_mean: float = 0.0


def build_batch(
    groups: Sequence[Sequence[Trajectory]],
    credit: Credit,
    *,
    step: int,
    batch_id: str,
    generation_budget: int,
    rollouts: int | None = None,
    kl_beta: float = 0.0,
    left_out: Callable[[Trajectory], bool] = lambda _: False,
    grammars: Callable[[], Grammars] | None = None,
) -> tuple[TrainBatch, BatchStats]:
    """(batch, stats). The loss is ``-(1 / (rollouts * generation_budget)) * sum A_t * logp_t`` (Dr. GRPO).

    ``generation_budget``: sampled tokens a rollout may spend, a constant of the run. ``rollouts``: rollouts of a full
    batch, a constant too (default: as many as given). ``kl_beta`` above 0 weighs every sampled token of a compared
    rollout with the loss part ``ref_kl``, also where the advantage is 0; the trainer knows the reference.
    ``left_out``: whether a graded rollout is quarantined. ``grammars`` gives those of the policy's vocabulary, for
    tokens that were sampled under one. Raises ValueError for a group that mixes tasks, and where grammars are missing.
    """
    if generation_budget < 1 or (rollouts is not None and rollouts < 1):
        raise ValueError("build_batch: generation_budget and rollouts must be at least 1")
    stats, rows, best = BatchStats(groups=len(groups)), [], []
    rewards: list[float] = []
    for group in groups:
        if len({t.task for t in group}) > 1:
            raise ValueError(f"build_batch: group {group[0].group} mixes tasks {sorted({t.task for t in group})}")
        stats.rollouts += len(group)
        graded = [t for t in group if t.status != "infra_error"]
        valid = [t for t in graded if not left_out(t)]
        stats.infra_errors += len(group) - len(graded)
        stats.quarantined += len(graded) - len(valid)
        rewards += [t.reward for t in valid]
        best += [max(t.reward for t in valid)] if valid else []
        if len(valid) < 2:
            stats.unpaired += len(valid)
            continue
        advantages_G = credit.advantages(np.array([t.reward for t in valid], np.float64))
        # Equal rewards must give exactly no signal, whatever rounding leaves of R - mean.
        advantages_G = np.where(np.abs(advantages_G) < 1e-9, 0.0, advantages_G)
        stats.zero_groups += not advantages_G.any()
        for trajectory, advantage in zip(valid, advantages_G):
            if advantage == 0 and not kl_beta:
                stats.zero_advantage += 1
                continue
            stats.trained += 1
            rows += _sequences(trajectory, float(advantage), kl_beta, stats, grammars)
    stats.reward_mean = float(np.mean(rewards)) if rewards else 0.0
    stats.reward_best_mean = float(np.mean(best)) if best else 0.0
    count = rollouts if rollouts is not None else max(1, stats.rollouts)
    denominators = {part: float(count * generation_budget) for part in (("rl", "ref_kl") if kl_beta else ("rl",))}
    batch = pack(rows, id=batch_id, step=step, denominators=denominators, info={"stats": asdict(stats)})
    return batch, stats


def _sequences(
    trajectory: Trajectory,
    advantage: float,
    kl_beta: float,
    stats: BatchStats,
    grammars: Callable[[], Grammars] | None,
) -> list[TrainSequence]:
    rows = []
    for segment in trajectory.segments:
        stats.segments += 1
        sampled = segment.sampled.copy()
        sampled[:1] = False  # Nothing predicts the first token of a context.
        if not sampled.any():
            stats.empty_segments += 1
            continue
        stats.sampled_tokens += int(sampled.sum())
        weights = {"rl": np.where(sampled, advantage, 0).astype(np.float32)}
        if kl_beta:
            weights["ref_kl"] = np.where(sampled, kl_beta, 0).astype(np.float32)
        if segment.penalties:
            first = segment.penalties[0]
            raise ValueError(
                f"trajectory {trajectory.id}: tokens {first.start} to {first.end} of a segment were sampled with "
                "penalties, so their log-probabilities are not those of the policy that is trained; sample what is "
                "to be trained on without presence_penalty, frequency_penalty and repetition_penalty"
            )
        allowed = allowed_of = None
        if segment.constraints:
            allowed, allowed_of = allowed_sets(segment, None if grammars is None else grammars())
        rows.append(
            TrainSequence(
                segment.tokens,
                weights,
                behaviour_logprobs=np.where(segment.sampled, segment.logprobs, np.nan).astype(np.float32),
                versions=segment.versions,
                routes=segment.routes,
                trajectory=trajectory.id,
                allowed=allowed,
                allowed_of=allowed_of,
            )
        )
    return rows


def allowed_sets(segment: Segment, grammars: Grammars | None) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """``allowed`` and ``allowed_of`` (see ``TrainBatch``) of a segment: its grammars are followed once more.

    Raises ValueError where that cannot be done, or a token turns out to be forbidden.
    """
    known: dict[bytes, int] = {}
    of_T = np.full(len(segment), -1, np.int32)
    for constraint in segment.constraints:
        if grammars is None:
            raise ValueError("tokens were sampled under a grammar, and there are no grammars to follow it with")
        if constraint.library != library():
            message = f"tokens were sampled under a grammar of {constraint.library}; this is {library() or 'not there'}"
            raise ValueError(message)
        _follow(segment, constraint, grammars, known, of_T)
    return np.frombuffer(b"".join(known), np.uint8).reshape(len(known), -1).copy(), of_T


def _follow(
    segment: Segment, constraint: Constraint, grammars: Grammars, known: dict[bytes, int], of_T: NDArray[np.int32]
) -> None:
    tokens = segment.tokens[constraint.start : constraint.end].tolist()
    try:
        matcher = grammars.start(constraint.grammar, constraint.stop_ids)
        for at, token in enumerate(tokens, constraint.start):
            bits = matcher.allowed()
            of_T[at] = known.setdefault(bits.tobytes(), len(known))
            if not bits[token >> 3] >> (token & 7) & 1:
                raise GrammarError(f"token {token} at {at} is forbidden")
            if token not in constraint.stop_ids:
                matcher.advance([token])
    except GrammarError as error:
        raise ValueError(f"a completion does not follow the grammar that it was sampled under: {error}") from None
