"""Options of ``woodshed serve`` and ``woodshed engine``: what reaches the settings, and what a mistake is told."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import woodshed.engine.remote.service
import woodshed.gateway.serve
from woodshed.cli.main import app
from woodshed.cluster.service import Announce, listen
from woodshed.engine.settings import EngineServerSettings
from woodshed.gateway.settings import GatewaySettings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that a server would have been started with. It takes port 4321."""
    seen: list[Any] = []

    def main(settings: Any, announce: Announce) -> None:
        seen.append(settings)
        announce("http://127.0.0.1:4321")

    monkeypatch.setenv("WOODSHED_ADMIN_KEY", "a-key-that-is-long-enough")
    monkeypatch.setattr(woodshed.gateway.serve, "main", main)
    monkeypatch.setattr(woodshed.engine.remote.service, "main", main)
    return seen


def test_options_reach_the_server(served: list[Any]) -> None:
    more = ["--set", "engine.context=4096", "--set", "engine.dtype=bfloat16", "--set", "max_tokens=77"]
    given = ["--format", "hermes", "--weights", "chain", "--logprobs", "raw", "--sessions", "kept"]
    done = CliRunner().invoke(app, ["serve", "policy", *given, *more])
    assert done.exit_code == 0, done.output
    (settings,) = served
    assert isinstance(settings, GatewaySettings) and settings.logprobs == "raw"
    assert settings.sessions == Path("kept")
    assert (settings.policy, settings.format, settings.weights, settings.max_tokens) == (
        Path("policy"),
        "hermes",
        "chain",
        77,
    )
    assert (settings.engine.context, settings.engine.dtype, settings.port) == (4096, "bfloat16", 8000)


def test_options_reach_an_engine(served: list[Any]) -> None:
    done = CliRunner().invoke(app, ["engine", "policy", "--threads", "3", "--set", "engine.max_running=5"])
    assert done.exit_code == 0, done.output
    (settings,) = served
    assert isinstance(settings, EngineServerSettings)
    assert (settings.engine.threads, settings.engine.max_running, settings.weights) == (3, 5, None)


def test_a_free_port_is_told(served: list[Any]) -> None:
    async def answered() -> int:
        async def empty(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            serving = asyncio.create_task(
                listen(empty, host="127.0.0.1", port=0, shutdown_seconds=1, stack=stack, announce=url.set_result)
            )
            async with httpx.AsyncClient(trust_env=False) as client:
                status = (await client.get(await url)).status_code
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return status

    assert asyncio.run(answered()) == 204
    for command, said in (("serve", "http://127.0.0.1:4321/v1; admin key"), ("engine", "http://127.0.0.1:4321; admin")):
        assert said in CliRunner().invoke(app, [command, "policy", "--port", "0"]).output


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--set", "engine.thread=2"], "--set engine.thread=2: no such field; did you mean threads?"),
        (["--set", "engine.threads=0"], "--set engine.threads=0: Input should be greater than or equal to 1"),
        (["--set", "engine"], "write field=value"),
        (["--set", "port.x=1"], "port is a value, not a table"),
        (["--set", "engine=5"], "--set engine=5"),
        (["--set", "zzz=5"], "no such field; there are"),
        (["--port", "70000"], "--port: Input should be less than or equal to 65535"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "engine"])
def test_mistakes_are_named(served: list[Any], command: str, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [command, "policy", *arguments])
    assert done.exit_code == 2 and said in " ".join(done.output.split())
    assert not served


def test_an_unknown_kind_of_log_probability_is_named(served: list[Any]) -> None:
    done = CliRunner().invoke(app, ["serve", "policy", "--logprobs", "cooked"])
    assert done.exit_code == 2 and "--logprobs: Input should be 'sampled' or 'raw'" in " ".join(done.output.split())
    assert not served


def test_an_unknown_format_is_refused_by_the_server(tmp_path: Path) -> None:
    from woodshed.policy.config import DecoderConfig
    from woodshed.policy.decoder import Decoder
    from woodshed.policy.formats import get_format
    from woodshed.policy.hf import Policy, load_chat, save_policy

    from .parts import HERMES

    config = DecoderConfig(
        vocab_size=HERMES.vocab_size,
        d_model=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        d_ff=8,
        max_positions=64,
    )
    save_policy(Policy(Decoder(config, seed=0), HERMES, get_format("hermes"), config), tmp_path)
    done = CliRunner().invoke(app, ["serve", str(tmp_path), "--format", "tango"])
    assert done.exit_code == 2 and "unknown chat format 'tango'" in " ".join(done.output.split())
    assert load_chat(tmp_path, format="hermes")[2].name == "hermes"
