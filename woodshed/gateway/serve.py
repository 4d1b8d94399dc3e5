"""The gateway as a program: ``python -m woodshed.gateway.serve --policy DIR --admin-key-file F``."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from woodshed.cluster.service import Announce, read_admin_key
from woodshed.engine.protocol import Engine, EngineError
from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.tokenizer import Tokenizer
from woodshed.weights.errors import ChainError

from .admin import Follow
from .background import keep_waits_short
from .journal import Journal, JournalError
from .settings import GatewaySettings

if TYPE_CHECKING:
    from woodshed.engine.routing.replica import Peer

VLLM = "vllm+"
"""Prefix of the addresses of vLLM servers."""


def main(settings: GatewaySettings, announce: Announce | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ValueError, FileNotFoundError or OSError before the first request,
    EngineClosed if the engine in this process stops."""
    import uvloop

    uvloop.run(serve(settings, announce))


async def serve(settings: GatewaySettings, announce: Announce | None = None) -> None:
    """Load the policy, follow its weight chain and serve, in the running event loop."""
    if settings.policy is None:
        raise ValueError("gateway.policy is not set; name the policy's directory with --policy")
    admin_key = read_admin_key(settings.admin_key_file)

    from woodshed.cluster.service import listen

    from .app import build_app
    from .kept_sessions import KeptSessions

    async with contextlib.AsyncExitStack() as stack:
        engine, follow, chat, tokenizer, stopped = await _engine(settings, admin_key, stack)
        journal = None
        if settings.journal is not None:
            journal = Journal(settings.journal, fsync=settings.journal_fsync)
            stack.callback(journal.close)
        sessions = None
        if settings.sessions is not None:
            sessions = KeptSessions(settings.sessions, settings.model)
            stack.callback(sessions.close)
        app = build_app(
            engine,
            chat,
            tokenizer,
            admin_key=admin_key,
            settings=settings,
            follow=follow,
            journal=journal,
            sessions=sessions,
        )
        keep_waits_short()
        await listen(
            app,
            host=settings.host,
            port=settings.port,
            shutdown_seconds=settings.shutdown_seconds,
            ready_file=settings.ready_file,
            stack=stack,
            stopped=stopped,
            announce=announce,
        )


async def _engine(
    settings: GatewaySettings, admin_key: str, stack: contextlib.AsyncExitStack
) -> tuple[Engine, Follow | None, ChatFormat, Tokenizer, Callable[[], Awaitable[None]] | None]:
    """Open an engine in this process, or a router over ``settings.engines`` if there are any. The last value waits for
    the end of the engine in this process."""
    if not settings.engines:
        from woodshed.engine.opening import open_engine

        opened = await open_engine(settings, stack)
        follow = None if opened.chain is None else opened.chain.follow
        return opened.engine, follow, opened.policy.format, opened.policy.tokenizer, opened.engine.stopped

    from woodshed.engine.grammar import Grammars
    from woodshed.engine.routing.router import Router
    from woodshed.policy.hf import load_chat

    assert settings.policy is not None
    config, tokenizer, chat, version = load_chat(settings.policy, format=settings.format)
    key = admin_key if settings.engine_key_file is None else read_admin_key(settings.engine_key_file)
    engines = [_peer(url, key, settings, version, config.vocab_size) for url in settings.engines]
    router = Router(engines, settings.routing, vocabulary=config.vocab_size)
    stack.push_async_callback(router.close)
    await router.ready()
    if router.grammars_refused() is None:
        Grammars.of(tokenizer).prepare()
    return router, router.follow, chat, tokenizer, None


def _peer(url: str, key: str, settings: GatewaySettings, version: int, vocabulary: int) -> Peer:
    """Create the client of an engine: vLLM for ``vllm+http://...``, else ``woodshed engine``."""
    silence = settings.routing.silence_seconds
    if url.startswith(VLLM):
        if settings.logprobs == "raw":
            raise ValueError(
                f"logprobs is 'raw', but vLLM ({url}) reports those of the sampling distribution; use sampled"
            )
        from woodshed.engine.vllm.client import VllmEngine

        return VllmEngine(
            url.removeprefix(VLLM),
            key,
            vocabulary=vocabulary,
            settings=settings.engine,
            initial=version,
            chain=settings.weights,
            silence_seconds=silence,
            poll_seconds=settings.weights_poll_seconds,
        )

    from woodshed.engine.remote.client import RemoteEngine

    return RemoteEngine(url, key, silence_seconds=silence)


def parse_arguments(arguments: list[str]) -> GatewaySettings:
    """Parse a command line into settings. Exits with a usage message if it is invalid."""
    parser = argparse.ArgumentParser(prog="woodshed.gateway.serve", description=__doc__)
    fields = GatewaySettings.model_fields
    for name, kind in _FLAGS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=None, help=fields[name].description)
    parser.add_argument("--engines", type=addresses, metavar="URL,URL", help=fields["engines"].description)
    parser.add_argument("--journal-fsync", action="store_true", default=None, help=fields["journal_fsync"].description)
    parser.add_argument("--threads", type=int, default=None, help="number of torch's threads")
    parser.add_argument("--settings", type=Path, default=None, help="JSON file of GatewaySettings; flags override it")
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    source = given.pop("settings", None)
    try:
        data = json.loads(source.read_text()) if source is not None else {}
        if "threads" in given:
            data["engine"] = {**data.get("engine", {}), "threads": given.pop("threads")}
        return GatewaySettings.model_validate({**data, **given})
    except (ValueError, OSError) as error:
        parser.error(str(error))


def addresses(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of engine addresses."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))


_FLAGS = {
    "policy": Path,
    "format": str,
    "weights": str,
    "model": str,
    "host": str,
    "port": int,
    "admin_key_file": Path,
    "ready_file": Path,
    "max_tokens": int,
    "journal": Path,
    "sessions": Path,
    "device": str,
    "engine_key_file": Path,
    "logprobs": str,
}


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    chosen = parse_arguments(sys.argv[1:])
    try:
        main(chosen)
    except (ValueError, FileNotFoundError, ChainError) as problem:  # a restart would fail again
        print(f"woodshed gateway: {problem}", file=sys.stderr)
        sys.exit(2)
    except (OSError, JournalError, EngineError) as problem:
        sys.exit(f"woodshed gateway: {problem}")
