"""The real server: policy on disk, engine, uvicorn, weight chain, the openai client."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from woodshed.cluster.service import ADMIN_VARIABLE
from woodshed.engine.protocol import EngineClosed
from woodshed.engine.remote.service import serve as engine_server
from woodshed.engine.settings import EngineServerSettings
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.serve import parse_arguments
from woodshed.gateway.serve import serve as gateway
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, hf_state, save_policy
from woodshed.record.store import TrajectoryStore
from woodshed.weights.chain import Publisher

from .parts import ADMIN, COMPACT, TOOLS
from .real import logprob_gap, server


def tiny(seed: int) -> Decoder:
    config = DecoderConfig(
        vocab_size=COMPACT.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=64,
        max_positions=512,
    )
    return Decoder(config, seed=seed)


async def converse(url: str, key: str, messages: list[Any], turns: int, *, stream: bool) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as client:
        for turn in range(turns):
            fields: dict[str, Any] = {"model": "woodshed", "messages": messages, "tools": TOOLS, "temperature": 1.0}
            if stream:
                message = await streamed(await client.chat.completions.create(**fields, stream=True))
            else:
                completion = await client.chat.completions.create(**fields)
                message = completion.choices[0].message.model_dump()
            messages = [*messages, message]
            if message.get("tool_calls"):
                call = message["tool_calls"][0]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"<end>result {turn}"})
            else:
                messages.append({"role": "user", "content": "go on"})
    return messages


async def streamed(chunks: Any) -> dict[str, Any]:
    """The message that the chunks add up to, as agent programs put it together."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    async for chunk in chunks:
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for part in delta.tool_calls or []:
            calls = message.setdefault("tool_calls", [])
            if part.index == len(calls):
                calls.append(part.model_dump(exclude={"index"}))
            else:
                calls[part.index]["function"]["arguments"] += part.function.arguments
    return message


