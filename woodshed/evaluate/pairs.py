"""The pairs of policies that an evaluation compares: each with the best baseline, seed by seed and pooled.

``rl@0`` and ``rl@1`` are the policy ``rl`` of two seeds. Each is compared with the best baseline of its seed; pooled,
all episodes of ``rl`` are compared with all episodes of the baseline that is best over its seeds. A policy with a
network is compared with itself without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .comparison import PolicyEpisodes
from .sweep import means_over_shared_tasks

SEED = "@"
"""Separator between the name of a policy and its seed."""


class NoBaseline(ValueError):
    """A name is not that of a policy, or a seed has no baseline; the message names it."""


def arm_of(name: str) -> str:
    """Return the name of a policy without its seed."""
    return name.partition(SEED)[0]


def choose_baselines(names: Sequence[str], sources: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the names of the baselines.

    ``wanted``: names or sources of policies, or names without seed (for all seeds); if empty, the first policy and its
    other seeds are the baselines. Raises NoBaseline for an unknown name, and if the seed of a compared policy has no
    baseline.
    """
    found: list[str] = []
    for each in wanted or [arm_of(names[0])]:
        matching = [n for n, source in zip(names, sources, strict=True) if each in (n, source, arm_of(n))]
        if not matching:
            raise NoBaseline(f"--baseline {each}: no such policy; there are {', '.join(names)}")
        found += [name for name in matching if name not in found]
    for name in names:
        if name not in found and not of_seed(name, found):
            raise NoBaseline(f"{name}: no baseline has this seed; there are {', '.join(found)}")
    return found


def of_seed(name: str, baselines: Sequence[str]) -> list[str]:
    """Return the baselines that ``name`` is compared with: those of its seed, and those without a seed."""
    seed = name.partition(SEED)[2]
    return [b for b in baselines if b.partition(SEED)[2] in ("", seed)] if seed else list(baselines)


def pairs(policies: Sequence[PolicyEpisodes], baselines: Sequence[str]) -> list[tuple[PolicyEpisodes, PolicyEpisodes]]:
    """Return (policy, baseline) pairs in the order of ``policies``, the pooled ones last."""
    by_name = {policy.name: policy for policy in policies}
    found = []
    for policy in policies:
        if policy.strict:
            found.append((policy, by_name[policy.strict]))
        elif policy.name not in baselines:
            found.append((policy, _best([by_name[name] for name in of_seed(policy.name, baselines)])))
    pooled_baselines = _pooled([by_name[name] for name in baselines])
    compared = [p for p in policies if not p.strict and p.name not in baselines and SEED in p.name]
    return [*found, *((each, _best(pooled_baselines)) for each in _pooled(compared) if SEED not in each.name)]


def _best(policies: Sequence[PolicyEpisodes]) -> PolicyEpisodes:
    """Return the policy with the best pass@1 over the tasks that all of them have, the first of equal ones; policies
    without samples count as worst."""
    means = means_over_shared_tasks([policy.samples() for policy in policies])
    return max(zip(policies, means, strict=True), key=lambda each: -1.0 if math.isnan(each[1]) else each[1])[0]


def _pooled(policies: Sequence[PolicyEpisodes]) -> list[PolicyEpisodes]:
    """Return each policy with the episodes of all its seeds merged; a policy with a single seed stays as it is."""
    seeds: dict[str, list[PolicyEpisodes]] = {}
    for policy in policies:
        seeds.setdefault(arm_of(policy.name), []).append(policy)
    found = []
    for arm, members in seeds.items():
        if len(members) == 1:
            found += members
            continue
        same = {member.harness_hash for member in members}
        found.append(
            replace(
                members[0],
                name=f"{arm}, {len(members)} seeds",
                harness_hash=members[0].harness_hash if len(same) == 1 else "several",
                episodes=[episode for member in members for episode in member.episodes],
                planned=sum(member.planned for member in members),
            )
        )
    return found
