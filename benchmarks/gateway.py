"""Measure the gateway: time added to a turn, losses in a thousand concurrent streams, the longest stall under hostile
requests (``stalls.py``), and unmodified external agents.

    python benchmarks/gateway.py [--streams 1000] [--without-agents] [--out benchmarks/results/gateway.json]

The server is a process of its own, with its journal, as in a run; its engine replies with a fixed text, so that only
the gateway is measured. ``added_ms_p50`` is the time of a turn over HTTP, in 32 concurrent conversations of eight
turns, minus the time of the same calls to the engine alone; ``requests_per_second`` is for 32 conversations without
pauses, client and server on the same cores. In the streams every client's text and the recorded tokens are compared
with what the engine sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stalls
import uvicorn
from result import write_result

from woodshed.engine.protocol import Completion, OnToken, Sampling
from woodshed.gateway.app import build_app
from woodshed.gateway.background import keep_waits_short
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.journal import Journal
from woodshed.harness.endpoint import pooled_client
from woodshed.policy.formats import get_format
from woodshed.policy.tokenizer import Tokenizer, train_bpe

KEY = "admin-key-of-the-benchmark"
FORMAT = get_format("hermes")
WORDS = "the gateway says one word after the other and keeps every one of them "
REPLY = 64
"""Number of tokens of a reply."""
TURNS, REPEATS = 8, 5


def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe([WORDS] * 4, 400, FORMAT.special_tokens))


class Letters:
    """An engine that replies with ``REPLY`` tokens, the last of which ends the turn, one every ``gap`` seconds."""

    version = 1
    context = 32_768

    def __init__(self, tokens: Tokenizer, gap: float) -> None:
        said = tokens.encode(WORDS * 8)[: REPLY - 1]
        self.reply = [*said, *tokens.encode("<|im_end|>", allow_special=True)]
        self.gap = gap

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, session: str | None = None, on_token: OnToken | None = None
    ) -> Completion:
        if on_token is None:  # with a real engine, the event loop would be idle
            await asyncio.sleep(self.gap * len(self.reply))
        else:
            for token in self.reply:
                on_token(token, -0.5, self.version)
                await asyncio.sleep(self.gap)
        count = len(self.reply)
        return Completion(list(self.reply), [-0.5] * count, [self.version] * count, "stop")

    def grammars_refused(self) -> str | None:
        return "it says what it is told"

    def kept_sets_refused(self) -> str | None:
        return None

    def release(self, session: str) -> None:
        return None

    def stats(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        return None


def serve(gap: float, folder: Path) -> None:
    """Run the server, in its own process."""
    words = tokenizer()
    app = build_app(Letters(words, gap), FORMAT, words, admin_key=KEY, journal=Journal(folder / "journal"))
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_level="warning", timeout_keep_alive=75)
    )

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        keep_waits_short()
        (folder / "port").write_text(str(server.servers[0].sockets[0].getsockname()[1]))
        await serving

    asyncio.run(run())


@contextmanager
def served(gap: float) -> Iterator[tuple[int, int]]:
    """Start a server in its own process; yield (port, pid)."""
    with tempfile.TemporaryDirectory() as place:
        process = subprocess.Popen([sys.executable, __file__, "--serve", str(gap), place])
        try:
            port = Path(place) / "port"
            while not (port.exists() and port.read_text()):
                if process.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(0.05)
            yield int(port.read_text()), process.pid
        finally:
            process.terminate()
            process.wait()


async def added(port: int, gap: float, at_once: int) -> dict[str, float]:
    """Return the milliseconds of a turn through the gateway minus those of the engine alone, with ``at_once``
    concurrent conversations, and the turns per second of all of them."""
    url = f"http://127.0.0.1:{port}"
    engine = Letters(tokenizer(), gap)
    admin, client = GatewayAdmin(url, KEY), pooled_client()
    times: list[float] = []
    alone: list[float] = []
    seconds = 0.0

    async def by_itself() -> None:
        for _ in range(TURNS):
            start = time.perf_counter()
            await engine.generate([1] * 500, Sampling())
            alone.append(1000 * (time.perf_counter() - start))

    async def conversation(id: str) -> None:
        await asyncio.sleep(random.uniform(0, gap * REPLY))  # else all would keep asking at the same moment
        headers = {"authorization": "Bearer " + await admin.open(id)}
        messages: list[dict[str, Any]] = [{"role": "user", "content": WORDS * 20}]
        for turn in range(TURNS):
            start = time.perf_counter()
            answer = await client.post(url + "/v1/chat/completions", json={"messages": messages}, headers=headers)
            times.append(1000 * (time.perf_counter() - start))
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"{turn} {WORDS}"}]
        await admin.finish(id)

    try:
        for again in range(REPEATS):
            await asyncio.gather(*(by_itself() for _ in range(at_once)))
            start = time.perf_counter()
            await asyncio.gather(*(conversation(f"t{again}-{number}") for number in range(at_once)))
            seconds += time.perf_counter() - start
    finally:
        await client.aclose()
        await admin.close()
    times.sort()
    base = statistics.median(alone)
    return {
        "p50": statistics.median(times) - base,
        "p99": times[int(0.99 * len(times))] - base,
        "engine": base,
        "requests_per_second": len(times) / seconds,
    }


async def stream(port: int, key: str) -> tuple[str, float]:
    """Stream one reply over a bare connection; return (text, longest wait between two pieces in seconds)."""
    body = json.dumps({"messages": [{"role": "user", "content": WORDS}], "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    text, waited, last = "", 0.0, 0.0
    async for line in reader:
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            waited, last = max(waited, now - last if last else 0.0), now
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    writer.close()
    return text, waited


async def streams(port: int, pid: int, count: int) -> dict[str, float]:
    """Stream ``count`` replies at once; return how many tokens were not recorded, how many clients got the whole text,
    and times."""
    admin = GatewayAdmin(f"http://127.0.0.1:{port}", KEY)
    expected = tokenizer().decode(Letters(tokenizer(), 0.0).reply[:-1])
    try:
        keys = [await admin.open(f"s{n}") for n in range(count)]
        cpu, start = _cpu_seconds(pid), time.perf_counter()
        got = await asyncio.gather(*(stream(port, key) for key in keys))
        seconds, cpu = time.perf_counter() - start, _cpu_seconds(pid) - cpu
        recorded = [await admin.finish(f"s{n}") for n in range(count)]
    finally:
        await admin.close()
    kept = sum(int(segment.sampled.sum()) for finished in recorded for segment in finished.segments)
    waits = sorted(waited for _, waited in got)
    return {
        "lost_tokens": REPLY * count - kept,
        "clients_with_the_whole_text": sum(text == expected for text, _ in got),
        "seconds": seconds,
        "tokens_per_second": REPLY * count / seconds,
        "server_cpu_ms_per_stream": 1000 * cpu / count,
        "longest_wait_p50_ms": 1000 * statistics.median(waits),
        "longest_wait_max_ms": 1000 * waits[-1],
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(float(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="replies streamed at once (default: %(default)s)")
    parser.add_argument("--without-agents", action="store_true", help="leave the agents of others out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    turns = {}
    for name, at_once, gap in (("1_at_once", 1, 0.0), ("32_at_once", 32, 0.01), ("32_without_a_pause", 32, 0.0)):
        with served(gap) as (port, _):
            turns[name] = asyncio.run(added(port, gap, at_once))
    with served(gap=0.2) as (port, pid):
        held = asyncio.run(streams(port, pid, given.streams))
    with served(gap=0.0) as (port, pid):
        stalled = asyncio.run(stalls.measure(port, pid, KEY, Letters.context))
    agents: dict[str, Any] = {}
    if not given.without_agents:
        from agents import measure_apart

        agents = measure_apart()
    exact = [row for row in agents.values() if row["resolved"] and row["exact"] and row["trains"]]
    lost = held["lost_tokens"] + sum(row["lost_tokens"] for row in agents.values())
    figures: dict[str, float | None] = {
        "added_ms_p50": turns["32_at_once"]["p50"],
        "requests_per_second": turns["32_without_a_pause"]["requests_per_second"],
        "streams": given.streams,
        "lost_tokens": lost,
        "longest_stall_ms": stalled["longest_ms"],
        "foreign_harnesses": len(exact) if agents else None,
    }
    write_result(
        "gateway", figures, {"turn_ms": turns, "streams": held, "stalls": stalled, "agents": agents}, given.out
    )
    if lost or held["clients_with_the_whole_text"] < given.streams or len(exact) < len(agents):
        raise SystemExit("something was lost; see the detail")


if __name__ == "__main__":
    main()
