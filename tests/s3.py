"""A real S3 server for tests that need a bucket."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class S3Server:
    url: str

    def ask(self, method: str, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method), timeout=30):
            pass

    def fail(self, method: str, status: int) -> None:
        self.ask("PUT", f"/switch?{method}={status}")

    def heal(self) -> None:
        self.ask("PUT", "/switch")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server with the bucket ``woodshed``; this process and its children are told of it by the environment."""
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    pytest.importorskip("moto", reason="moto, the S3 server of the tests, is not installed")
    program = [sys.executable, str(Path(__file__).parent / "s3_server.py")]
    env = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "10"}
    process = subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    server = S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
    told = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    before = {name: os.environ.get(name) for name in (*told, "AWS_REGION")}
    os.environ.update(told, AWS_REGION="us-east-1")
    try:
        server.ask("PUT", "/woodshed")
        yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        process.kill()
        process.wait()