@pytest.mark.slow
def test_the_recorded_tokens_are_those_of_the_network(tmp_path: Path) -> None:
    """Real engine, real client: recorded log-probabilities equal a full forward, also across weights and a restart."""
    decoders = [tiny(0), tiny(1)]
    save_policy(Policy(decoders[0], COMPACT, get_format("compact"), decoders[0].config), tmp_path / "policy")
    chain = Publisher(tmp_path / "weights", fsync=False)
    chain.publish(0, hf_state(decoders[0]))
    user = {"role": "user", "content": "fix: <call>it<end>"}
    flags = ("--weights", str(tmp_path / "weights"), "--journal", str(tmp_path / "journal"))

    async def first(url: str, process: subprocess.Popen[bytes]) -> tuple[str, list[Any]]:
        async with GatewayAdmin(url, ADMIN) as admin:
            keys = [await admin.open(f"t{i}") for i in range(4)]
            await asyncio.gather(*[converse(url, k, [user], 3, stream=i % 2 == 1) for i, k in enumerate(keys)])
            for i in range(4):
                finished = await admin.finish(f"t{i}")
                (segment,) = finished.segments
                assert finished.requests == 3 and finished.prefix_breaks == 0
                assert logprob_gap(decoders[0], segment) < 1e-4
            chain.publish(1, hf_state(decoders[1]))
            assert await admin.follow(1) == 1
            assert (await admin.health())["version"] == 1
            key = await admin.open("kept")
            return key, await converse(url, key, [user], 2, stream=False)

    async def second(url: str, key: str, messages: list[Any]) -> None:
        async with GatewayAdmin(url, ADMIN) as admin:
            assert (await admin.health())["version"] == 1, "a server that comes back answers with the newest weights"
            await converse(url, key, messages, 1, stream=True)
            finished = await admin.finish("kept")
            (segment,) = finished.segments
            assert finished.prefix_breaks == 0 and await admin.wait_until_up(0.0)
            assert set(segment.versions[segment.sampled].tolist()) == {1}
            assert logprob_gap(decoders[1], segment) < 1e-4
            with pytest.raises(openai.AuthenticationError):
                await converse(url, key, messages, 1, stream=False)
            other = await admin.open("long")
            with pytest.raises(openai.BadRequestError) as full:
                await converse(url, other, [{"role": "user", "content": "word " * 2000}], 1, stream=False)
            assert full.value.code == "context_length_exceeded"

    with server(tmp_path, *flags) as (url, process):
        key, messages = asyncio.run(first(url, process))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not asyncio.run(GatewayAdmin(url, ADMIN).wait_until_up(0.2))
    with server(tmp_path, *flags) as (url, process):
        asyncio.run(second(url, key, messages))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_sessions_survive_a_server_that_is_killed_while_they_end(tmp_path: Path) -> None:
    """Whatever moment the kill hits, each session is stored once, those of which the client had no answer too."""
    decoder = tiny(0)
    save_policy(Policy(decoder, COMPACT, get_format("compact"), decoder.config), tmp_path / "policy")
    flags = ("--journal", str(tmp_path / "journal"), "--sessions", str(tmp_path / "sessions"))
    ids = [f"s{number}" for number in range(12)]
    user = {"role": "user", "content": "fix: <call>it<end>"}

    async def work(url: str) -> None:
        async with GatewayAdmin(url, ADMIN) as admin:
            keys = [await admin.open(id, source="live") for id in ids]
            await asyncio.gather(*[converse(url, key, [user], 1, stream=False) for key in keys])

    async def finish(url: str, process: subprocess.Popen[bytes] | None, delay: float = 0.0) -> list[str]:
        answered = []

        async def one(id: str) -> None:
            await admin.finish(id)
            answered.append(id)

        async with GatewayAdmin(url, ADMIN) as admin:
            ending = asyncio.gather(*[one(id) for id in ids], return_exceptions=True)
            if process is not None:
                await asyncio.sleep(delay)
                process.kill()
                await asyncio.wait({ending}, timeout=1.0)
                ending.cancel()  # the others would wait for the server to come back
            with contextlib.suppress(asyncio.CancelledError):
                await ending
        return answered

    with server(tmp_path, *flags) as (url, process):
        asyncio.run(work(url))
        answered = asyncio.run(finish(url, process, delay=0.02))
    with server(tmp_path, *flags) as (url, _):
        store = TrajectoryStore(tmp_path / "sessions")
        known = [each.id for each in store]
        store.close()
        assert set(answered) <= set(known) and len(known) == len(set(known)), (answered, known)
        assert sorted(asyncio.run(finish(url, None))) == sorted(ids), "a finish may be repeated"
    store = TrajectoryStore(tmp_path / "sessions")
    assert sorted(each.id for each in store) == sorted(ids)
    assert all(each.source == "live" and each.effort.turns == 1 for each in store)
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("program", ["gateway", "engine"])
def test_a_program_ends_when_its_engine_stops(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that fail half way stop the engine. The program must end then, because only a restart helps."""

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no room for the new weights")

    policy = tiny(0)
    save_policy(Policy(policy, COMPACT, get_format("compact"), policy.config), tmp_path / "policy")
    Publisher(tmp_path / "weights", fsync=False).publish(1, hf_state(tiny(1)))
    monkeypatch.setattr("woodshed.engine.local.load_hf_state", fails)
    monkeypatch.setenv(ADMIN_VARIABLE, ADMIN)
    fields: dict[str, Any] = {
        "policy": tmp_path / "policy",
        "weights": str(tmp_path / "weights"),
        "shutdown_seconds": 1,
    }
    if program == "gateway":
        serving = gateway(GatewaySettings(**fields))
    else:
        serving = engine_server(EngineServerSettings(**fields))
    with pytest.raises(EngineClosed, match="no room for the new weights"):
        asyncio.run(asyncio.wait_for(serving, 300))


def test_arguments_become_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"model": "m", "port": 4, "engine": {"context": 99}}))
    arguments = ["--settings", str(tmp_path / "s.json"), "--port", "5", "--threads", "2", "--journal-fsync"]
    settings = parse_arguments(arguments)
    assert (settings.model, settings.port, settings.journal_fsync) == ("m", 5, True)
    assert (settings.engine.context, settings.engine.threads) == (99, 2)
    assert parse_arguments([]) == GatewaySettings()
    with pytest.raises(SystemExit):
        parse_arguments(["--port", "70000"])
    assert "port" in capsys.readouterr().err


def test_settings_import_no_torch() -> None:
    code = "import sys, woodshed.gateway.settings, woodshed.gateway.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_problems_at_the_start_are_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "woodshed.gateway.serve", "--admin-key-file", str(tmp_path / "none")]
    result = subprocess.run([*command, "--policy", str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 2 and "cannot read the admin key" in result.stderr
    assert "Traceback" not in result.stderr
