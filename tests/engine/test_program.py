"""``woodshed engine`` as a person starts it: a process that follows a chain, drains, and is frozen."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.gateway.parts import COMPACT
from tests.gateway.test_serve import tiny
from woodshed.cluster.supervisor import free_ports
from woodshed.engine.protocol import EngineClosed, Sampling
from woodshed.engine.remote.client import RemoteEngine
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, hf_state, save_policy
from woodshed.weights.chain import Publisher

from .models import worst_gap
from .served import KEY, routed, serving


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "woodshed.cli", "engine", *map(str, arguments)]


@pytest.mark.slow
def test_an_engine_that_is_frozen_or_told_to_stop(tmp_path: Path) -> None:
    policy = tiny(0)
    save_policy(Policy(policy, COMPACT, get_format("compact"), policy.config), tmp_path / "policy")
    chain = Publisher(tmp_path / "weights", fsync=False)
    chain.publish(0, hf_state(tiny(0)))
    (port,) = free_ports(1)
    environment = {**os.environ, "WOODSHED_ADMIN_KEY": KEY, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(tmp_path / "policy", "--follow", tmp_path / "weights", "--port", port, "--threads", 1),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    ask = Sampling(max_tokens=400, seed=4)

    async def main() -> None:
        client = RemoteEngine(url, KEY, silence_seconds=2)
        while True:
            assert process.poll() is None, process.stdout and process.stdout.read()
            try:
                await client.refresh()
                break
            except EngineClosed:
                await asyncio.sleep(0.1)
        whole = await client.generate([7] * 9, ask)
        assert worst_gap(tiny(0), [7] * 9, whole.tokens, whole.logprobs) < 1e-4
        chain.publish(1, hf_state(tiny(0)))
        assert await client.follow(1) == 1
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(url + "/health")).json() == {"status": "ok", "version": 1}
            assert "woodshed_engine_generated_tokens 400.0" in (await http.get(url + "/metrics")).text
            for method, path in (("POST", "/generate"), ("POST", "/release"), ("POST", "/weights"), ("GET", "/stats")):
                refused = await http.request(method, url + path, content=b"{}")
                assert refused.status_code == 401 and "admin key" in refused.json()["error"]["message"]
        # frozen in the middle: the rest comes from another engine
        async with serving(tiny(0), version=1) as other:
            heard: list[tuple[int, float, int]] = []
            async with routed(other) as router:
                router.replicas[0].running += 1  # the first request goes to the program
                router.replicas.insert(0, type(router.replicas[0])(client, serving=True))
                call = router.generate([7] * 9, ask, session="t.0.0", on_token=lambda *token: heard.append(token))
                task = asyncio.create_task(call)
                while len(heard) < 20:
                    await asyncio.sleep(0.001)
                process.send_signal(signal.SIGSTOP)
                try:
                    done = await task
                finally:
                    process.send_signal(signal.SIGCONT)
                assert done.tokens == whole.tokens and heard == list(zip(done.tokens, done.logprobs, done.versions))
                assert other.engine.stats()["generated_tokens"] < 400
        # told to stop: what runs is finished
        client = RemoteEngine(url, KEY)
        heard.clear()
        task = asyncio.create_task(client.generate([7] * 9, ask, on_token=lambda *token: heard.append(token)))
        while not heard:
            await asyncio.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert (await task).tokens == whole.tokens
        assert await asyncio.to_thread(process.wait, 30) in (0, -signal.SIGTERM)
        with pytest.raises(EngineClosed):
            await client.generate([7] * 9, ask)
        await client.close()

    try:
        asyncio.run(main())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_problems_at_the_start_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for arguments, problem in (((tmp_path,), "config.json"), ((tmp_path, "--device", "tpu"), "--device")):
        result = subprocess.run(command(*arguments), capture_output=True, text=True)
        assert result.returncode == 2 and problem in result.stderr and "Traceback" not in result.stderr
