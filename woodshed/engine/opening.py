"""A policy on disk becomes an engine in this process that follows its weight chain."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import torch

from woodshed.policy.device import resolve
from woodshed.policy.hf import Policy, load_policy

from .follow import ChainWatch
from .grammar import Grammars
from .local import LocalEngine
from .settings import ServerSettings


@dataclass(frozen=True)
class Opened:
    """``chain`` is None where the server follows no weight chain."""

    policy: Policy
    engine: LocalEngine
    chain: ChainWatch | None


async def open_engine(settings: ServerSettings, stack: contextlib.AsyncExitStack, *, gpu: int = 0) -> Opened:
    """Load, catch up with the chain, follow it from then on; ``stack`` ends all of it. Raises ValueError,
    FileNotFoundError."""
    if settings.policy is None:
        raise ValueError("policy is not set; name the policy's directory")
    device = resolve(settings.device)
    if device.type == "cuda":
        device = torch.device("cuda", gpu % torch.cuda.device_count())
    policy = load_policy(settings.policy, device=device, format=settings.format)
    grammars = Grammars.of(policy.tokenizer)
    grammars.prepare()
    engine = LocalEngine(
        policy.decoder,
        settings=settings.engine,
        device=device,
        version=policy.version,
        mtp=policy.mtp,
        grammars=grammars,
    )
    stack.push_async_callback(engine.close)
    if settings.weights is None:
        return Opened(policy, engine, None)
    chain = ChainWatch(
        engine, settings.weights,
        poll_seconds=settings.weights_poll_seconds, timeout_seconds=settings.weights_timeout_seconds,
    )  # fmt: skip
    await chain.catch_up()  # a server that was restarted must not sample from the weights it began with
    watcher = asyncio.create_task(chain.run())
    stack.callback(watcher.cancel)
    return Opened(policy, engine, chain)
