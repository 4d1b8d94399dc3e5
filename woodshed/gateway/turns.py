"""Processes one request, from its messages to the recorded reply."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from woodshed.engine.protocol import (
    Completion,
    ContextLengthExceeded,
    Engine,
    EngineBusy,
    EngineClosed,
    EngineError,
    OnToken,
    Sampling,
    SamplingRefused,
)
from woodshed.policy.formats.base import ParsedMessage

from .background import Background
from .constraints import Constraints
from .errors import RESUME_DIVERGED, ApiError, ContextTooLong, invalid
from .journal import Journal, JournalError
from .key_limits import KeyUsage, TokenCounter, TurnUsage
from .messages import Message
from .metrics import Metrics
from .recorder import OpenSegment, Turn
from .rendering import Rendering
from .request import Request
from .trajectories import OpenTrajectory, Recorded, recorded
from .watch import Parse, Watch

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Request)

_COUNTED = 4
"""Prompts are counted up to this many times the context: agents ask by how much a conversation is too long."""

_FIELDS = {"raw_logprobs": "logprobs_mode"}
"""Maps fields of ``Sampling`` to their names in requests, where these differ."""

_NO_TOOLS: list[dict[str, Any]] = []


@dataclass(frozen=True)
class Answer:
    """The data from which a dialect writes a reply. ``reply`` is the assistant message as recorded.

    ``finish_reason`` is that of Chat Completions: stop, length or tool_calls. ``stop_string`` is the stop string that
    ended the text, or None.
    """

    reply: Message
    finish_reason: str
    completion: Completion
    prompt_tokens: int
    thinking_tokens: int
    parse_error: str | None
    segment: OpenSegment
    stop_string: str | None = None

    def lost(self) -> None:
        """Mark the reply as not delivered: the same request gets it again, unless the segment has grown since."""
        if self.segment.messages[-1] is self.reply:
            self.segment.undelivered = True


class Listener(Protocol):
    """Receives the progress of a turn; called in the event loop."""

    def planned(self, prompt_tokens: int) -> None: ...

    def text(self, text: str) -> None:
        """The whole text so far; called whenever there is more."""
        ...

    def settle(self, reply: Message) -> None:
        """Called before the reply is recorded; may change it to agree with what the client has already received."""
        ...


class Turns:
    """Runs turns: plan, sample, record, write to the journal, and only then answer."""

    def __init__(
        self,
        engine: Engine,
        rendering: Rendering,
        metrics: Metrics,
        *,
        max_tokens: int,
        raw_logprobs: bool = False,
        journal: Journal | None = None,
    ) -> None:
        """``max_tokens`` and ``raw_logprobs`` are the defaults for requests without these fields."""
        self.engine = engine
        self.rendering = rendering
        self.metrics = metrics
        self.max_tokens = max_tokens
        self.raw_logprobs = raw_logprobs
        self.journal = journal
        self.background = Background()
        self.constraints = Constraints(rendering, engine)

    def parser(self, request: Request) -> Parse:
        """Return the parser of sampled text for the request's tools. Raises ApiError if the chat format cannot use a
        schema."""
        tools = self.rendering.known(request.tools if request.call_tools else _NO_TOOLS)
        return lambda text: self.rendering.format.parse(text, tools)

    async def read(self, trajectory: OpenTrajectory, body: list[bytes], parse: Callable[[bytes], R]) -> R:
        """Parse the pieces of ``body`` into a request. Raises ApiError."""
        size = sum(map(len, body))

        def work() -> R:
            request = parse(b"".join(body))
            _ = request.rules.key  # computed here, outside the event loop, and cached
            raw = self.raw_logprobs if request.raw_logprobs is None else request.raw_logprobs
            tools = self.rendering.known(request.tools)
            return replace(request, tools=tools, size=size, raw_logprobs=request.logprobs and raw)

        def then(request: R) -> R:
            trajectory.ignore(request.ignored)
            self.metrics.ignored += len(request.ignored)
            return request

        return await self.background.alone(trajectory.lock, size, work, then)

    async def count(self, trajectory: OpenTrajectory, request: Request) -> int:
        """Return the number of prompt tokens that this request would send to the engine now.

        Raises ApiError, also if there are more than ``_COUNTED`` times the context.
        """
        context = self._context(trajectory)
        most = None if context is None else _COUNTED * context

        def work() -> int:
            try:
                return len(trajectory.recorder.prepare(request.messages, request.tools, context=most).prompt)
            except ContextTooLong as error:
                raise ContextTooLong(error.tokens, context or error.context) from None

        return await self.background.alone(trajectory.lock, request.size, work, lambda count: count)

    async def run(self, trajectory: OpenTrajectory, request: Request, listener: Listener | None = None) -> Answer:
        """Sample a reply and record it.

        Nothing is recorded if the request is cancelled or its trajectory is closed before the end. Raises ApiError.
        """
        return await self.choice(trajectory, request, listener, refused=self.refusal(trajectory, 1))

    def refusal(self, trajectory: OpenTrajectory, choices: int) -> ApiError | None:
        """Return the error if the key's limits do not allow ``choices`` more replies, else None."""
        try:
            trajectory.limits.check(trajectory.key_usage(), len(trajectory.running) + choices - 1)
        except ApiError as error:
            return error
        return None

    async def choice(
        self,
        trajectory: OpenTrajectory,
        request: Request,
        listener: Listener | None,
        *,
        refused: ApiError | None,
        together: asyncio.Barrier | None = None,
    ) -> Answer:
        """Like ``run``, for one of several choices, which wait at ``together`` until all are sampled before any is
        recorded. ``refused`` is raised unless the reply was already recorded."""
        parse = self.parser(request)
        grammar = await self.constraints.grammar(request)
        task = asyncio.current_task()
        assert task is not None
        if refused is None:
            trajectory.running[task] = 0
        counter = TokenCounter()
        turn: Turn | None = None
        unrecorded = False
        try:
            found = await self._plan(trajectory, request, grammar, refused)
            if trajectory.closed:
                raise ApiError(409, "trajectory_closed", "the trajectory was closed while this request ran")
            if not isinstance(found, Turn):
                again = self._again(found, request, parse)
                if listener is not None:
                    listener.planned(again.prompt_tokens)
                if together is not None:
                    await _met(together, again)
                return again
            turn = found
            # checked again: another request may have reserved the remaining tokens while this one was planned
            trajectory.limits.check(trajectory.key_usage(), len(trajectory.running) - 1)
            watch = None
            if listener is not None or request.stop:
                on_text = None if listener is None else listener.text
                watch = Watch(self.rendering.tokenizer, request.stop, self.rendering.stop_ids, on_text)
            if listener is not None:
                listener.planned(len(turn.prompt))
            completion, unrecorded = await self._sample(trajectory, turn, request, watch, counter), True
            if trajectory.closed:
                raise ApiError(409, "trajectory_closed", "the trajectory was closed while this request ran")
            if completion.stop_reason == "cancelled":
                raise ApiError(503, "engine_cancelled", "the engine cancelled this request; send it again")
            text = watch.text() if watch is not None else self.rendering.text(completion.tokens)
            answer = await self._answer(turn, completion, parse(text), None if watch is None else watch.found)
            if together is not None:
                await together.wait()
            async with trajectory.lock:
                if trajectory.closed:
                    raise ApiError(409, "trajectory_closed", "the trajectory was closed while this request ran")
                if listener is not None:
                    listener.settle(answer.reply)
                self._record(trajectory, turn, answer, request.sampling_digest())
                unrecorded = False
            return answer
        except asyncio.CancelledError:
            if trajectory.closed:
                raise ApiError(409, "trajectory_closed", "the trajectory was closed while this request ran") from None
            self._abandon(trajectory, counter.tokens)
            raise
        finally:
            trajectory.running.pop(task, None)
            if turn is not None:
                turn.segment.busy = False
                if unrecorded:  # the engine returns the routes of a token only once per session
                    self.engine.release(trajectory.session(turn.segment.number))
                    # A release may reach the engine after the next request, and would cancel it.
                    trajectory.recorder.number(turn.segment)

    def _abandon(self, trajectory: OpenTrajectory, sampled: int) -> None:
        """Charge a key whose client has disconnected for the ``sampled`` tokens, as if they were a reply."""
        if not sampled:
            return
        trajectory.abandoned = KeyUsage(trajectory.abandoned.turns + 1, trajectory.abandoned.sampled_tokens + sampled)
        if self.journal is not None:
            try:
                self.journal.abandoned(trajectory.id, trajectory.abandoned)
            except JournalError as error:  # only logged, as no client waits; a restart will forget this usage
                log.error("%s", error)

    def _repeat(self, trajectory: OpenTrajectory, found: Recorded) -> None:
        """Note that a recorded reply is sent again."""
        trajectory.repeated.add(found.number)
        if found.last:
            found.segment.undelivered = False
        if self.journal is not None and found.number < trajectory.resumed:
            try:
                self.journal.repeated(trajectory.id, found.number)
            except JournalError as error:  # only logged: after a restart, the reply counts as not sent again
                log.error("%s", error)

    async def _plan(
        self, trajectory: OpenTrajectory, request: Request, grammar: str | None, refused: ApiError | None
    ) -> Turn | Recorded:
        """Return the recorded reply to this request, else reserve a turn.

        Raises ``refused`` if no reply is recorded, and ApiError 410 if a resumed episode diverges from its record.
        """

        def work() -> Turn | Recorded:
            found = recorded(trajectory, request, grammar)
            if found is not None:
                return found
            if refused is not None:
                raise refused
            turn = trajectory.recorder.prepare(request.messages, request.tools, grammar, self._context(trajectory))
            if turn.fresh and trajectory.repeating:
                # not 409, which clients retry
                raise ApiError(410, RESUME_DIVERGED, "the resumed episode diverges from its recorded requests")
            return turn

        def then(found: Turn | Recorded) -> Turn | Recorded:
            if isinstance(found, Turn):
                trajectory.recorder.reserve(found)
                return found
            self._repeat(trajectory, found)
            return found

        return await self.background.alone(trajectory.lock, request.size, work, then)

    def _context(self, trajectory: OpenTrajectory) -> int | None:
        """Maximum number of tokens of a context; None if it is unknown."""
        known = [tokens for tokens in (self.engine.context, trajectory.limits.context_tokens) if tokens]
        return min(known, default=None)

    def _again(self, found: Recorded, request: Request, parse: Parse) -> Answer:
        """Build the answer from a recorded reply."""
        segment, usage = found.segment, found.usage
        completion = found.completion(self.rendering.stop_ids)
        text = self.rendering.text(completion.tokens)
        cut = min(((at, stop) for stop in request.stop if (at := text.find(stop)) >= 0), default=None)
        if cut is not None:
            completion = replace(completion, stop_reason="stop")
        parsed = parse(text if cut is None else text[: cut[0]])
        finish = _finish_reason(completion, bool(parsed.tool_calls))
        self.metrics.redelivered += 1
        return Answer(
            reply=segment.messages[found.place],
            finish_reason=finish,
            completion=completion,
            prompt_tokens=usage.prompt_tokens,
            thinking_tokens=usage.thinking_tokens,
            parse_error=parsed.error,
            segment=segment,
            stop_string=None if cut is None else cut[1],
        )

    async def _sample(
        self, trajectory: OpenTrajectory, turn: Turn, request: Request, watch: Watch | None, counter: TokenCounter
    ) -> Completion:
        most = request.max_tokens or self.max_tokens
        sampling = Sampling(
            max_tokens=most if request.share is None else min(most, request.share),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            stop_ids=self.rendering.stop_ids,
            seed=request.seed,
            logit_bias=request.logit_bias,
            grammar=turn.grammar,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            raw_logprobs=bool(request.raw_logprobs),
            top_logprobs=request.top_logprobs if request.logprobs else 0,
        )
        sampling = trajectory.limits.apply(sampling, trajectory.key_usage(), len(turn.prompt))
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_seed_of_turn(sampling.seed + request.choice, turn.prompt))
        if sampling.penalised and trajectory.about.get("source") == "train":
            raise _untrainable(sampling)
        unrecorded = self.engine.kept_sets_refused() if sampling.truncated else None
        if unrecorded and trajectory.about.get("source") == "train":
            raise _unrecorded(sampling, unrecorded)
        turn.sampling = sampling
        on_token = None if watch is None else _listening(watch)
        if trajectory.limits.bounded:
            task = asyncio.current_task()
            assert task is not None
            trajectory.running[task] = sampling.max_tokens
            counter.next, on_token = on_token, counter.on_token
        session = trajectory.session(turn.segment.number)
        try:
            done = await self.engine.generate(turn.prompt, sampling, session=session, on_token=on_token)
            return done if watch is None else _cut(done, watch)
        except ContextLengthExceeded as error:
            raise ContextTooLong(error.tokens, error.context) from None
        except EngineBusy as error:
            raise ApiError(429, "engine_busy", str(error), type="rate_limit_error") from None
        except EngineClosed as error:
            raise ApiError(503, "engine_closed", str(error)) from None
        except EngineError as error:
            raise ApiError(500, "engine_error", f"{error}") from error
        except SamplingRefused as error:
            raise invalid(_FIELDS.get(error.field, error.field), error.reason, "unsupported_value") from None
        except ValueError as error:
            raise ApiError(400, "invalid_value", str(error)) from None

    async def _answer(
        self, turn: Turn, completion: Completion, parsed: ParsedMessage, stop_string: str | None
    ) -> Answer:
        reply: Message = {"role": "assistant", "content": parsed.content or None}
        if parsed.thinking:
            reply["reasoning_content"] = parsed.thinking
        if parsed.tool_calls:
            reply["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in parsed.tool_calls
            ]
        else:
            reply["content"] = parsed.content
        finish = _finish_reason(completion, bool(parsed.tool_calls))
        thinking = 0
        if text := parsed.thinking:
            thinking = await self.background.run(len(text), lambda: len(self.rendering.tokenizer.encode(text)))
        return Answer(
            reply=reply,
            finish_reason=finish,
            completion=completion,
            prompt_tokens=len(turn.prompt),
            thinking_tokens=thinking,
            parse_error=parsed.error,
            segment=turn.segment,
            stop_string=stop_string,
        )

    def _record(self, trajectory: OpenTrajectory, turn: Turn, answer: Answer, asked: str) -> None:
        recorder, before = trajectory.recorder, turn.mark()
        recorder.commit(turn, answer.completion, answer.reply)
        index = recorder.segments.index(turn.segment)
        usage = TurnUsage(
            segment=index,
            prompt_tokens=answer.prompt_tokens,
            sampled_tokens=len(answer.completion.tokens),
            thinking_tokens=answer.thinking_tokens,
            calls=len(answer.reply.get("tool_calls", ())),
            parse_error=answer.parse_error or "",
            asked=asked,
        )
        if self.journal is not None:
            try:
                self.journal.turn(trajectory.id, index, turn.segment, before, usage)
            except BaseException:
                recorder.revert(turn)
                raise
        trajectory.usage.append(usage)
        metrics = self.metrics
        metrics.turns += 1
        metrics.prompt_tokens += answer.prompt_tokens
        metrics.cached_tokens += answer.completion.cached_tokens
        metrics.sampled_tokens += len(answer.completion.tokens)
        metrics.parse_errors += answer.parse_error is not None
        metrics.prefix_breaks += turn.fresh and len(recorder.segments) > 1


