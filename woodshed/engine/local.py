"""The built-in engine: continuous batching over a key/value cache that outlives requests, in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.engine.native.kernels import Backend
from woodshed.policy.config import ConfigError
from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead
from woodshed.policy.state import load_hf_state

from . import graphs
from .cache import RowCache
from .drafting import Speculation, draft_head
from .forward import Forward
from .grammar import MISSING, GrammarError, Grammars, Matcher, library
from .lent import LentCores
from .protocol import (
    Completion,
    EngineBusy,
    EngineClosed,
    EngineError,
    OnReport,
    OnToken,
    Sampling,
    StopReason,
    TokenReport,
    check_sampling,
    checked_prompt,
    split_prompt,
)
from .request import KvPolicy, Outbox, Request, Swap, seeded
from .sampler import TokenCounts
from .scheduler import FairQueue, Scheduler
from .settings import EngineSettings


class LocalEngine:
    """Samples from a decoder in this process; implements ``woodshed.engine.protocol.Engine``.

    The engine takes ownership of ``decoder``: it moves it to ``device`` and changes its weights in place. ``version``
    is the PolicyVersion of its initial weights. ``mtp`` is the draft head, whose weights stay fixed. Without
    ``grammars``, requests that have a grammar are refused. Any event loop of any thread may call the engine.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        settings: EngineSettings | None = None,
        device: str | torch.device = "cpu",
        version: int = 0,
        mtp: MtpHead | None = None,
        grammars: Grammars | None = None,
        cores: LentCores | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self._grammars, self._cores = grammars, cores
        config = decoder.config
        if self.settings.context is not None and self.settings.context > config.max_positions:
            raise ValueError(f"engine.context is {self.settings.context}; the policy's limit is {config.max_positions}")
        self.context = self.settings.context or config.max_positions
        self.vocabulary = config.vocab_size
        decoder.requires_grad_(False)
        decoder.to(torch.device(device))
        self.device = decoder.device  # with the GPU's index, which "cuda" lacks and torch.cuda.set_device needs
        if self.settings.dtype != "auto":
            decoder.to(getattr(torch, self.settings.dtype))
        self.decoder = decoder
        self.mtp = draft_head(mtp, decoder, self.settings)
        self._backend = Backend(decoder, self.settings)
        refused = graphs.why_not(decoder, drafts=self.mtp is not None) if self.settings.graphs else None
        if refused is not None:
            raise ValueError(f"engine.graphs is true, but {refused}")
        self._version = version
        self.weights_problem: dict[str, Any] | None = None
        """Reason why newer weights cannot be loaded, and since when; set by ``ChainWatch``."""
        self._random = random.Random(self.settings.seed)
        self._waiting = FairQueue()
        self._reset_cache()
        self._outbox = Outbox()
        self._wake = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._swaps: deque[Swap] = deque()
        self._closed, self._closed_why = False, "the engine is closed"
        self._started = time.perf_counter()
        self._counts = {"generated_tokens": 0, "prefilled_tokens": 0, "reused_tokens": 0, "iterations": 0, "swaps": 0}
        self._counts["lent_iterations"] = 0
        self._speculation = Speculation(self.settings)
        self._busy_seconds = self._swap_seconds = self._iteration_began = 0.0
        self._thread = threading.Thread(target=self._main, name="woodshed-engine", daemon=True)
        self._thread.start()
        self._backend.await_compilation(self._post_kernels)

    @property
    def version(self) -> int:
        return self._version

    def check_open(self) -> None:
        """Raise EngineClosed, with the reason, if the engine was closed or has stopped."""
        if self._closed:
            raise EngineClosed(self._closed_why)

    async def stopped(self) -> None:
        """Wait until the engine was closed or has stopped, then raise EngineClosed with the reason."""
        await asyncio.to_thread(self._thread.join)
        self.check_open()

    async def generate(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        session: str | None = None,
        on_token: OnToken | None = None,
        on_report: OnReport | None = None,
    ) -> Completion:
        """Sample a completion of ``tokens``. Cancelling the awaiting task stops the request.

        Raises ContextLengthExceeded or ValueError before anything runs, EngineBusy when too many requests wait,
        EngineClosed when the engine is closed, and EngineError (with the cause chained) when the computation fails.
        """
        prompt = checked_prompt(tokens, self.vocabulary, self.context)
        check_sampling(sampling, self.vocabulary)
        limit = min(sampling.max_tokens, self.context - len(prompt))
        if self._cache.rows_within(len(prompt) + limit) < 1:
            raise ValueError(
                f"a sequence of {len(prompt) + limit} tokens at {self._cache.token_bytes} bytes a token does not fit "
                f"engine.cache_bytes {self.settings.cache_bytes}; raise it or lower max_tokens"
            )
        matcher = counts = None
        loop = asyncio.get_running_loop()
        if sampling.penalised:
            given, drawn = split_prompt(sampling, prompt)
            counts = TokenCounts(sampling, given.tolist(), drawn.tolist())
        if sampling.grammar is not None:
            if self._grammars is None or self._grammars.knows(sampling.grammar):
                matcher = self._matcher(sampling, prompt)
            else:  # compiling takes time: neither in the engine's thread nor in the event loop
                matcher = await loop.run_in_executor(self._grammars.compilers, self._matcher, sampling, prompt)
        request = Request(
            prompt=prompt,
            sampling=sampling,
            limit=limit,
            session=session,
            on_token=on_token,
            loop=loop,
            future=loop.create_future(),
            rng=self._random if sampling.seed is None else seeded(sampling.seed, sampling.drawn),
            stop_ids=frozenset(sampling.stop_ids),
            matcher=matcher,
            counts=counts,
            on_report=on_report,
        )
        with self._wake:
            self.check_open()
            if len(self._inbox) + len(self._scheduler.waiting) >= self.settings.max_waiting:
                raise EngineBusy(f"{self.settings.max_waiting} requests are already waiting (engine.max_waiting)")
            self._inbox.append(request)
            self._commands.append(self._enqueue)
            self._wake.notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            with contextlib.suppress(EngineClosed):  # it may have been completed since
                self._post(lambda: self._scheduler.take_back(request))
            raise

    async def update_weights(self, version: int, state: Mapping[str, Tensor], *, kv: KvPolicy = "keep") -> float:
        """Swap the weights between two iterations; returns the seconds for which sampling paused.

        ``state`` has Hugging Face names and the shapes of the policy; it is copied. ``kv`` decides what happens to
        cached keys and values: ``keep`` keeps those of the old weights; ``recompute`` discards and recomputes them,
        also for running requests; ``drain`` lets running requests finish first, so that no completion mixes versions,
        and then discards them. Raises ValueError (naming the tensor) before anything changes if ``state`` does not
        match the policy. If loading fails later, the weights may be a mixture: the engine stops, and this call and
        every request get EngineClosed.
        """
        loop = asyncio.get_running_loop()
        swap = Swap(version, state, kv, loop, loop.create_future())
        self._post(lambda: self._swaps.append(swap))
        return await swap.future

    def grammars_refused(self) -> str | None:
        """Return the reason why this engine refuses ``Sampling.grammar``, None if it accepts one."""
        if self._grammars is None:
            return "it was opened without the policy's tokenizer"
        return None if library() else MISSING

    def kept_sets_refused(self) -> str | None:
        """Return None: this engine reports kept sets."""
        return None

    def release(self, session: str) -> None:
        """Forget a session; its unfinished requests end with stop reason ``cancelled``."""
        with self._wake:
            if self._closed:
                return
        self._post(lambda: self._release(session))

    def stats(self) -> dict[str, Any]:
        """Counters since the start and current load. ``stopped``: the reason why the engine no longer runs, else None.
        ``kernels`` names the compute backend (``native``: the engine's own kernels, else torch and the reason),
        ``idle_share`` is the share of time without work, ``iteration_seconds`` the time spent in the current iteration
        so far (0 between iterations), ``lent_iterations`` the number of iterations that used the cores of an idle
        trainer."""
        now, began = time.perf_counter(), self._iteration_began
        uptime = now - self._started
        return {
            "version": self._version,
            "stopped": self._closed_why if self._closed else None,
            "weights_stale": int(self.weights_problem is not None),
            "weights_problem": self.weights_problem,
            "kernels": self._backend.description,
            "native": int(self._backend.kernels is not None),
            "running": len(self._scheduler.running),
            "waiting": len(self._inbox) + len(self._scheduler.waiting),
            "sessions": len(self._cache.sessions),
            "cache_tokens": self._cache.cached_tokens(),
            "cache_bytes": self._cache.rows * self._cache.length * self._cache.token_bytes,
            "evictions": self._cache.evictions,
            **self._counts,
            "drafted_tokens": self._speculation.drafted,
            "accepted_tokens": self._speculation.accepted,
            "swap_seconds": self._swap_seconds,
            "busy_seconds": self._busy_seconds,
            "uptime_seconds": uptime,
            "iteration_seconds": now - began if began else 0.0,
            "idle_share": max(0.0, 1.0 - self._busy_seconds / uptime) if uptime else 0.0,
        }

    async def close(self) -> None:
        """Stop after the current iteration; unfinished requests fail with EngineClosed."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _matcher(self, sampling: Sampling, prompt: NDArray[np.int32]) -> Matcher:
        """The matcher of a request, advanced over its ``drawn`` tokens. Raises ValueError."""
        if self._grammars is None:
            raise GrammarError(f"sampling.grammar: the engine accepts none, {self.grammars_refused()}")
        assert sampling.grammar is not None
        _, drawn = split_prompt(sampling, prompt)
        matcher = self._grammars.start(sampling.grammar, sampling.stop_ids)
        if len(drawn):
            matcher.advance(drawn.tolist())
        return matcher

    def _post(self, command: Callable[[], None]) -> None:
        """Have the engine's thread call ``command`` between two iterations. Raises EngineClosed."""
        with self._wake:
            self.check_open()
            self._commands.append(command)
            self._wake.notify()

    def _post_kernels(self) -> None:
        """Switch to the engine's own kernels, which are compiled now, between two iterations."""
        with contextlib.suppress(EngineClosed):
            self._post(self._load_kernels)

    # ---- the engine's thread ----

    def _load_kernels(self) -> None:
        self._backend.load()
        self._forward.compute_with(self._backend.kernels)

    def _reset_cache(self) -> None:
        """Create an empty cache, and the scheduler and the forward pass that use it."""
        self._cache = RowCache.of(self.decoder, self.settings, context=self.context, mtp=self.mtp is not None)
        self._scheduler = Scheduler(self._cache, self.settings, self._waiting)
        ngram = self.settings.speculate == "ngram"
        record = graphs.record_on_gpu if self.settings.graphs else None
        self._forward = Forward(
            self.decoder, self._cache, mtp=self.mtp, ngram=ngram, record=record, kernels=self._backend.kernels
        )

    def _main(self) -> None:
        if self.device.type == "cpu" and self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # per thread: graphs are recorded on the thread's current device
        failure: BaseException = EngineClosed("the engine was closed before it answered")
        try:
            with torch.inference_mode():
                while self._take():
                    began = self._iteration_began = time.perf_counter()
                    if self._cores is not None:
                        self._counts["lent_iterations"] += self._cores.use()
                    self._iterate()
                    self._outbox.flush()
                    self._iteration_began = 0.0
                    self._busy_seconds += time.perf_counter() - began
        except BaseException as error:  # every caller gets an answer, whatever happened
            failure = EngineClosed(f"the engine stopped: {error!r}")
            failure.__cause__ = error
            self._closed_why = str(failure)
            raise
        finally:
            self._refuse_all(failure)
            if self._cores is not None:
                self._cores.close()

    def _take(self) -> bool:
        """Wait for work and run commands, in order of their calls: a release does not end requests that came after it.
        Return False when the engine is closed."""
        scheduler = self._scheduler
        with self._wake:
            while not (self._closed or self._commands or self._swaps or scheduler.running or scheduler.waiting):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            closed = self._closed
        for command in commands:
            command()
        return not closed

    def _enqueue(self) -> None:
        self._scheduler.waiting.extend([self._inbox.popleft()])

    def _iterate(self) -> None:
        for request in [r for r in self._scheduler.running if r.cancelled]:
            self._finish(request, "cancelled")
        while self._swaps and not (self._swaps[0].kv == "drain" and self._scheduler.running):
            self._swap(self._swaps[0])  # if it raises, it is still queued and `_refuse_all` answers it
            self._swaps.popleft()
        try:
            if not self._swaps:
                self._scheduler.admit(self._version)
        except Exception as error:
            self._fail_running(error, self._scheduler.waiting.pop())
            return
        if not self._scheduler.running:
            return
        try:
            self._speculation.prepare(self._scheduler.running, self._cache, self._forward.drafter)
            step = self._scheduler.plan(self._version)
            sampled = self._forward.run(step)
        except Exception as error:
            self._fail_running(error)
            return
        self._counts["iterations"] += 1
        self._counts["prefilled_tokens"] += sum(chunk.count for chunk in step.chunks)
        for one in sampled:
            self._speculation.update(one.request, len(one.tokens) - 1)
            for token, logprob, report in zip(one.tokens, one.logprobs, one.reports):
                if not self._accept(one.request, token, logprob, report):
                    break

    def _accept(self, request: Request, token: int, logprob: float, report: TokenReport | None) -> bool:
        """Add a sampled token to its request. Return False if that ends the request."""
        if math.isnan(logprob):
            why = f"the policy (version {self._version}) yields logits that are not finite"
            if request.matcher is not None and not request.matcher.allowed().any():
                why = f"the grammar allows no further token: {request.matcher.problem}"
            self._fail(request, EngineError(why))
            return False
        self._cache.tokens[request.row, request.total] = token
        try:
            reason = request.accept(token, logprob, self._version, report)
        except GrammarError as error:
            self._fail(request, EngineError(str(error)))
            return False
        except Exception as error:
            failure = EngineError(f"on_token raised {error!r}")
            failure.__cause__ = error
            self._fail(request, failure)
            return False
        self._counts["generated_tokens"] += 1
        if reason is not None:
            self._finish(request, reason)
        return reason is None

    def _finish(self, request: Request, reason: StopReason) -> None:
        routes = None
        if self._cache.routes is not None and request.row >= 0:
            routes = self._cache.routes[request.row, : request.total].copy()
            routes[int(self._cache.lengths[request.row]) :] = -1  # sampled, but not computed by a later step yet
        if request.row >= 0:
            self._scheduler.retire(request)
            self._counts["reused_tokens"] += request.cached
        self._outbox.put(request.loop, request.future, request.completion(reason, routes))

    def _fail(self, request: Request, error: BaseException) -> None:
        if request.row >= 0:
            self._scheduler.forget(request)
        self._outbox.put(request.loop, request.future, error)

    def _fail_running(self, cause: Exception, *more: Request) -> None:
        """Fail all running requests after an iteration failed, and discard the cache, which may be inconsistent."""
        for request in (*self._scheduler.running, *more):
            error = EngineError(f"the engine's iteration failed: {cause!r}")
            error.__cause__ = cause
            self._outbox.put(request.loop, request.future, error)
        self._scheduler.running.clear()
        self._reset_cache()

    def _release(self, session: str) -> None:
        for request in [r for r in self._scheduler.running if r.session == session]:
            self._finish(request, "cancelled")
        for request in [r for r in self._scheduler.waiting if r.session == session]:
            self._scheduler.waiting.remove(request)
            self._finish(request, "cancelled")
        row = self._cache.sessions.get(session)
        if row is not None:
            self._cache.leave(row)

    def _swap(self, swap: Swap) -> None:
        began = time.perf_counter()
        try:
            load_hf_state(self.decoder, swap.state, name=f"version {swap.version}")
            self._backend.refresh()
        except ConfigError as error:  # raised before the first tensor is written
            self._outbox.put(swap.loop, swap.future, error)
            return
        except Exception as error:  # the weights may be partly old and partly new
            raise EngineError(f"loading version {swap.version} failed: {error!r}") from error
        self._version = swap.version
        if swap.kv != "keep":
            self._scheduler.invalidate()
        seconds = time.perf_counter() - began
        self._counts["swaps"] += 1
        self._swap_seconds += seconds
        self._outbox.put(swap.loop, swap.future, seconds)

    def _refuse_all(self, failure: BaseException) -> None:
        """Close the engine; every unfinished request and weight swap gets ``failure``."""
        with self._wake:
            self._closed = True
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        for request in (*self._scheduler.running, *self._scheduler.waiting, *self._inbox):
            self._outbox.put(request.loop, request.future, failure)
        for swap in self._swaps:
            self._outbox.put(swap.loop, swap.future, failure)
        self._outbox.flush()
