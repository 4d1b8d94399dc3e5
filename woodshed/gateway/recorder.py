"""Token-exact record of one client's requests.

Invariants, which the tests check with hostile text:

1. The engine gets exactly the ids of the segment so far plus newly encoded ones.
2. Sampled ids enter a segment unchanged. No text within a segment is ever encoded a second time.
3. A token is ``sampled`` in one segment only; tokens that a branch copies from another segment are context there.
4. A request changes nothing until it is committed, and two requests never extend the same segment at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from woodshed.engine.grammar import library
from woodshed.engine.protocol import Completion, Sampling, TokenReport
from woodshed.policy.tokenizer import TooManyTokens
from woodshed.record.kept import KeptSets
from woodshed.record.segment import Altered, Constraint, Segment, Span

from .errors import ContextTooLong
from .messages import Message, normalise, same_message, steady, text_length, with_thinking
from .rendering import Part, Rendering, Tools
from .routes import Routes


class Mark(NamedTuple):
    """Lengths of a segment before a turn."""

    tokens: int
    messages: int
    spans: int


class Before(NamedTuple):
    """State of a segment before a turn, to undo the turn."""

    tokens: int
    messages: list[Message]
    ends: list[int]
    spans: list[Span]
    pending: tuple[int, ...]
    undelivered: bool
    constraints: list[Constraint]
    altered: list[Altered]
    kept: list[KeptSets]
    reports: list[TokenReport] | None


@dataclass(eq=False)
class OpenSegment:
    """A segment that may still grow. ``ends[i]`` counts the tokens up to the end of message i.

    ``number`` is unique in its trajectory and names the engine's session.

    ``pending`` are ids that the next request must prepend to its own: the missing stop token of a completion cut by
    length. ``undelivered``: the last reply may not have reached the client, because the client disconnected or the
    server crashed. ``run_again``: the client may be running the episode again (``Trajectories.resume``), so messages
    are compared after ``steady``. ``reports`` are those of the last reply, in case it has to be sent again; only their
    kept sets are recorded.
    """

    tools: Tools
    number: int
    messages: list[Message] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    sampled: bytearray = field(default_factory=bytearray)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    spans: list[Span] = field(default_factory=list)
    routes: Routes = field(default_factory=Routes)
    pending: tuple[int, ...] = ()
    busy: bool = False
    undelivered: bool = False
    run_again: bool = False
    constraints: list[Constraint] = field(default_factory=list)
    altered: list[Altered] = field(default_factory=list)
    kept: list[KeptSets] = field(default_factory=list)
    reports: list[TokenReport] | None = None

    def add_context(self, ids: Sequence[int]) -> None:
        self.tokens.extend(ids)
        self.sampled.extend(bytes(len(ids)))
        self.logprobs.extend([0.0] * len(ids))
        self.versions.extend([-1] * len(ids))

    def add_sampled(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError("completion: tokens, logprobs and versions differ in length")
        self.tokens.extend(tokens)
        self.sampled.extend(b"\1" * len(tokens))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def before(self) -> Before:
        """The state that ``put_back`` restores."""
        lists = self.messages, list(self.ends), list(self.spans)
        marks = list(self.constraints), list(self.altered), list(self.kept)
        return Before(len(self.tokens), *lists, self.pending, self.undelivered, *marks, self.reports)

    def put_back(self, before: Before) -> None:
        """Restore the state before a turn."""
        end, self.messages, self.ends, self.spans, self.pending, self.undelivered, *_ = before
        self.constraints, self.altered, self.reports = before.constraints, before.altered, before.reports
        self.kept = before.kept
        for held in (self.tokens, self.sampled, self.logprobs, self.versions):
            del held[end:]
        self.routes.forget(end)

    def common_messages(self, messages: list[Any]) -> int:
        """Number of leading messages that mean the same here and in ``messages``."""
        n = 0
        for ours, theirs in zip(self.messages, messages):
            if not same_message(ours, theirs):
                tolerant = self.run_again and isinstance(theirs, dict)
                if not tolerant or not same_message(steady(ours), steady(theirs)):
                    break
            n += 1
        return n

    def freeze(self) -> Segment:
        segment = Segment(
            tokens=np.array(self.tokens, np.int32),
            sampled=np.frombuffer(bytes(self.sampled), np.bool_).copy(),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            spans=list(self.spans),
            routes=self.routes.freeze(len(self.tokens)),
            constraints=list(self.constraints),
            altered=list(self.altered),
            kept=list(self.kept),
        )
        segment.check()
        return segment


@dataclass
class Turn:
    """A planned request that is not committed yet. ``prompt`` are the ids for the engine, ``parts`` the new ones among
    them. ``fresh``: it starts a new segment. ``sampling`` is set once it is known."""

    segment: OpenSegment
    tools: Tools
    messages: list[Message]
    prompt: list[int]
    parts: list[Part]
    fresh: bool
    grammar: str | None = None
    sampling: Sampling | None = None
    before: Before | None = None
    """The segment before the turn was committed."""

    def mark(self) -> Mark:
        """Lengths of the segment now; zero for a new segment, of which nothing is recorded yet."""
        held = self.segment
        return Mark(0, 0, 0) if self.fresh else Mark(len(held.tokens), len(held.messages), len(held.spans))


class Recorder:
    """Records the segments of one trajectory."""

    def __init__(self, rendering: Rendering) -> None:
        self.rendering = rendering
        self.segments: list[OpenSegment] = []
        self.started = 0
        self.prefix_breaks = 0

    def plan(self, messages: list[Any], tools: Tools, grammar: str | None = None, context: int | None = None) -> Turn:
        """``prepare`` and ``reserve`` in one call."""
        turn = self.prepare(messages, tools, grammar, context)
        self.reserve(turn)
        return turn

    def prepare(
        self, messages: list[Any], tools: Tools, grammar: str | None = None, context: int | None = None
    ) -> Turn:
        """Decide which segment the request extends, and encode what is new. Raises ApiError for an invalid message, and
        if the prompt fills ``context`` tokens: before encoding, if the length of the text alone shows it.

        Changes nothing, so it may run outside the event loop; during the call no other turn of this recorder may be
        reserved, committed or reverted.
        """
        segment = self._extended(messages, tools)
        fresh = segment is None
        if segment is None:
            segment = self._branch(messages, tools)
        known = len(segment.messages)
        given = messages[known:]
        most = None
        held = len(segment.tokens) + len(segment.pending)
        if context is not None:
            most = context - 1 - held
            # rendering may leave out blanks and thinking, but not three quarters of a text
            least = sum(map(text_length, given)) // (4 * self.rendering.tokenizer.longest)
            if least > most:
                raise ContextTooLong(held + least, context)
        new = [normalise(message, known + i) for i, message in enumerate(given)]
        try:
            parts = self.rendering.parts(new, known, tools, opened=known > 0, most=most)
        except TooManyTokens as error:
            assert context is not None
            raise ContextTooLong(held + error.least, context) from None
        if segment.pending:
            parts.insert(0, ("assistant", -1, segment.pending))
        prompt = segment.tokens.tolist()
        for _, _, ids in parts:
            prompt += ids
        return Turn(segment, tools, messages, prompt, parts, fresh, grammar)

    def reserve(self, turn: Turn) -> None:
        """Exclude other requests from the segment until ``commit`` or ``abandon``."""
        turn.segment.busy = True
        if turn.fresh:
            self.number(turn.segment)

    def abandon(self, turn: Turn) -> None:
        """Release the segment of a request that failed, without changing it."""
        turn.segment.busy = False

    def commit(self, turn: Turn, completion: Completion, reply: Message) -> None:
        """Record the prompt and the sampled tokens; ``reply`` is the message that the client gets."""
        segment = turn.segment
        turn.before = segment.before()
        segment.busy = segment.undelivered = False
        for role, index, ids in turn.parts:
            self._append(segment, role, index, ids)
        segment.add_sampled(completion.tokens, completion.logprobs, completion.versions)
        total = len(segment.tokens)
        start = total - len(completion.tokens)
        segment.reports = completion.reports
        if (given := turn.sampling) is not None and given.altered and completion.tokens:
            amounts = given.temperature, given.presence_penalty, given.frequency_penalty, given.repetition_penalty
            segment.altered.append(Altered(start, total, *amounts, bool(given.logit_bias)))
        if given is not None and given.truncated and completion.tokens:
            reports = completion.reports or [TokenReport(0.0)] * len(completion.tokens)
            segment.kept.append(KeptSets.of(start, [report.kept for report in reports]))
        if turn.grammar is not None and completion.tokens:
            made_by = library() or ""
            segment.constraints.append(Constraint(start, total, turn.grammar, self.rendering.stop_ids, made_by))
        last = segment.spans[-1]
        segment.spans[-1] = Span(last.start, total, last.role, last.message)
        segment.ends[-1] = total
        known = map(with_thinking, turn.messages, segment.messages)
        segment.messages = [*known, *turn.messages[len(segment.messages) :], reply]
        stops = self.rendering.stop_ids
        complete = bool(completion.tokens) and completion.tokens[-1] in stops
        segment.pending = () if complete or not stops else stops[:1]
        prompt = len(turn.prompt)
        segment.routes.fill(prompt, completion.prompt_routes)
        segment.routes.fill(total, completion.routes)
        if turn.fresh:
            self.segments.append(segment)
            self.prefix_breaks = len(self.segments) - 1

    def revert(self, turn: Turn) -> None:
        """Undo the turn that was committed last."""
        assert turn.before is not None
        turn.segment.put_back(turn.before)
        if turn.fresh:
            self.segments.remove(turn.segment)
            self.prefix_breaks = max(0, len(self.segments) - 1)

    def adopt(self, tools: Tools) -> None:
        """Add an empty segment, to restore one that was recorded before a restart."""
        self.segments.append(OpenSegment(tools, self.started))
        self.started += 1
        self.prefix_breaks = len(self.segments) - 1

    def number(self, segment: OpenSegment) -> None:
        """Give a segment a number, and with it an engine session, that no other had before."""
        segment.number = self.started
        self.started += 1

    def run_again(self) -> None:
        """Expect that the client runs the episode again from now on; see ``OpenSegment.run_again``."""
        for segment in self.segments:
            segment.run_again = True

    def freeze(self) -> list[Segment]:
        """The committed segments, in the order in which they were first committed."""
        return [segment.freeze() for segment in self.segments]

    @staticmethod
    def _append(segment: OpenSegment, role: str, index: int, ids: Sequence[int]) -> None:
        start = len(segment.tokens)
        segment.add_context(ids)
        end = len(segment.tokens)
        spans = segment.spans
        if index < 0 or (spans and spans[-1].role == role and spans[-1].message == index):
            spans[-1] = Span(spans[-1].start, end, spans[-1].role, spans[-1].message)
            segment.ends[-1:] = [end] if segment.ends else []
            if index < 0:
                return
        else:
            spans.append(Span(start, end, role, index))
        if len(segment.ends) == index:
            segment.ends.append(end)
        else:
            segment.ends[index] = end

    def _extended(self, messages: list[Any], tools: Tools) -> OpenSegment | None:
        """Find the longest segment that the request continues, beginning with the newest, which nearly always
        matches."""
        best: OpenSegment | None = None
        for segment in reversed(self.segments):
            n = len(segment.messages)
            if segment.busy or n > len(messages) or (best is not None and n <= len(best.messages)):
                continue
            if segment.tools == tools and segment.common_messages(messages) == n:
                best = segment
        return best

    def _branch(self, messages: list[Any], tools: Tools) -> OpenSegment:
        """Create a segment that starts with a copy of the longest known common prefix, ids included, as context."""
        source, common = None, 0
        for segment in reversed(self.segments):
            if segment.tools == tools and (n := segment.common_messages(messages)) > common:
                source, common = segment, n
        new = OpenSegment(tools, self.started)
        while source is not None and common and _shares_turn(source.messages, messages, common):
            common -= 1
        if source is None or not common:
            return new
        end, new.run_again = source.ends[common - 1], source.run_again
        new.add_context(source.tokens[:end])
        new.routes = source.routes.copy(end)
        new.messages = source.messages[:common]
        new.ends = source.ends[:common]
        new.spans = [span for span in source.spans if span.end <= end]
        if common == len(source.messages):
            new.pending = source.pending
        return new


def _shares_turn(ours: list[Message], theirs: list[Any], n: int) -> bool:
    """Return True if message n-1 is a tool result and another one follows, which chat formats may put into the same
    turn."""
    following = [messages[n] for messages in (ours, theirs) if n < len(messages)]
    return ours[n - 1].get("role") == "tool" and any(
        isinstance(message, dict) and message.get("role") == "tool" for message in following
    )