async def _met(together: asyncio.Barrier, again: Answer) -> None:
    """Wait for the other choices; if they fail, mark this one as not delivered."""
    try:
        await together.wait()
    except BaseException:
        again.lost()
        raise


def _untrainable(sampling: Sampling) -> ApiError:
    """Return the error for a training request with penalties: the trainer computes log-probabilities under the policy
    itself, not under the penalised distribution."""
    names = (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1))
    name = next(name for name, off in names if getattr(sampling, name) != off)
    message = (
        "a trajectory for training is sampled without penalties, because the trainer cannot account for them; open "
        "the trajectory with source live or eval, or with limits.temperature, which removes penalties"
    )
    return invalid(name, message, "unsupported_value")


def _unrecorded(sampling: Sampling, why: str) -> ApiError:
    """Return the error for a training request with top_p, top_k or min_p to an engine that reports no kept sets."""
    names = (("top_p", 1), ("top_k", 0), ("min_p", 0))
    name = next(name for name, off in names if getattr(sampling, name) != off)
    message = (
        f"{why}, so the trainer could not renormalise over the same tokens; sample from the whole distribution "
        "(rl.sampling), or with the local engine"
    )
    return invalid(name, message, "unsupported_value")


def _seed_of_turn(seed: int, prompt: Sequence[int]) -> int:
    """Return the engine's seed for a request: equal for equal prompts. With the client's own seed, all turns of an
    episode would be sampled with the same random numbers."""
    digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8, salt=(seed % (1 << 64)).to_bytes(8)).digest()
    return int.from_bytes(digest) >> 1


def _finish_reason(completion: Completion, calls: bool) -> str:
    return "length" if completion.stop_reason == "length" else "tool_calls" if calls else "stop"


def _listening(watch: Watch) -> OnToken:
    """Return the engine's callback, which passes tokens to ``watch`` and ends the completion at a stop string."""

    def on_token(token: int, logprob: float, version: int) -> bool:
        watch.on_token(token, logprob, version)
        return watch.cut is not None

    return on_token


def _cut(done: Completion, watch: Watch) -> Completion:
    """Cut the completion at a stop string, if it has one."""
    watch.look()
    if watch.cut is None:
        return done
    kept = slice(watch.cut)
    return replace(
        done,
        tokens=done.tokens[kept],
        logprobs=done.logprobs[kept],
        versions=done.versions[kept],
        stop_reason="stop",
        routes=None if done.routes is None else done.routes[kept],
        reports=None if done.reports is None else done.reports[kept],
    )
