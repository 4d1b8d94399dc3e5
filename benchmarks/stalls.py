"""Measure how long a policy server stalls while hostile requests arrive; ``benchmarks/gateway.py`` includes the result.

A separate process requests ``/health`` every two milliseconds and records the waits, while bodies of every kind below
arrive with separate keys, several at a time. The waits without such requests are measured too, because on a busy
machine the longest wait is caused by the scheduler. For the same reason the processor time of the server (all of its
threads) during each wait is recorded: it is an upper bound of the wait on an idle machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from woodshed.gateway.client import GatewayAdmin

SIZE = 15_000_000
"""Size of a body in bytes, below ``max_body``."""
AT_ONCE = 4
"""Number of hostile requests at a time."""
TRAJECTORIES = 2_000
"""Number of open trajectories while metrics are read."""


def chat(content: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":' + content + b"}]}"


def beside(name: bytes, value: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"a"}],"' + name + b'":' + value + b"}"


def flood(one: bytes) -> bytes:
    return b"[" + one + (b"," + one) * (SIZE // (len(one) + 1)) + b"]"


def fitting(letters: int) -> bytes:
    """Return a request whose text is too long only in tokens, so that the server has to tokenize it to find out."""
    return chat(b'"' + b"zq" * (letters // 2) + b'"')


def bodies(context: int) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Return path and body of each kind of hostile request."""
    path, message = "/v1/chat/completions", b'{"role":"user","content":""}'
    call = b'{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":%s}}]}'
    result = b'{"messages":[{"role":"user","content":"a"},%s,{"role":"tool","tool_call_id":"c","content":%s}]}'
    tool = b'{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'
    letters = b'"' + b"a" * SIZE + b'"'
    return {
        "one_word": (path, lambda: chat(letters)),
        "blanks": (path, lambda: chat(b'"' + b" " * SIZE + b'"')),
        "lines": (path, lambda: chat(b'"' + b"x\\n" * (SIZE // 3) + b'"')),
        "escapes": (path, lambda: chat(b'"' + b"\\u0041" * (SIZE // 6) + b'"')),
        "quotes": (path, lambda: chat(b'"' + b'\\"' * (SIZE // 2) + b'"')),
        "emoji": (path, lambda: chat(b'"' + "\U0001f600".encode() * (SIZE // 4) + b'"')),
        "not_utf8": (path, lambda: chat(b'"' + b"\xff" * SIZE + b'"')),
        "at_the_bound": (path, lambda: fitting(context * 4)),
        "tool_result": (path, lambda: result % (call % b'"{}"', letters)),
        "arguments": (path, lambda: result % (call % letters, b'"x"')),
        "arguments_of_lists": (path, lambda: result % (call % json.dumps(flood(b"[]").decode()).encode(), b'"x"')),
        "system": ("/v1/messages", lambda: beside(b"system", letters)),
        "instructions": ("/v1/responses", lambda: b'{"input":"a","instructions":' + letters + b"}"),
        "count_tokens": ("/v1/messages/count_tokens", lambda: chat(letters)),
        "lists": (path, lambda: b'{"messages":' + flood(b"[]") + b"}"),
        "numbers": (path, lambda: beside(b"metadata", flood(b"1"))),
        "one_number": (path, lambda: beside(b"metadata", b"1" * SIZE)),
        "objects": (path, lambda: beside(b"metadata", flood(b'{"a":1}'))),
        "deep": (path, lambda: beside(b"metadata", b"[" * SIZE)),
        "between": (path, lambda: b" " * SIZE + chat(b'"a"')),
        "many_messages": (path, lambda: b'{"messages":' + flood(message) + b"}"),
        "some_messages": (path, lambda: b'{"messages":[' + b",".join([message] * 12_000) + b"]}"),
        "many_tools": (path, lambda: beside(b"tools", b"[" + b",".join([tool] * 8_000) + b"]")),
        "bad_field": (path, lambda: beside(b"temperature", letters)),
        "feedback": ("/v1/feedback", lambda: flood(b"[]")),
    }


def ask_health(port: int, pid: int) -> None:
    """Request ``/health`` for ever, in a process of its own. Prints a line for each answer: seconds since the epoch,
    milliseconds of the wait, and milliseconds of processor time that the server used meanwhile."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    while True:
        taken, began = _processor_ms(pid), time.perf_counter()
        connection.sendall(request)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        wait = 1000 * (time.perf_counter() - began)
        print(time.time(), wait, _processor_ms(pid) - taken, flush=True)
        time.sleep(0.002)


def _processor_ms(pid: int) -> float:
    """Return the processor time of all threads of a process so far, in milliseconds."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e6


class Wait(NamedTuple):
    """The longest wait, and the longest processor time of a wait, in milliseconds."""

    wall: float
    processor: float


class Waits:
    """The waits that ``ask_health`` has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.rows: list[tuple[float, Wait]] = []

    async def read(self) -> None:
        assert self._process.stdout is not None
        while line := await asyncio.to_thread(self._process.stdout.readline):
            when, wall, processor = map(float, line.split())
            self.rows.append((when, Wait(wall, processor)))

    async def longest(self, since: float) -> Wait:
        """Return the longest of the waits that ended after ``since``, once another request has been answered."""
        until = time.time()
        while not self.rows or self.rows[-1][0] - self.rows[-1][1].wall / 1000 < until:
            await asyncio.sleep(0.01)
        waits = [wait for when, wait in self.rows if when >= since]
        return Wait(max(wait.wall for wait in waits), max(wait.processor for wait in waits))


@contextmanager
def asking(port: int, pid: int) -> Iterator[Waits]:
    process = subprocess.Popen([sys.executable, __file__, str(port), str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        yield Waits(process)
    finally:
        process.kill()
        process.wait()


async def measure(port: int, pid: int, key: str, context: int) -> dict[str, Any]:
    """Return the longest waits in milliseconds, by kind of request and without any, and the statuses of the answers."""
    url = f"http://127.0.0.1:{port}"
    admin = GatewayAdmin(url, key)
    waits: dict[str, Wait] = {}
    answers: dict[str, list[int]] = {}
    with asking(port, pid) as health:
        reading = asyncio.create_task(health.read())
        client = httpx.AsyncClient(base_url=url, timeout=300)
        try:
            for name in ("idle_before", "idle_again"):
                began = time.time()
                await asyncio.sleep(5)
                waits[name] = await health.longest(began)
            for name, (path, make) in bodies(context).items():
                body = make()
                keys = [await admin.open(f"{name}-{i}") for i in range(AT_ONCE)]
                began = time.time()
                got = await asyncio.gather(*(_send(client, path, body, each) for each in keys))
                waits[name] = await health.longest(began)
                answers[name] = sorted(set(got))
                print(name, waits[name], answers[name], file=sys.stderr, flush=True)
                for i in range(AT_ONCE):
                    await admin.delete(f"{name}-{i}")
            waits |= await _long_trajectory(admin, client, health, context)
            waits |= await _metrics(admin, client, health)
        finally:
            reading.cancel()
            await client.aclose()
            await admin.close()
    hostile = {name: wait for name, wait in waits.items() if not name.startswith("idle")}
    worst = max(hostile, key=lambda name: hostile[name].wall)
    return {
        "longest_ms": hostile[worst].wall,
        "worst": worst,
        "idle_ms": max(waits["idle_before"].wall, waits["idle_again"].wall),
        "longest_processor_ms": max(wait.processor for wait in hostile.values()),
        "load_average": os.getloadavg()[0],
        "ms": {name: wait._asdict() for name, wait in waits.items()},
        "statuses": answers,
    }


async def _send(client: httpx.AsyncClient, path: str, body: bytes, key: str) -> int:
    answer = await client.post(path, content=body, headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def _long_trajectory(
    admin: GatewayAdmin, client: httpx.AsyncClient, health: Waits, context: int
) -> dict[str, Wait]:
    """Send large requests that fit, one after the other, and finish the trajectory that they make; return both
    waits."""
    key = await admin.open("long")
    headers = {"authorization": f"Bearer {key}"}
    text = "the gateway says one word after the other " * (context // 40)
    began = time.time()
    for conversation in range(40):  # each is a segment of its own
        messages = [{"role": "user", "content": f"{conversation} {text}"}]
        answer = await client.post("/v1/chat/completions", json={"messages": messages}, headers=headers)
        if answer.status_code != 200:
            raise SystemExit(f"the long trajectory was answered {answer.status_code}: {answer.text[:200]}")
    spoken = await health.longest(began)
    began = time.time()
    await admin.finish("long", messages=True)
    return {"large_turns": spoken, "finish": await health.longest(began)}


async def _metrics(admin: GatewayAdmin, client: httpx.AsyncClient, health: Waits) -> dict[str, Wait]:
    for number in range(TRAJECTORIES):
        await admin.open(f"m{number}")
    began = time.time()
    for _ in range(20):
        (await client.get("/metrics")).raise_for_status()
    return {"metrics_of_many": await health.longest(began)}


if __name__ == "__main__":
    ask_health(int(sys.argv[1]), int(sys.argv[2]))
