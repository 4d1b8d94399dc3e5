"""A Sandbox over a temporary folder, for tests whose commands are harmless. It isolates nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from woodshed.sandbox.faults import box_error
from woodshed.sandbox.protocol import ExecResult, Snapshot, Unsupported


def _as_a_box(method: Any) -> Any:
    """Errors of files as a box reports them."""

    @wraps(method)
    async def answers(*args: Any, **named: Any) -> Any:
        try:
            return await method(*args, **named)
        except OSError as error:
            raise box_error(error.errno or 5, error.strerror or str(error), error.filename) from None

    return answers


class FolderBox:
    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.id = "folder"
        self.root = Path(tempfile.mkdtemp(prefix="folder-box-"))
        self.calls: list[str] = []
        self._write(files or {})

    def _write(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(data)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        self.calls.append("exec")
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.root / (cwd or "."),
            start_new_session=True,
        )
        timed_out = False
        work = asyncio.ensure_future(process.communicate(stdin))
        try:
            await asyncio.wait_for(asyncio.shield(work), timeout)
        except TimeoutError:
            timed_out = True
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        out, err = await work
        over = len(out) > max_output or len(err) > max_output
        assert process.returncode is not None
        return ExecResult(process.returncode, out[:max_output], err[:max_output], timed_out, over)

    async def exec_python(
        self,
        source: str,
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        timeout: float = 10.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        self.calls.append("exec_python")
        argv = [sys.executable, "-B", "-c", source]
        return await self.exec(argv, stdin=stdin, cwd=cwd, timeout=timeout, max_output=max_output)

    @_as_a_box
    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        self.calls.append(f"read {path}")
        await asyncio.sleep(0)
        return (self.root / path).read_bytes()[:max_bytes]

    @_as_a_box
    async def write(self, path: str, data: bytes) -> None:
        self._write({path: data})

    @_as_a_box
    async def delete(self, path: str) -> None:
        (self.root / path).unlink()

    @_as_a_box
    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        found = (self.root / path).rglob("*") if recursive else (self.root / path).iterdir()
        kinds = ((p.relative_to(self.root / path).as_posix(), "dir" if p.is_dir() else "file", p) for p in found)
        return sorted((name, kind, p.stat().st_size) for name, kind, p in kinds)[:limit]

    @_as_a_box
    async def put(self, files: Mapping[str, bytes]) -> None:
        self._write(files)

    @_as_a_box
    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        paths = {p for pattern in patterns for p in self.root.glob(pattern) if p.is_file() and not p.is_symlink()}
        return {p.relative_to(self.root).as_posix(): p.read_bytes() for p in sorted(paths)}

    async def snapshot(self, kind: Any = "fs") -> Snapshot:
        raise Unsupported("a folder box has no snapshots")

    def stats(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
