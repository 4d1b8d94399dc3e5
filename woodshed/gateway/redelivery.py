"""A turn that was recorded, and whose reply may not have reached its client, is answered again from the record: after a
crash, and where the client left while the reply was sent.

A client whose connection broke sends the same request again. Sampling it once more would leave a reply in the record
that nobody ever read, in a segment of its own.
"""

from __future__ import annotations

from woodshed.engine.protocol import Completion, StopReason

from .recorder import OpenSegment
from .request import Request
from .terms import TurnUsage
from .trajectories import OpenTrajectory


def recorded(
    trajectory: OpenTrajectory, request: Request, grammar: str | None = None
) -> tuple[OpenSegment, TurnUsage] | None:
    """The segment whose last turn answered exactly this request and may not have arrived, and what that turn took.

    A request that wants to be sampled otherwise (temperature, limits, stop strings, grammar), or wants to know other
    log-probabilities, is another one. Those that are not in the record are gone after a restart.
    """
    messages = request.messages
    for index, segment in enumerate(trajectory.recorder.segments):
        if not segment.undelivered or segment.busy or segment.tools != request.tools:
            continue
        if _last_grammar(segment) != grammar or (request.reported and segment.reports is None):
            continue
        if len(segment.messages) == len(messages) + 1 and segment.common_messages(messages) == len(messages):
            usage = next((turn for turn in reversed(trajectory.usage) if turn.segment == index), None)
            if usage is not None and usage.asked in ("", request.sampling_digest()):
                return segment, usage
    return None


def _last_grammar(segment: OpenSegment) -> str | None:
    """What the last turn was sampled under."""
    last = segment.constraints[-1] if segment.constraints else None
    return last.grammar if last is not None and last.end == len(segment.tokens) else None


def completion_of(segment: OpenSegment, usage: TurnUsage, *, may_stop: bool) -> Completion:
    """The completion that ended ``segment``. Where the request named stop strings (``may_stop``), one of them did."""
    start = len(segment.tokens) - usage.sampled_tokens
    reason: StopReason = "length" if segment.pending and not may_stop else "stop"
    return Completion(
        segment.tokens[start:].tolist(),
        segment.logprobs[start:].tolist(),
        segment.versions[start:].tolist(),
        reason,
        reports=segment.reports,
    )
