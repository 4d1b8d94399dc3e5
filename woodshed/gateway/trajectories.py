"""The open trajectories of a server.

A reply that was recorded but may not have reached its client (after a crash, or because the client disconnected) is
sent again from the record when the client repeats its request. Sampling again would leave a reply in the record that
no client ever received, in a separate segment.

In the same way a whole episode goes on after its client died (``resume``): a new client runs it again from the
beginning and gets the recorded replies, until it sends a new request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from woodshed.cluster.service import key_hash
from woodshed.engine.protocol import Completion

from .beginning import Beginning
from .errors import ApiError
from .journal import Journal, Kept
from .key_limits import KeyLimits, KeyUsage, TurnUsage
from .keys import Keys
from .recorder import OpenSegment, Recorder
from .rendering import Rendering
from .request import Request

_REFUSAL = 500
"""Characters kept of a refusal's message."""
_IGNORED = 100
"""Maximum number of different ignored fields remembered."""

FINISHED = 32
"""Least number of finished trajectories kept, so that an answer that did not arrive can be requested again. More are
kept if more were open at once, since their clients may all wait for that answer, or for a server that died."""

FEEDBACK, FEEDBACK_BYTES = 1000, 16 << 20
"""Maximum feedback of one trajectory: number of events, and their total size in bytes."""

FEEDBACK_EVENT = 1 << 20
"""Maximum size of one feedback event in bytes."""


@dataclass
class OpenTrajectory:
    """One key's conversation. ``about`` is what it was opened with: task, group, source, labels, limits."""

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
    """Maximum number of tokens that each running request may sample."""
    abandoned: KeyUsage = field(default_factory=KeyUsage)
    """Usage of requests whose clients disconnected before the reply."""
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    """Names of request fields that were accepted without effect, with the number of requests that had them."""
    closed: bool = False
    resumed: int = 0
    """Number of replies that were recorded when the trajectory was last resumed."""
    repeated: set[int] = field(default_factory=set)
    """Numbers of the recorded replies that were sent again."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is planned or recorded, since both use all segments."""

    def key_usage(self) -> KeyUsage:
        """Usage that counts against the key's limits."""
        sampled = sum(turn.sampled_tokens for turn in self.usage)
        turns, tokens, _ = self.abandoned
        return KeyUsage(len(self.usage) + turns, sampled + tokens, sum(self.running.values()))

    def ignore(self, names: Iterable[str]) -> None:
        """Count request fields that had no effect."""
        for name in names:
            if name in self.ignored or len(self.ignored) < _IGNORED:
                self.ignored[name] += 1

    @property
    def repeating(self) -> bool:
        """True until the client of a resumed episode has asked for every recorded reply."""
        return any(number not in self.repeated for number in range(self.resumed))

    def refuse(self, error: ApiError) -> None:
        """Remember status and message of the last error of each code."""
        self.refusals[error.code] = (error.status, str(error)[:_REFUSAL])

    def kept(self) -> Kept:
        """The part that the journal stores."""
        return Kept(
            id=self.id,
            key_digest=self.key_digest,
            about=self.about,
            recorder=self.recorder,
            feedback=self.feedback,
            usage=self.usage,
            opened=self.opened,
            finished=self.closed,
            abandoned=self.abandoned,
            resumed=self.resumed,
            repeated=self.repeated,
        )

    def session(self, segment: int) -> str:
        """Return the name of a segment's engine session. The serial number distinguishes a reopened trajectory from its
        predecessor."""
        return f"{self.id}.{self.serial}.{segment}"


