"""Settings of the built-in engine. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from woodshed.policy.settings import FormatName
from woodshed.record.settings import Device, Place, Settings

KvPolicy = Literal["keep", "recompute", "drain"]
"""How a weight swap treats keys and values of the old weights; see ``LocalEngine.update_weights``."""


class Truncation(Settings):
    """Restriction of the tokens that may be sampled: top-k, then top-p, then min-p (``engine/sampler.py``)."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Keep this many of the most likely tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Keep tokens whose probability is at least this times the largest one; 0 keeps all."""

    def changed(self) -> dict[str, float]:
        """Return the fields that truncate, for a request or the limits of a key."""
        return self.model_dump(exclude_defaults=True)


class EngineSettings(Settings):
    """How the engine batches, caches and swaps weights."""

    context: int | None = Field(default=None, ge=2)
    """Maximum number of tokens of prompt and completion together; by default the policy's own limit."""

    max_running: int = Field(default=128, ge=1)
    """Maximum number of requests in the batch. Further requests wait: fairly between trajectories, and in order of
    arrival within one."""

    replicas: int = Field(default=1, ge=1)
    """Number of engines of a run. A single one is part of the policy server; several are separate processes between
    which the policy server routes, and the other settings of this table apply to each of them."""

    max_waiting: int = Field(default=4096, ge=1)
    """Maximum number of waiting requests; further ones are refused with EngineBusy (back-pressure)."""

    max_sessions: int = Field(default=256, ge=1)
    """Maximum number of key/value rows, running requests included; the least recently used idle row is evicted."""

    cache_bytes: int = Field(default=4 << 30, ge=1 << 16)
    """Maximum size of the key/value cache in bytes. It is allocated in steps, as sessions arrive."""

    length_step: int = Field(default=128, ge=1)
    """The length of the cache's rows grows in multiples of this many tokens."""

    prefill_tokens: int = Field(default=512, ge=1)
    """Maximum number of prompt tokens per iteration, in addition to one token for every decoding request."""

    prefix_cache: Literal["keep", "salt", "off"] = "keep"
    """Keys and values that a session's next request may reuse: ``keep`` all cached ones, ``salt`` only those
    computed by the current weights, ``off`` none."""

    swap: KvPolicy = "keep"
    """How new weights affect running requests: ``keep`` continues with the keys and values of the old weights,
    ``recompute`` recomputes them, ``drain`` lets the requests finish first, so that no reply mixes versions."""

    share_prefix: int = Field(default=16, ge=0)
    """Shortest common prefix in tokens that is copied from another session; 0 turns sharing off. What a session
    computed is shared after its end too, until its row is needed. Only keys and values of the current weights are
    shared, so stale ones do not spread between trajectories."""

    speculate: Literal["auto", "mtp", "ngram", "off"] = "auto"
    """Drafter of speculative decoding: the policy's multi-token-prediction head (``mtp``), or earlier text of the
    sequence (``ngram``: what followed the same tokens before). ``auto`` is ``mtp`` if the policy has a head. Drafts
    change only the speed, never the tokens."""

    draft_tokens: int = Field(default=4, ge=1, le=32)
    """Maximum number of tokens in a draft; the actual number adapts to how many were accepted, per request."""

    speculate_running: int = Field(default=4, ge=1)
    """Maximum number of running requests with which speculation is used: larger batches fill the processor anyway."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights and cache; ``auto`` keeps that of the policy. On a CPU bfloat16 is faster if the
    processor has ``amx_bf16`` or ``avx512_bf16`` (in /proc/cpuinfo); others were not measured."""

    native: Literal["auto", "off"] = "auto"
    """On a CPU, ``auto`` computes dense policies in float32 or bfloat16 with the engine's own kernels. The first start
    compiles them, which takes seconds; without a C++ compiler, and with ``off``, torch computes. The kernels keep a
    second copy of the matrices, in their own layout."""

    pack: Literal["auto", "off"] = "auto"
    """On a CPU without the engine's own kernels, ``auto`` keeps a second copy of matrices in oneDNN's layout: of those
    in bfloat16, and of float32 ones too large for a cache (64 MiB together). New weights are copied once more. ``off``
    saves the memory."""

    graphs: bool = False
    """On a GPU, record decoding steps as CUDA graphs, once for every size of batch and context. For dense policies
    without an MTP drafter. Off by default because its speed has not been measured yet."""

    threads: int | None = Field(default=None, ge=1)
    """Number of torch's threads on a CPU; None keeps torch's setting (a run chooses by the size of its policy and what
    else is running). One is best for small policies."""

    seed: int | None = None
    """Seed of requests without one; None takes a seed from the operating system."""


class RoutingSettings(Settings):
    """How a gateway routes to engines that are separate processes."""

    silence_seconds: float = Field(default=20.0, gt=0)
    """Timeout for an engine that sends nothing in the middle of a request (it normally reports every second); the
    request then moves to another engine."""

    patience_seconds: float = Field(default=120.0, ge=0)
    """How long a request waits while no engine serves, before it is refused with 503."""

    poll_seconds: float = Field(default=1.0, gt=0)
    """Interval between status requests to each engine; an unreachable one is asked five times as often."""

    spread: int = Field(default=8, ge=0)
    """A trajectory leaves the engine that holds its prefix if that engine has this many requests more than another."""

    moves: int = Field(default=16, ge=0)
    """Maximum number of times that one request moves to another engine; a request that ends more engines is refused."""


class ServerSettings(Settings):
    """Settings common to all programs that serve a policy: weights, an address, an admin key."""

    policy: Path | None = None
    """Directory of the policy in Hugging Face layout; required to serve."""

    format: FormatName | None = None
    """Chat format, a built-in name or ``"module:Class"``; None takes the one that the policy's directory names or its
    vocabulary was made for."""

    weights: Place | None = None
    """Folder or ``s3://bucket/prefix`` of the weight chain to follow; None serves the policy unchanged."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    admin_key_file: Path | None = None
    """File with the admin key; without it the variable WOODSHED_ADMIN_KEY is read."""

    ready_file: Path | None = None
    """File to write once the server answers, as JSON ``{"url", "pid"}``."""

    max_body: int = Field(default=16 << 20, ge=1024)
    """Maximum size of a request body in bytes."""

    weights_poll_seconds: float = Field(default=1.0, gt=0)
    """Interval between checks of the weight chain for new versions."""

    weights_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long ``POST /admin/weights`` waits for a version to appear."""

    shutdown_seconds: float = Field(default=5.0, ge=0)
    """Time that running requests have to finish after SIGTERM."""

    device: Device = "auto"
    """Device of the engine; ``auto`` is a GPU if torch finds one."""

    engine: EngineSettings = EngineSettings()
    """Settings of the engine behind the server."""

    lender: Path | None = None
    """File that a trainer on the same machine locks while it computes. While it does not, an engine on a CPU uses
    ``lent_threads`` instead of ``engine.threads``."""

    lent_threads: int = Field(default=1, ge=1)
    """Number of threads while the trainer lends its cores."""


class EngineServerSettings(ServerSettings):
    """Settings of one engine as a separate program."""

    gpu: int = Field(default=0, ge=0)
    """Index of the GPU, modulo the number of GPUs: engine 5 of a machine with four has the second."""
