"""Box servers for tests: ``woodshed boxes`` in processes of their own, with folders of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from woodshed.cluster.supervisor import free_ports
from woodshed.sandbox.remote.backend import RemoteBackend
from woodshed.sandbox.remote.placement import Placement

KEY = "box-key-of-the-tests"


class BoxHost:
    def __init__(self, state: Path, *options: object, port: int | None = None) -> None:
        self.state, self.port = state, port or free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        boxes = state / "now"
        boxes.mkdir(parents=True, exist_ok=True)
        command = ["boxes", "--port", self.port, "--state", state, "--set", f"root={boxes}", *options]
        self.log = (state / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "woodshed.cli", *map(str, command)],
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "WOODSHED_ADMIN_KEY": KEY, "OMP_NUM_THREADS": "1"},
        )

    def wait(self) -> BoxHost:
        while True:
            assert self.process.poll() is None, (self.state / "log").read_text()
            try:
                httpx.get(f"{self.url}/health", trust_env=False).raise_for_status()
                return self
            except httpx.HTTPError:
                time.sleep(0.05)

    def living(self) -> int:
        return int(httpx.get(f"{self.url}/health", trust_env=False).json()["boxes"])

    def client(self, **options: Any) -> RemoteBackend:
        return RemoteBackend(self.url, KEY, **options)

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait()
        self.log.close()


def placed(*hosts: BoxHost, **options: Any) -> Placement:
    return Placement([host.client(**options) for host in hosts], "namespace", patience=20)
