"""Settings of the built-in engine. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from woodshed.policy.settings import FormatName
from woodshed.record.settings import Device, Place, Settings

KvPolicy = Literal["keep", "recompute", "drain"]
"""What becomes of keys and values of the old weights in a swap: see ``LocalEngine.update_weights``."""


class EngineSettings(Settings):
    """How the engine batches, caches and swaps weights."""

    context: int | None = Field(default=None, ge=2)
    """Longest sequence (prompt and completion) in tokens; by default the policy's own limit."""

    max_running: int = Field(default=128, ge=1)
    """Requests in the batch at once; more wait: fairly between trajectories, and in order of arrival within one."""

    replicas: int = Field(default=1, ge=1)
    """Engines of a run. One is a part of the policy server; more are programs of their own, between which the policy
    server routes, and each has the other settings of this table to itself."""

    max_waiting: int = Field(default=4096, ge=1)
    """Requests that may wait; beyond it a request is refused with EngineBusy (back-pressure)."""

    max_sessions: int = Field(default=256, ge=1)
    """Key/value rows kept at once, running requests included; the least recently used idle one is evicted."""

    cache_bytes: int = Field(default=4 << 30, ge=1 << 16)
    """Upper bound of the key/value cache in bytes. It is allocated in steps, as sessions come."""

    length_step: int = Field(default=128, ge=1)
    """The length of the cache's rows grows in multiples of this many tokens."""

    prefill_tokens: int = Field(default=512, ge=1)
    """Prompt tokens computed in one iteration at most, besides one token for every request that decodes."""

    prefix_cache: Literal["keep", "salt", "off"] = "keep"
    """What a session's next request may reuse: ``keep`` everything, ``salt`` only keys and values that the current
    weights computed, ``off`` nothing."""

    swap: KvPolicy = "keep"
    """What new weights do to requests that run: ``keep`` goes on with the keys and values of the old weights,
    ``recompute`` computes them anew, ``drain`` lets the requests finish first, so that no reply mixes versions."""

    share_prefix: int = Field(default=16, ge=0)
    """Shortest common prefix in tokens that is copied from another session; 0 turns sharing off. Only keys and values
    of the current weights are shared, so stale ones never spread from trajectory to trajectory."""

    speculate: Literal["auto", "mtp", "ngram", "off"] = "auto"
    """What guesses the next tokens: the policy's multi-token-prediction head (``mtp``), or the sequence itself
    (``ngram``: what followed the same tokens before). ``auto`` is ``mtp`` where the policy has a head. Guesses change
    how fast tokens come, never which."""

    draft_tokens: int = Field(default=4, ge=1, le=32)
    """Most tokens guessed at a time; how many is decided for each request by how its guesses did."""

    speculate_running: int = Field(default=4, ge=1)
    """Requests in the batch up to which anything is guessed: a large batch fills the processor without."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights and cache; ``auto`` keeps that of the policy. On a CPU bfloat16 is the faster one
    on processors with ``amx_bf16`` or ``avx512_bf16`` (in /proc/cpuinfo); others were not measured."""

    native: Literal["auto", "off"] = "auto"
    """On a CPU, ``auto`` computes dense policies in float32 or bfloat16 by the engine's own kernels. They are compiled
    at the first start, in seconds; without a C++ compiler, and with ``off``, torch's operators compute. The matrices
    are held a second time, in the layout that is multiplied."""

    pack: Literal["auto", "off"] = "auto"
    """On a CPU and without kernels of the engine's own, ``auto`` keeps a second copy of matrices in the layout that
    oneDNN multiplies: of those in bfloat16, and of float32 ones too large for a cache (64 MiB together). New weights
    are copied once more. ``off`` saves the memory."""

    graphs: bool = False
    """On a GPU, record the kernels of decoding steps as CUDA graphs, once for every size of batch and context. For
    dense policies whose own head does not guess. Not measured on a GPU so far, so it is off."""

    threads: int | None = Field(default=None, ge=1)
    """Threads of torch on a CPU; None leaves torch's setting alone (a run chooses for its size of policy and for what
    else is running). One is best for small policies."""

    seed: int | None = None
    """Seed of requests that bring none; None draws one from the operating system."""


class RoutingSettings(Settings):
    """How a gateway uses engines that are programs of their own."""

    silence_seconds: float = Field(default=20.0, gt=0)
    """An engine that says nothing for so long in the middle of a request (it reports every second that it is alive) is
    given up, and the request goes on elsewhere."""

    patience_seconds: float = Field(default=120.0, ge=0)
    """How long a request waits where no engine serves, before it is refused with 503."""

    poll_seconds: float = Field(default=1.0, gt=0)
    """How often each engine is asked how it is; one that is away is asked five times as often."""

    spread: int = Field(default=8, ge=0)
    """A trajectory leaves the engine that holds its prefix where that one has this many requests more than another."""

    moves: int = Field(default=16, ge=0)
    """How often one request may go on elsewhere; a request that ends so many engines is refused."""


class ServerSettings(Settings):
    """What every program that serves a policy has: weights, an address, an admin key."""

    policy: Path | None = None
    """Directory of the policy in Hugging Face layout; needed to serve."""

    format: FormatName | None = None
    """Chat format, a built-in name or ``"module:Class"``; None takes the one that the policy's directory names or its
    vocabulary was made for."""

    weights: Place | None = None
    """Folder or ``s3://bucket/prefix`` of the weight chain to follow; None serves the policy as it is."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    admin_key_file: Path | None = None
    """File that holds the admin key; without it the variable WOODSHED_ADMIN_KEY is read."""

    ready_file: Path | None = None
    """Written as JSON ``{"url", "pid"}`` once the server answers."""

    max_body: int = Field(default=16 << 20, ge=1024)
    """Largest request body in bytes."""

    weights_poll_seconds: float = Field(default=1.0, gt=0)
    """How often the weight chain is looked at without being asked."""

    weights_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long ``POST /admin/weights`` waits for a version to appear."""

    shutdown_seconds: float = Field(default=5.0, ge=0)
    """How long running requests may take to end after SIGTERM."""

    device: Device = "auto"
    """Device of the engine; ``auto`` is a GPU where torch finds one."""

    engine: EngineSettings = EngineSettings()
    """The engine behind the server."""


class EngineServerSettings(ServerSettings):
    """One engine as a program."""

    gpu: int = Field(default=0, ge=0)
    """Which GPU where there are several, counted round: engine 5 of a machine with four has the second."""
