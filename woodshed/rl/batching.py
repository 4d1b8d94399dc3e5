"""Build the batch of one training step from graded groups.

The algorithm (``algorithms/``) decides the weight of each sampled token; prompts, tool results and summaries that the
policy only read have weight 0. Denominators are constants, so that a long rollout weighs neither less nor more per
token than a short one. Forks do not count in the denominators: their number depends on what the rollouts did, so one
group's failed tests would change the token weights of another group. Rollouts that were lost to infrastructure or are
quarantined by the recipe are masked; the algorithm sees all other rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.grammar import GrammarError, Grammars, library
from woodshed.record.segment import Constraint, Segment
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms.base import predicted
from woodshed.rollout.failures import INFRA, loss_reason
from woodshed.train.batch import Sequence as TrainSequence
from woodshed.train.batch import TrainBatch, pack
from woodshed.train.hinted import HintedMessage
from woodshed.train.token_sets import SetTable, TokenSets

from .algorithms import Algorithm, Weights, annotate
from .forks import roots
from .hints import Hinter, HintStats, Marks


@dataclass
class BatchStats:
    """Statistics of a batch, with the fate of every rollout.

    ``trained``, ``zero_advantage``, ``infra_errors``, ``abandoned_forks``, ``quarantined`` and ``unpaired`` add up to
    ``rollouts``; ``fates`` maps each rollout id to ``trained`` or the reason why it was dropped (``conservation.py``).
    ``unpaired``: rollouts whose group had fewer rollouts left than the algorithm needs. ``zero_advantage``: rollouts
    in which every token has weight 0; ``zero_groups``: groups in which the algorithm gives every token weight 0,
    whether or not hints or a KL term weigh tokens. ``forks``: forks among the rollouts that are neither lost nor
    quarantined. ``empty_segments``: segments without a sampled token.

    ``reward_mean``, ``reward_best_mean`` (mean of each group's best reward) and ``reward_terms`` (mean of each term;
    they add up to ``reward_mean``) cover the rollouts that are neither lost nor quarantined, without forks;
    ``reward_term_shares`` is the share of these in which a term is not 0, ``reward_term_capped`` the share in which it
    is at its cap. ``hints``: findings of the triggers in the rollouts that the algorithm compared.
    """

    groups: int = 0
    rollouts: int = 0
    trained: int = 0
    zero_advantage: int = 0
    infra_errors: int = 0
    quarantined: int = 0
    unpaired: int = 0
    forks: int = 0
    abandoned_forks: int = 0
    zero_groups: int = 0
    segments: int = 0
    empty_segments: int = 0
    sampled_tokens: int = 0
    reward_mean: float = 0.0
    reward_best_mean: float = 0.0
    reward_terms: dict[str, float] = field(default_factory=dict)
    fates: dict[str, str] = field(default_factory=dict)
    hints: HintStats = field(default_factory=HintStats)
    reward_term_shares: dict[str, float] = field(default_factory=dict)
    reward_term_capped: dict[str, float] = field(default_factory=dict)


def build_batch(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: Algorithm,
    *,
    step: int,
    batch_id: str,
    generation_budget: int,
    rollouts: int | None = None,
    kl_beta: float = 0.0,
    left_out: Callable[[Trajectory], bool] = lambda _: False,
    grammars: Callable[[], Grammars] | None = None,
    hints: Hinter | None = None,
    caps: Mapping[str, float] | None = None,
    train_summaries: bool = True,
) -> tuple[TrainBatch, BatchStats]:
    """Return (batch, stats). A loss part is ``1 / (rollouts * generation_budget)`` times the sum over its tokens, as in
    Dr. GRPO.

    ``generation_budget``: number of tokens that a rollout may sample, a constant of the run. ``rollouts``: number of
    rollouts of a full batch without forks, a constant too (default: as many as given). ``kl_beta``: weight in the loss
    part ``ref_kl`` of every sampled token of a compared rollout, also if its other weights are 0; the trainer holds the
    reference policy. ``caps``: caps of the reward terms, for the statistics. ``train_summaries``: False sets the
    weights of summary tokens to 0. ``left_out``: returns True for a graded rollout that is quarantined. ``grammars``:
    returns the grammars for the policy's vocabulary, needed for tokens that were sampled under a grammar. ``hints``
    marks messages of compared rollouts for the loss part ``hint_kl``.

    Raises ValueError for a group that mixes tasks, for tokens that were not sampled at temperature 1, and if grammars
    or kept sets are missing; HintError if a trigger of the user fails; AlgorithmError if the algorithm's weights cannot
    be used.
    """
    if generation_budget < 1 or (rollouts is not None and rollouts < 1):
        raise ValueError("build_batch: generation_budget and rollouts must be at least 1")
    stats, rows, best = BatchStats(groups=len(groups)), list[TrainSequence](), list[float]()
    annotated_rollouts: list[tuple[Trajectory, Sequence[Weights]]] = []
    rewards: list[float] = []
    paid: list[dict[str, float]] = []
    for group in groups:
        if len({t.task for t in group}) > 1:
            raise ValueError(f"build_batch: group {group[0].group} mixes tasks {sorted({t.task for t in group})}")
        stats.rollouts += len(group)
        valid = shown(group, left_out)
        lost = {t.id: loss_reason(t) for t in group if t.status == INFRA}
        stats.infra_errors += sum(reason == INFRA for reason in lost.values())
        stats.abandoned_forks += sum(reason != INFRA for reason in lost.values())
        stats.quarantined += len(group) - len(lost) - len(valid)
        stats.fates |= {t.id: lost.get(t.id, "quarantined") for t in group}
        compared = roots(valid)
        stats.forks += len(valid) - len(compared)
        rewards += [t.reward for t in compared]
        paid += [t.rewards for t in compared]
        best += [max(t.reward for t in compared)] if compared else []
        if len(compared) < algorithm.least:
            stats.unpaired += len(valid)
            stats.fates |= {t.id: "unpaired" for t in valid}
            continue
        annotated = annotate(algorithm, valid)
        stats.zero_groups += not any(map(_weighs, annotated))
        annotated_rollouts += zip(valid, annotated, strict=True)
    gamma = 0.0 if hints is None else hints.weight
    for (trajectory, segments), marks in zip(annotated_rollouts, _marks(annotated_rollouts, hints, stats)):
        made: list[TrainSequence] = []
        if _weighs(segments) or kl_beta or any(marks):
            made = _sequences(
                trajectory, segments, kl_beta, gamma, marks, stats, grammars, train_summaries=train_summaries
            )
        stats.trained += bool(made)
        stats.zero_advantage += not made
        stats.fates[trajectory.id] = "trained" if made else "zero_advantage"
        rows += made
    for name in sorted({name for row in paid for name in row}):
        values = np.array([row.get(name, 0.0) for row in paid])
        stats.reward_terms[name] = float(values.mean())
        stats.reward_term_shares[name] = float((values != 0).mean())
        if caps and name in caps:
            stats.reward_term_capped[name] = float((np.abs(values) >= caps[name]).mean())
    stats.reward_mean = float(np.mean(rewards)) if rewards else 0.0
    stats.reward_best_mean = float(np.mean(best)) if best else 0.0
    count = rollouts if rollouts is not None else max(1, sum(len(roots(group)) for group in groups))
    parts = (*algorithm.parts, *(("ref_kl",) if kl_beta else ()))
    parts += ("hint_kl",) if hints is not None and hints.weight else ()
    denominators = {part: float(count * generation_budget) for part in parts}
    batch = pack(rows, id=batch_id, step=step, denominators=denominators, info={"stats": asdict(stats)})
    return batch, stats


def _weighs(segments: Sequence[Weights]) -> bool:
    """Return whether the algorithm weighs a token of a rollout."""
    return any(weight.any() for weights in segments for weight in weights.values())


def _marks(
    rollouts: Sequence[tuple[Trajectory, Sequence[Weights]]], hints: Hinter | None, stats: BatchStats
) -> list[Marks]:
    """Return the messages of each rollout that get a hint."""
    if hints is None:
        return [[()] * len(segments) for _, segments in rollouts]
    marked = [hints.mark(trajectory, stats.hints) for trajectory, _ in rollouts]
    sampled = sum(int(predicted(s.sampled).sum()) for trajectory, _ in rollouts for s in trajectory.segments)
    return hints.limited(marked, sampled, stats.hints)


def shown(group: Sequence[Trajectory], left_out: Callable[[Trajectory], bool]) -> list[Trajectory]:
    """Return the rollouts of a group that the algorithm sees: neither lost to infrastructure nor quarantined."""
    return [t for t in group if t.status != INFRA and not left_out(t)]


def is_flat(
    group: Sequence[Trajectory],
    algorithm: Algorithm,
    left_out: Callable[[Trajectory], bool],
    hints: Hinter | None = None,
) -> bool:
    """Return whether all token weights of a group would be 0, those of hints included and those of a KL term not, so
    that nothing can be learned from it. Raises HintError and AlgorithmError."""
    valid = shown(group, left_out)
    if len(roots(valid)) < algorithm.least:
        return True
    annotated = annotate(algorithm, valid)
    if any(map(_weighs, annotated)):
        return False
    return hints is None or not any(any(hints.mark(trajectory, HintStats())) for trajectory in valid)


@dataclass
class History:
    """Passes the groups of all earlier batches to ``Algorithm.observe``, also of batches that an earlier process
    built."""

    algorithm: Algorithm
    groups_of: Callable[[int], Sequence[Sequence[Trajectory]]]
    left_out: Callable[[Trajectory], bool]
    _told: int = 0

    def until(self, step: int) -> None:
        """Let the algorithm observe all batches before ``step``. Call it before the batch of ``step`` is built, with
        increasing steps."""
        if type(self.algorithm).observe is Algorithm.observe:
            return
        for earlier in range(self._told + 1, step):
            self.algorithm.observe([shown(group, self.left_out) for group in self.groups_of(earlier)])
            self._told = earlier


def _sequences(
    trajectory: Trajectory,
    annotated: Sequence[Weights],
    kl_beta: float,
    gamma: float,
    marks: Sequence[Sequence[HintedMessage]],
    stats: BatchStats,
    grammars: Callable[[], Grammars] | None,
    *,
    train_summaries: bool,
) -> list[TrainSequence]:
    rows = []
    for number, (segment, given, marked) in enumerate(zip(trajectory.segments, annotated, marks, strict=True)):
        stats.segments += 1
        sampled = predicted(segment.sampled)
        if not sampled.any():
            stats.empty_segments += 1
            continue
        stats.sampled_tokens += int(sampled.sum())
        weights = dict(given)
        if kl_beta:
            weights["ref_kl"] = np.where(sampled, kl_beta, 0).astype(np.float32)
        if marked:
            weights["hint_kl"] = np.zeros(len(segment), np.float32)
            for message in marked:
                weights["hint_kl"][message.start : message.end] = gamma
        for summarised, start, end in () if train_summaries else trajectory.summaries:
            if summarised == number:
                outside = np.ones(len(segment), np.bool_)
                outside[start:end] = False
                weights = {part: np.where(outside, weight, 0).astype(np.float32) for part, weight in weights.items()}
        if segment.altered:
            first = segment.altered[0]
            raise ValueError(
                f"trajectory {trajectory.id}: tokens {first.start} to {first.end} of a segment were sampled {first}, "
                "so their log-probabilities are not those of the policy that is trained; sample what is to be trained "
                "on at temperature 1, without logit_bias and penalties (a key with limits.temperature = 1 does)"
            )
        allowed = allowed_of = None
        if segment.constraints or segment.kept:
            _check_kept(trajectory.id, segment)
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
                hinted=tuple(marked),
            )
        )
    return rows


def _check_kept(id: str, segment: Segment) -> None:
    """Raise ValueError if kept sets of the segment were not recorded."""
    for kept in segment.kept:
        if not kept.known:
            raise ValueError(
                f"trajectory {id}: tokens {kept.start} to {kept.end} of a segment were sampled with top_p, top_k or "
                "min_p by an engine that does not report which tokens it kept, so the trainer cannot renormalise over "
                "them; sample what is to be trained on from the whole distribution, or with the local engine"
            )


def allowed_sets(segment: Segment, grammars: Grammars | None) -> tuple[TokenSets, NDArray[np.int32]]:
    """Return ``allowed`` and ``allowed_of`` (see ``TrainBatch``) of a segment.

    Tokens with a recorded kept set (top_p, top_k, min_p) get this set: truncation comes after the grammar, so a kept
    set is a subset of what the grammar allows. Other tokens under a grammar get the set that the grammar allows there,
    found by running its matcher over the tokens again. Raises ValueError if there is no grammar library, or another
    one than at sampling, and if a token is forbidden.
    """
    table = SetTable()
    of_T = np.full(len(segment), -1, np.int32)
    kept_T = np.zeros(len(segment), np.bool_)
    for kept in segment.kept:
        kept_T[kept.start : kept.end] = True
        of_T[kept.start : kept.end] = [table.add_ids(ids) for ids in kept.sets()]
    for constraint in segment.constraints:
        if kept_T[constraint.start : constraint.end].all():
            continue
        if grammars is None:
            raise ValueError("tokens were sampled under a grammar, and there are no grammars to follow it with")
        if constraint.library != library():
            message = f"tokens were sampled under a grammar of {constraint.library}; this is {library() or 'not there'}"
            raise ValueError(message)
        _follow(segment, constraint, grammars, table, of_T)
    return table.build(of_T)


def _follow(
    segment: Segment, constraint: Constraint, grammars: Grammars, table: SetTable, of_T: NDArray[np.int32]
) -> None:
    tokens = segment.tokens[constraint.start : constraint.end].tolist()
    try:
        matcher = grammars.start(constraint.grammar, constraint.stop_ids)
        for at, token in enumerate(tokens, constraint.start):
            bits = matcher.allowed()
            of_T[at] = table.add_bits(bits)
            if not bits[token >> 3] >> (token & 7) & 1:
                raise GrammarError(f"token {token} at {at} is forbidden")
            if token not in constraint.stop_ids:
                matcher.advance([token])
    except GrammarError as error:
        raise ValueError(f"a completion does not follow the grammar that it was sampled under: {error}") from None
