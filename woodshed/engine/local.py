"""The built-in engine: continuous batching over a cache that outlives requests, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
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

from woodshed.engine.native.build import COMPILE_SECONDS, NoKernels, StillCompiling
from woodshed.engine.native.build import library as kernel_library
from woodshed.engine.native.kernels import Kernels
from woodshed.policy.config import ConfigError
from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead
from woodshed.policy.state import load_hf_state

from . import graphs
from .cache import RowCache
from .drafting import Speculation
from .forward import Forward
from .grammar import MISSING, GrammarError, Grammars, Matcher, library
from .native import kernels as native
from .packing import PackedLinear, packs
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
)
from .request import KvPolicy, Outbox, Request, Swap, seeded
from .sampler import TokenCounts
from .scheduler import FairQueue, Scheduler
from .settings import EngineSettings

log = logging.getLogger(__name__)


class LocalEngine:
    """Samples from a decoder in this process; implements ``woodshed.engine.protocol.Engine``.

    The engine owns ``decoder`` from here on: it moves it to ``device`` and changes its weights in place. ``version`` is
    the PolicyVersion of the weights it starts with; ``mtp`` guesses tokens for it and keeps the weights it has;
    without ``grammars`` requests that have a grammar are refused. Callers may live in any event loop of any thread.
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
    ) -> None:
        self.settings = settings or EngineSettings()
        self._grammars = grammars
        config = decoder.config
        if self.settings.context is not None and self.settings.context > config.max_positions:
            raise ValueError(f"engine.context is {self.settings.context}; the policy's limit is {config.max_positions}")
        self.context = self.settings.context or config.max_positions
        self.vocabulary = config.vocab_size
        self.device = torch.device(device)
        decoder.requires_grad_(False)
        decoder.to(self.device)
        if self.settings.dtype != "auto":
            decoder.to(getattr(torch, self.settings.dtype))
        self.decoder = decoder
        self.mtp = self._head(mtp)
        self._refresh: list[Callable[[], None]] = []
        self._kernels_later = False
        self._kernels, self._computed_by = self._own_kernels()
        if self.settings.pack == "auto" and packs(decoder) and (self._kernels is None or self._kernels.beside_tiles):
            packed = PackedLinear(decoder)
            decoder.compute_with(packed)
            self._refresh.append(packed.refresh)
        refused = graphs.why_not(decoder, drafts=self.mtp is not None) if self.settings.graphs else None
        if refused is not None:
            raise ValueError(f"engine.graphs is true, but {refused}")
        self._version = version
        self.weights_problem: dict[str, Any] | None = None
        """Why newer weights cannot be followed, and since when; set by ``ChainWatch``."""
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
        self._speculation = Speculation(self.settings)
        self._busy_seconds = self._swap_seconds = self._iteration_began = 0.0
        self._thread = threading.Thread(target=self._main, name="woodshed-engine", daemon=True)
        self._thread.start()
        if self._kernels_later:
            threading.Thread(target=self._await_kernels, name="await-kernels", daemon=True).start()

    @property
    def version(self) -> int:
        return self._version

    def check_open(self) -> None:
        """Raises EngineClosed, with the reason, where it was closed or has stopped."""
        if self._closed:
            raise EngineClosed(self._closed_why)

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
        EngineClosed when the engine is closed, and EngineError (with the cause chained) when the computation failed.
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
            known = _checked_start(sampling, prompt)
            counts = TokenCounts(sampling, prompt[:known].tolist(), prompt[known:].tolist())
        if sampling.grammar is not None:
            if self._grammars is None or self._grammars.knows(sampling.grammar):
                matcher = self._matcher(sampling, prompt)
            else:  # compiled elsewhere than in the engine's thread and the event loop
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
                raise EngineBusy(f"{self.settings.max_waiting} requests wait already (engine.max_waiting)")
            self._inbox.append(request)
            self._wake.notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            raise

    async def update_weights(self, version: int, state: Mapping[str, Tensor], *, kv: KvPolicy = "keep") -> float:
        """Swap the weights between two iterations; returns the seconds for which sampling stood still.

        ``state`` has Hugging Face names and the shapes of the policy; it is copied. ``kv`` says what becomes of keys
        and values: ``keep`` goes on with those of the old weights; ``recompute`` computes them anew, also for running
        requests; ``drain`` first lets running requests finish, so that no completion mixes versions, and then forgets
        them. Raises ValueError (naming the tensor) before anything changes if ``state`` does not fit. Where loading
        fails later, nothing may be sampled any more: the engine stops, and this and every request get EngineClosed.
        """
        loop = asyncio.get_running_loop()
        swap = Swap(version, state, kv, loop, loop.create_future())
        self._post(lambda: self._swaps.append(swap))
        return await swap.future

    def grammars_refused(self) -> str | None:
        """Why this engine takes no ``Sampling.grammar``; None where it does."""
        if self._grammars is None:
            return "it was opened without the policy's tokenizer"
        return None if library() else MISSING

    def release(self, session: str) -> None:
        """Forget a session; what it still runs ends with stop reason ``cancelled``."""
        with self._wake:
            if self._closed:
                return
        self._post(lambda: self._release(session))

    def stats(self) -> dict[str, Any]:
        """Counters since the start and what is in hand now. ``kernels`` says what computes (``native``: the engine's
        own kernels, else torch, and why), ``idle_share`` is the share of time without work,
        ``iteration_seconds`` how long the iteration in hand has taken so far (0 between iterations)."""
        now, began = time.perf_counter(), self._iteration_began
        uptime = now - self._started
        return {
            "version": self._version,
            "weights_stale": int(self.weights_problem is not None),
            "weights_problem": self.weights_problem,
            "kernels": self._computed_by,
            "native": int(self._kernels is not None),
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
        """Stop after the current iteration; requests that are not finished fail with EngineClosed."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _matcher(self, sampling: Sampling, prompt: NDArray[np.int32]) -> Matcher:
        """The matcher of a request, behind the tokens of its completion that were sampled before. Raises ValueError."""
        if self._grammars is None:
            raise GrammarError(f"sampling.grammar: the engine takes none, {self.grammars_refused()}")
        assert sampling.grammar is not None
        known = _checked_start(sampling, prompt)
        matcher = self._grammars.start(sampling.grammar, sampling.stop_ids)
        if sampling.drawn:
            matcher.advance(prompt[known:].tolist())
        return matcher

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self.check_open()
            self._commands.append(command)
            self._wake.notify()

    # ---- the engine's thread ----

    def _head(self, mtp: MtpHead | None) -> MtpHead | None:
        """The head that guesses, where the settings want one. Raises ValueError where they do and there is none."""
        if self.settings.speculate == "mtp" and mtp is None:
            raise ValueError(
                "engine.speculate is 'mtp' and the policy has no multi-token-prediction head (mtp.safetensors)"
            )
        if self.settings.speculate not in ("auto", "mtp") or mtp is None:
            return None
        return mtp.requires_grad_(False).to(device=self.device, dtype=self.decoder.dtype)

    def _own_kernels(self) -> tuple[Kernels | None, str]:
        """The engine's own kernels where they compute this policy; and what computes, for people."""
        reason = "engine.native is off"
        if self.settings.native == "auto":
            reason = native.why_not(self.decoder) or ""
        if reason:
            return None, f"torch ({reason})"
        try:
            kernels = Kernels(self.decoder)
        except NoKernels as why:
            log.warning("torch's operators compute, more slowly than the engine's own kernels: %s", why)
            self._kernels_later = isinstance(why, StillCompiling)
            return None, f"torch ({why})"
        self._refresh.append(kernels.refresh)
        return kernels, "native"

    def _await_kernels(self) -> None:
        """In a thread of its own: wait for the compilation, and change over between two iterations."""
        try:
            kernel_library(COMPILE_SECONDS)
            self._post(self._change_over)
        except NoKernels as why:
            self._computed_by = f"torch ({why})"
            log.warning("torch's operators go on computing: %s", why)
        except EngineClosed:
            pass

    def _change_over(self) -> None:
        """What matrices were packed for torch stay: steps that the kernels leave out need them."""
        self._kernels, self._computed_by = Kernels(self.decoder), "native"
        self._refresh.append(self._kernels.refresh)
        self._forward.compute_with(self._kernels)
        log.info("the engine's own kernels compute from here on")

    def _reset_cache(self) -> None:
        config = self.decoder.config
        self._cache = RowCache(
            layers=config.num_layers,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.decoder.dtype,
            device=self.device,
            budget=self.settings.cache_bytes,
            max_rows=max(self.settings.max_sessions, 1),
            step=min(self.settings.length_step, self.context),
            experts_per_token=config.num_experts_per_tok if config.num_experts else 0,
            extra_layers=0 if self.mtp is None else 1,
            width=0 if self.mtp is None else config.d_model,
        )
        self._scheduler = Scheduler(self._cache, self.settings, self._waiting)
        ngram = self.settings.speculate == "ngram"
        record = graphs.record_on_gpu if self.settings.graphs else None
        self._forward = Forward(
            self.decoder, self._cache, mtp=self.mtp, ngram=ngram, record=record, kernels=self._kernels
        )

    def _main(self) -> None:
        if self.device.type == "cpu" and self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread: graphs are recorded on the current one
        failure: BaseException = EngineClosed("the engine was closed before it answered")
        try:
            with torch.inference_mode():
                while self._take():
                    began = self._iteration_began = time.perf_counter()
                    self._iterate()
                    self._outbox.flush()
                    self._iteration_began = 0.0
                    self._busy_seconds += time.perf_counter() - began
        except BaseException as error:  # nobody may be left hanging
            failure = EngineClosed(f"the engine stopped: {error!r}")
            failure.__cause__ = error
            self._closed_why = str(failure)
            raise
        finally:
            self._refuse_all(failure)

    def _take(self) -> bool:
        """Wait for work and take it in; False when the engine is closed."""
        scheduler = self._scheduler
        with self._wake:
            while not (
                self._closed or self._inbox or self._commands or self._swaps or scheduler.running or scheduler.waiting
            ):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            scheduler.waiting.extend(self._inbox)
            self._inbox.clear()
            closed = self._closed
        for command in commands:
            command()
        return not closed

    def _iterate(self) -> None:
        for request in [r for r in self._scheduler.running if r.cancelled]:
            self._finish(request, "cancelled")
        while self._swaps and not (self._swaps[0].kv == "drain" and self._scheduler.running):
            self._swap(self._swaps[0])  # one that ends the engine is refused with everything else
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
        """False where the request is over."""
        if math.isnan(logprob):
            why = f"the policy (version {self._version}) yields logits that are not finite"
            if request.matcher is not None and not request.matcher.allowed().any():
                why = f"the grammar cannot be followed any further: {request.matcher.problem}"
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
        prompt_routes = routes = None
        if self._cache.routes is not None and request.row >= 0:
            of_row = self._cache.routes[request.row, : request.total].copy()
            of_row[int(self._cache.lengths[request.row]) :] = -1  # sampled, not yet fed
            if request.routes is not None:
                of_row[: len(request.routes)] = request.routes
            prompt_routes, routes = np.split(of_row[request.reused :], [len(request.prompt) - request.reused])
        if request.row >= 0:
            self._scheduler.retire(request)
            self._counts["reused_tokens"] += request.cached
        completion = Completion(
            request.tokens,
            request.logprobs,
            request.versions,
            reason,
            routes,
            prompt_routes,
            request.cached,
            request.reports if request.sampling.reported else None,
        )
        self._outbox.put(request.loop, request.future, completion)

    def _fail(self, request: Request, error: BaseException) -> None:
        if request.row >= 0:
            self._scheduler.forget(request)
        self._outbox.put(request.loop, request.future, error)

    def _fail_running(self, cause: Exception, *more: Request) -> None:
        """An iteration failed: nothing in the cache can be trusted, and everything that ran is answered."""
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
            self._cache.drop(row)

    def _swap(self, swap: Swap) -> None:
        began = time.perf_counter()
        try:
            load_hf_state(self.decoder, swap.state, name=f"version {swap.version}")
            for refresh in self._refresh:
                refresh()
        except ConfigError as error:  # checked before the first tensor is written
            self._outbox.put(swap.loop, swap.future, error)
            return
        except Exception as error:  # the weights may be some of the old version and some of the new
            raise EngineError(f"loading version {swap.version} failed: {error!r}") from error
        self._version = swap.version
        if swap.kv != "keep":
            self._scheduler.invalidate()
        seconds = time.perf_counter() - began
        self._counts["swaps"] += 1
        self._swap_seconds += seconds
        self._outbox.put(swap.loop, swap.future, seconds)

    def _refuse_all(self, failure: BaseException) -> None:
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


def _checked_start(sampling: Sampling, prompt: NDArray[np.int32]) -> int:
    """Where the completion begins in ``prompt``, whose last ``drawn`` tokens were sampled before. Raises ValueError."""
    if sampling.drawn > len(prompt):
        raise ValueError(f"sampling.drawn is {sampling.drawn}; the prompt has {len(prompt)} tokens")
    return len(prompt) - sampling.drawn
