"""The open trajectories of a server.

A turn that was recorded, and whose reply may not have reached its client, is answered again from the record: after a
crash, and where the client left while the reply was sent.

A client whose connection broke sends the same request again. Sampling it once more would leave a reply in the record
that nobody ever read, in a segment of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from woodshed.cluster.service import key_hash
from woodshed.engine.protocol import Completion, StopReason

from .errors import ApiError
from .journal import Journal, Kept
from .key_limits import KeyLimits, TurnUsage, Used
from .keys import Keys
from .recorder import OpenSegment, Recorder
from .rendering import Rendering
from .request import Request

_REFUSAL = 500
_IGNORED = 100

FINISHED = 32
"""So many trajectories are kept after they were finished: an answer that did not arrive is asked for again."""

FEEDBACK, FEEDBACK_BYTES = 1000, 16 << 20
"""Most feedback of one trajectory: events, and bytes of them together."""

FEEDBACK_EVENT = 1 << 20
"""Most bytes of one of them."""


@dataclass
class OpenTrajectory:
    """One key's conversation. ``about`` is what the admin said of it: task, group, source, labels, terms."""

    id: str
    serial: int
    key_digest: bytes
    about: dict[str, Any]
    recorder: Recorder
    limits: KeyLimits
    feedback: list[dict[str, Any]] = field(default_factory=list)
    feedback_bytes: int = 0
    usage: list[TurnUsage] = field(default_factory=list)
    opened: float = 0.0
    running: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    """How many tokens each running request may take."""
    left: Used = field(default_factory=Used)
    """What was sampled for clients that did not wait for their reply."""
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    """Names of request fields that were accepted and changed nothing, with how many requests had them."""
    closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is planned or recorded: both are about all segments."""

    def used(self) -> Used:
        """What counts against its terms."""
        sampled = sum(turn.sampled_tokens for turn in self.usage)
        turns, tokens, _ = self.left
        return Used(len(self.usage) + turns, sampled + tokens, sum(self.running.values()))

    def ignore(self, names: Iterable[str]) -> None:
        """Remember fields that changed nothing, and how often."""
        for name in names:
            if name in self.ignored or len(self.ignored) < _IGNORED:
                self.ignored[name] += 1

    def refuse(self, error: ApiError) -> None:
        """Remember status and last message of each kind of refusal."""
        self.refusals[error.code] = (error.status, str(error)[:_REFUSAL])

    def kept(self) -> Kept:
        """What the journal remembers of it."""
        return Kept(
            self.id,
            self.key_digest,
            self.about,
            self.recorder,
            self.feedback,
            self.usage,
            self.opened,
            self.closed,
            self.left,
        )

    def session(self, segment: int) -> str:
        """The engine's name for a segment. The serial number keeps a reopened trajectory apart from its past."""
        return f"{self.id}.{self.serial}.{segment}"


class Trajectories:
    """Opens, finds, closes. ``release`` frees an engine session."""

    def __init__(
        self, rendering: Rendering, keys: Keys, release: Callable[[str], None], journal: Journal | None = None
    ) -> None:
        self.rendering = rendering
        self.keys = keys
        self.by_id: dict[str, OpenTrajectory] = {}
        self._finished: OrderedDict[str, OpenTrajectory] = OrderedDict()
        self._release = release
        self._journal = journal
        self._serials = count()
        if journal is not None:
            for kept in journal.restore(rendering):
                self._add(kept)

    def open(self, id: str, about: dict[str, Any]) -> str:
        """A new trajectory and its key; one that was open under this id is forgotten."""
        key = self.keys.make()
        opened = Kept(id, key_hash(key), about, Recorder(self.rendering), opened=time.time())
        if self._journal is not None:
            self._journal.opened(opened)
        if id in self.by_id:
            self._drop(id)
        self._finished.pop(id, None)
        self._add(opened)
        return key

    def of_key(self, key: str | None) -> OpenTrajectory:
        """Raises ApiError 401 for a key that was never issued or is revoked."""
        owner = self.keys.owner(key) if key else None
        if owner is None:
            raise ApiError(401, "invalid_api_key", "this API key is unknown or its trajectory is closed")
        return self.by_id[owner]

    def get(self, id: str) -> OpenTrajectory:
        try:
            return self.by_id[id]
        except KeyError:
            raise ApiError(404, "trajectory_not_found", f"no open trajectory {id!r}") from None

    def finish(self, id: str) -> OpenTrajectory:
        """Revoke the key, cancel what runs, free the engine's cache. Its committed segments stay readable.

        Finishing it again gives the same, also after a restart, until ``FINISHED`` others were finished.
        """
        if id in self._finished:
            return self._finished[id]
        trajectory = self.get(id)
        if self._journal is not None:
            self._journal.finished(id)
        self._finished[id] = trajectory
        self._drop(id)
        while len(self._finished) > FINISHED:
            oldest = next(iter(self._finished))
            if self._journal is not None:
                self._journal.closed(oldest)
            del self._finished[oldest]
        self._shorten()
        return trajectory

    def delete(self, id: str) -> None:
        """As ``finish``, and nothing of it is kept."""
        if id not in self._finished:
            self.get(id)
        if self._journal is not None:
            self._journal.closed(id)
        if self._finished.pop(id, None) is None:
            self._drop(id)
        self._shorten()

    def add_feedback(self, trajectory: OpenTrajectory, event: dict[str, Any], size: int) -> None:
        """``size``: bytes of the event. Raises ApiError 403 where the trajectory has enough."""
        if len(trajectory.feedback) >= FEEDBACK or trajectory.feedback_bytes + size > FEEDBACK_BYTES:
            message = f"this key may send {FEEDBACK} feedback events, of {FEEDBACK_BYTES} bytes together"
            raise ApiError(403, "feedback_full", message, type="permission_error")
        event = {**event, "time": time.time()}
        if self._journal is not None:
            self._journal.feedback(trajectory.id, event)
        trajectory.feedback.append(event)
        trajectory.feedback_bytes += size

    def _shorten(self) -> None:
        if self._journal is not None and self._journal.full:
            self._journal.compact(each.kept() for each in (*self._finished.values(), *self.by_id.values()))

    def _add(self, kept: Kept) -> None:
        limits = KeyLimits.model_validate(kept.about.get("limits", {}))
        trajectory = OpenTrajectory(
            kept.id,
            next(self._serials),
            kept.key_digest,
            kept.about,
            kept.recorder,
            limits,
            kept.feedback,
            sum(len(json.dumps(event)) for event in kept.feedback),
            kept.usage,
            kept.opened,
            closed=kept.finished,
            left=kept.left,
        )
        if kept.finished:
            self._finished[kept.id] = trajectory
            return
        self.keys.admit(kept.key_digest, kept.id)
        self.by_id[kept.id] = trajectory

    def _drop(self, id: str) -> None:
        trajectory = self.by_id.pop(id)
        trajectory.closed = True
        self.keys.revoke(trajectory.key_digest)
        for task in trajectory.running:
            task.cancel()
        for segment in range(trajectory.recorder.started):
            self._release(trajectory.session(segment))


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