class Trajectories:
    """Opens, finds and closes trajectories. ``release`` frees an engine session."""

    def __init__(
        self, rendering: Rendering, keys: Keys, release: Callable[[str], None], journal: Journal | None = None
    ) -> None:
        self.rendering = rendering
        self.keys = keys
        self.by_id: dict[str, OpenTrajectory] = {}
        self._finished: OrderedDict[str, OpenTrajectory] = OrderedDict()
        self._most_open = 0
        self._release = release
        self._journal = journal
        self._serials = count()
        if journal is not None:
            for kept in journal.restore(rendering):
                self._add(kept)
        # The clients of all that were kept may ask again; a server that died has not written how many were open.
        self._most_open = max(self._most_open, len(self._finished))

    def open(self, id: str, about: dict[str, Any], beginning: Beginning | None = None) -> str:
        """Open a trajectory, with a recorded ``beginning`` if it is a fork, and return its key; a trajectory that is
        open under this id is discarded. Raises ApiError."""
        recorder = Recorder(self.rendering) if beginning is None else beginning.recorder(self.rendering)
        key = self.keys.make()
        opened = Kept(id, key_hash(key), about, recorder, opened=time.time())
        if self._journal is not None:
            self._journal.opened(opened)
        if id in self.by_id:
            self._drop(id)
        self._finished.pop(id, None)
        self._add(opened)
        return key

    def resume(self, id: str) -> str:
        """Give an open trajectory a new key, for a client that runs its episode again from the beginning: as long as
        its requests are the same, it gets the recorded replies. Raises ApiError 404 if no trajectory is open under this
        id."""
        trajectory = self.get(id)
        key = self.keys.make()
        before = trajectory.key_digest, trajectory.resumed, trajectory.repeated
        trajectory.key_digest, trajectory.resumed, trajectory.repeated = key_hash(key), len(trajectory.usage), set()
        if self._journal is not None:
            try:
                self._journal.resumed(trajectory.kept())
            except BaseException:
                trajectory.key_digest, trajectory.resumed, trajectory.repeated = before
                raise
        self.keys.revoke(before[0])
        self.keys.admit(trajectory.key_digest, id)
        trajectory.recorder.run_again()
        for task in trajectory.running:
            task.cancel()
        return key

    def of_key(self, key: str | None) -> OpenTrajectory:
        """The trajectory of a key. Raises ApiError 401 if the key was never issued or is revoked."""
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
        """Revoke the key, cancel running requests, free the engine's cache. Committed segments stay readable.

        Finishing a trajectory again returns the same, also after a restart, until ``FINISHED`` others were finished, or
        as many as were open at once.
        """
        if id in self._finished:
            return self._finished[id]
        trajectory = self.get(id)
        if self._journal is not None:
            self._journal.finished(id)
        self._finished[id] = trajectory
        self._drop(id)
        while len(self._finished) > max(FINISHED, self._most_open):
            oldest = next(iter(self._finished))
            if self._journal is not None:
                self._journal.closed(oldest)
            del self._finished[oldest]
        self._shorten()
        return trajectory

    def finished(self) -> list[OpenTrajectory]:
        """The last trajectories that were finished, see ``FINISHED``."""
        return list(self._finished.values())

    def delete(self, id: str) -> None:
        """Like ``finish``, but nothing is kept."""
        if id not in self._finished:
            self.get(id)
        if self._journal is not None:
            self._journal.closed(id)
        if self._finished.pop(id, None) is None:
            self._drop(id)
        self._shorten()

    def add_feedback(self, trajectory: OpenTrajectory, event: dict[str, Any], size: int) -> None:
        """Add a feedback event of ``size`` bytes. Raises ApiError 403 if the trajectory has the maximum, 409 if it was
        closed while the event arrived."""
        if trajectory.closed:
            raise ApiError(409, "trajectory_closed", "the trajectory was closed while this feedback arrived")
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
            id=kept.id,
            serial=next(self._serials),
            key_digest=kept.key_digest,
            about=kept.about,
            recorder=kept.recorder,
            limits=limits,
            feedback=kept.feedback,
            feedback_bytes=sum(len(json.dumps(event)) for event in kept.feedback),
            usage=kept.usage,
            opened=kept.opened,
            closed=kept.finished,
            abandoned=kept.abandoned,
            resumed=kept.resumed,
            repeated=kept.repeated,
        )
        if kept.resumed:
            trajectory.recorder.run_again()
        if kept.finished:
            self._finished[kept.id] = trajectory
            return
        self.keys.admit(kept.key_digest, kept.id)
        self.by_id[kept.id] = trajectory
        self._most_open = max(self._most_open, len(self.by_id))

    def _drop(self, id: str) -> None:
        trajectory = self.by_id.pop(id)
        trajectory.closed = True
        self.keys.revoke(trajectory.key_digest)
        for task in trajectory.running:
            task.cancel()
        for segment in range(trajectory.recorder.started):
            self._release(trajectory.session(segment))


class Recorded(NamedTuple):
    """A recorded reply: its segment, its usage, and its number in the trajectory."""

    segment: OpenSegment
    usage: TurnUsage
    number: int

    @property
    def place(self) -> int:
        """Index of the reply among the segment's messages; -1 if it is not there."""
        end = self.usage.prompt_tokens + self.usage.sampled_tokens
        ends = zip(self.segment.ends, self.segment.messages)
        return next((i for i, (at, message) in enumerate(ends) if at >= end and message.get("role") == "assistant"), -1)

    @property
    def last(self) -> bool:
        """True if the reply is the last message of its segment."""
        return self.place == len(self.segment.messages) - 1

    @property
    def grammar(self) -> str | None:
        start = self.usage.prompt_tokens
        return next((c.grammar for c in self.segment.constraints if c.start == start), None)

    def answers(self, request: Request, grammar: str | None) -> bool:
        """Return True if the reply may be sent again for this request.

        Requests differ if their messages, tools, sampling options or grammar do. A request for more than the record
        holds (top log-probabilities) is answered only by the last reply of a segment, and not after a restart.
        """
        segment, messages, place = self.segment, request.messages, self.place
        if segment.busy or segment.tools != request.tools or len(messages) != place or self.grammar != grammar:
            return False
        if request.reported and (segment.reports is None or not self.last):
            return False
        same = segment.common_messages(messages) == place
        return same and self.usage.asked in ("", request.sampling_digest())

    def completion(self, stop_ids: Sequence[int]) -> Completion:
        """The reply's tokens as the engine returned them. The stop reason does not consider stop strings."""
        segment, start = self.segment, self.usage.prompt_tokens
        end = start + self.usage.sampled_tokens
        tokens = segment.tokens[start:end].tolist()
        whole = not stop_ids or (bool(tokens) and tokens[-1] in stop_ids)
        return Completion(
            tokens,
            segment.logprobs[start:end].tolist(),
            segment.versions[start:end].tolist(),
            "stop" if whole else "length",
            reports=segment.reports if self.last else None,
        )


def recorded(trajectory: OpenTrajectory, request: Request, grammar: str | None = None) -> Recorded | None:
    """Return the recorded reply to exactly this request, if it may not have arrived or the trajectory was resumed; else
    None. Replies that were not sent again yet come first, because choices of one request are equal requests."""
    segments = trajectory.recorder.segments
    newest = {turn.segment: number for number, turn in enumerate(trajectory.usage)}
    again = {number for index, number in newest.items() if segments[index].undelivered}
    numbers = sorted(again | set(range(trajectory.resumed)), key=lambda n: (n in trajectory.repeated, n))
    found = (Recorded(segments[trajectory.usage[n].segment], trajectory.usage[n], n) for n in numbers)
    return next((reply for reply in found if reply.answers(request, grammar)), None)
