"""Alarms: small functions of the history of steps. Each returns what is wrong, with value and threshold, or ''.

``LIVENESS`` alarms tell whether the run works at all. ``LEARNING`` alarms tell whether the policy degrades; most
compare the newest steps with earlier ones of the same round (``rl.rounds``), because each round starts from another
policy, and are silent until both windows are full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from .measure import Step, effective_tools, flat_share
from .settings import AlarmSettings

Alarm = Callable[[Sequence[Step], AlarmSettings], str]
History = Sequence[Step]


def stalled(moments: Sequence[float], progress: float, now: float, settings: AlarmSettings) -> str:
    """Return the alarm message if the run has stalled, else ''. Silent until three intervals are known.

    Times are in seconds since the epoch. ``moments``: when each batch was decided; ``progress``: when a batch was last
    decided or trained, or the process began.
    """
    intervals = [b - a for a, b in pairwise(moments) if b > a]
    if len(intervals) < 3:
        return ""
    usual, waited = median(intervals), now - progress
    if waited <= max(settings.stall_factor * usual, settings.stall_seconds):
        return ""
    return f"nothing was decided or trained for {waited:.0f} s; usually a batch takes {usual:.0f} s"


def infra(history: History, settings: AlarmSettings) -> str:
    share = _newest([step.get("infra_share") for step in history], settings.window)
    if share is None or share <= settings.infra_share:
        return ""
    return f"{share:.0%} of the rollouts ended by infrastructure errors, more than {settings.infra_share:.0%}"


def flat(history: History, settings: AlarmSettings) -> str:
    share = _newest([flat_share(step) for step in history], settings.window)
    if share is None or share <= settings.flat_share:
        return ""
    return f"{share:.0%} of the groups have equal rewards and teach nothing, more than {settings.flat_share:.0%}"


def truncation(history: History, settings: AlarmSettings) -> str:
    share = _newest([step.get("limit_share") for step in history], settings.window)
    if share is None or share <= settings.truncation_share:
        return ""
    return f"{share:.0%} of the episodes ended at a limit, more than {settings.truncation_share:.0%}"


def entropy(history: History, settings: AlarmSettings) -> str:
    return _fell(
        [_of_trainer(step, "entropy") for step in history],
        settings,
        settings.entropy_floor,
        "the entropy of the policy is {:.3g} nats per token",
    )


def ratio(history: History, settings: AlarmSettings) -> str:
    ess = _newest([_of_trainer(step, "ess") for step in history], settings.window)
    if ess is not None and not ess >= settings.least_ess:  # nan: the policy computes no numbers any more
        return f"the effective sample size is {ess:.3g} of the tokens, not at least {settings.least_ess:g}"
    p99 = _newest([_of_trainer(step, "ratio_p99") for step in history], settings.window)
    if p99 is not None and not p99 <= settings.most_ratio:
        return f"the 99th percentile of the policy ratio is {p99:.3g}, not at most {settings.most_ratio:g}"
    return ""


def mismatch(history: History, settings: AlarmSettings) -> str:
    """Look at the newest step alone: with stale tokens, ``k3`` is also the change of the policy."""
    k3, stale = (_of_trainer(history[-1], name) for name in ("k3", "staleness_max"))
    if k3 is not None and stale == 0 and not k3 <= settings.mismatch_k3:
        return f"k3 between trainer and engine with the same weights is {k3:.3g}, not at most {settings.mismatch_k3:g}"
    refused = _of_trainer(history[-1], "replay_refused_share")
    if refused is not None and refused > settings.refused_share:
        most = settings.refused_share
        return f"{refused:.1%} of the engine's experts are implausible to the trainer, more than {most:.1%}"
    return ""


def pass_rate(history: History, settings: AlarmSettings) -> str:
    rates = [step.get("sampled_pass_rate", step.get("pass_rate")) for step in history]
    window = settings.window
    now, before = _newest(rates, window), _newest(rates[:-window], window)
    if now is None or before is None or abs(now - before) <= settings.pass_rate_jump:
        return ""
    return f"the pass rate went from {before:.2f} to {now:.2f} within {window} steps"


def edits(history: History, settings: AlarmSettings) -> str:
    rates = [step.get("edit_rate") for step in history]
    return _fell(rates, settings, settings.edits_floor, "the share of episodes with an edit is {:.2f}")


def tools(history: History, settings: AlarmSettings) -> str:
    found = _fell(
        [effective_tools(step) for step in history],
        settings,
        settings.tools_floor,
        "the effective number of tools in use is {:.2f}",
    )
    if not found:
        return ""
    newest = next(step["tools"] for step in reversed(history) if step.get("tools"))  # a step may have no calls
    name, share = max(newest.items(), key=lambda item: float(item[1]))
    return f"{found}; {name} has {share:.0%} of the calls"


LIVENESS: Final[Mapping[str, Alarm]] = {"infra": infra, "flat": flat, "truncation": truncation}
LEARNING: Final[Mapping[str, Alarm]] = {
    "entropy": entropy,
    "ratio": ratio,
    "mismatch": mismatch,
    "pass_rate": pass_rate,
    "edits": edits,
    "tools": tools,
}

ADVICE: Final = {
    "stall": "the logs of server, trainer and rollouts below logs/, and `idle` in the report",
    "infra": "`error` and label `fault` of the trajectories with status infra_error; docs/errors.md",
    "flat": "the pass rate: tasks that are all solved or never solved; rl.curriculum, rl.dynamic_sampling",
    "truncation": "transcripts of episodes that end at a limit; harness.limits",
    "entropy": "the learning rate, rl.kl_beta, and whether one answer has become certain",
    "ratio": "staleness (rl.max_staleness), the learning rate, and dlogp at staleness 0 (trainer/engine mismatch)",
    "mismatch": "number formats (engine.dtype, train.products), an own chat format or model family; train.replay_ratio",
    "pass_rate": "transcripts of solved episodes, and `woodshed monitors`: a jump may be a reward hack",
    "edits": "transcripts: what is rewarded without an edit, or why edits no longer pay",
    "tools": "transcripts: which tool took over; reward terms can price it",
}
"""Where to look when an alarm fires."""


def firing(history: History, settings: AlarmSettings, start: int = 0) -> dict[str, str]:
    """Return the messages of the alarms that fire after the newest step, by alarm; alarms that are off are left out.

    ``start``: last step before the round of the newest one.
    """
    of_round = [step for step in history if int(step["step"]) > start]
    found = {}
    for alarms, steps in ((LIVENESS, history), (LEARNING, of_round)):
        for name, alarm in alarms.items():
            if settings.actions[name] != "off" and (message := alarm(steps, settings)):
                found[name] = message
    return found


def _of_trainer(step: Step, key: str) -> Any:
    return step.get("trainer", {}).get(key)


def _newest(values: Sequence[float | None], window: int) -> float | None:
    """Return the mean of the newest ``window`` known values; None if there are fewer."""
    known = [float(value) for value in values if value is not None]
    return fmean(known[-window:]) if len(known) >= window else None


def _fell(values: Sequence[float | None], settings: AlarmSettings, floor: float, what: str) -> str:
    """Return a message if the mean of the newest values is below ``floor`` times that of the first ones, else ''. The
    two windows do not overlap. ``what``: beginning of the message, with a place for the newest mean."""
    known = [float(value) for value in values if value is not None]
    if len(known) < settings.baseline + settings.window:
        return ""
    first, now = fmean(known[: settings.baseline]), fmean(known[-settings.window :])
    if now >= floor * first:
        return ""
    return f"{what.format(now)}, below {floor:g} of that of the first {settings.baseline} steps ({first:.3g})"
