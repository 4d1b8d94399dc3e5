"""The state of one episode that tools share, and the confinement of paths to the workspace.

Confinement keeps the agent to its task; the security boundary is the sandbox.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from woodshed.record.trajectory import Effort
from woodshed.sandbox.protocol import BoxError, ExecResult, Sandbox

from .errors import ToolError
from .settings import HarnessSettings

MAX_PATH = 1024


def confine(path: str, workdir: str) -> str:
    """Return the path relative to ``workdir`` (``.`` for the workdir itself). Absolute paths below it are accepted.

    Raises ToolError ``invalid_path`` (empty, NUL, not encodable, too long) or ``path_outside_workspace``.
    """
    if not path or "\x00" in path or len(path) > MAX_PATH:
        raise ToolError("invalid_path", f"a path has 1 to {MAX_PATH} characters and no NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolError("invalid_path", "the path is not valid UTF-8") from None
    root = posixpath.normpath(workdir)
    full = posixpath.normpath(posixpath.join(root, path))
    if full == root:
        return "."
    prefix = root.rstrip("/") + "/"
    if not full.startswith(prefix):
        raise ToolError("path_outside_workspace", f"{path} is not below {root}")
    return full[len(prefix) :]


MAX_FILE = 1 << 20
MAX_UNDO = 100


@dataclass
class Edit:
    """A change that can be undone. ``before`` is None if the file did not exist."""

    path: str
    before: bytes | None


@dataclass
class Todo:
    id: str
    content: str
    status: str


class KnownTests:
    """LRU cache of test results. Key: task, command and all files of the workspace."""

    def __init__(self, entries: int = 8192) -> None:
        self.entries = entries
        self.hits = self.misses = 0
        self._results: OrderedDict[str, ExecResult] = OrderedDict()

    async def run(
        self, task: str, box: Sandbox, command: str, execute: Callable[[], Awaitable[ExecResult]]
    ) -> ExecResult:
        """Return the result for the current files of the workspace; call ``execute`` if it is not known. Results cut
        short by a limit (time, memory, output) are not kept, nor are results if the files cannot be read."""
        try:
            files = await box.get(["**/*"])
        except BoxError:
            return await execute()
        digest = hashlib.sha256(json.dumps([task, command]).encode())
        for path, data in sorted(files.items()):
            digest.update(f"{len(path)}:{path}:{len(data)}:".encode())
            digest.update(data)
        key = digest.hexdigest()
        found = self._results.get(key)
        if found is None:
            self.misses += 1
            found = await execute()
            if found.timed_out or found.out_of_memory or found.truncated:
                return found
            self._results[key] = found
        else:
            self.hits += 1
        self._results.move_to_end(key)
        while len(self._results) > self.entries:
            self._results.popitem(last=False)
        return replace(found)


ReuseTests = Callable[[Sandbox, str, Callable[[], Awaitable[ExecResult]]], Awaitable[ExecResult]]
"""``KnownTests.run`` of one task."""


@dataclass
class Session:
    """Passed to every tool. ``deadline`` is on ``time.monotonic``; tools never wait past it. ``reuse`` returns known
    results of the task's tests."""

    box: Sandbox
    settings: HarnessSettings
    test_command: str = ""
    reuse: ReuseTests | None = None
    deadline: float = float("inf")
    effort: Effort = field(default_factory=Effort)
    edits: list[Edit] = field(default_factory=list)
    todos: list[Todo] = field(default_factory=list)
    cwd: str = ""
    finished: bool = False
    final_message: str = ""

    def time_left(self, wanted: float) -> float:
        """Return the seconds that a command may take: ``wanted``, at most the episode's rest, at least 0.1."""
        return max(0.1, min(wanted, self.deadline - time.monotonic()))

    def path(self, path: str) -> str:
        return confine(path, self.settings.workdir)

    async def read(self, path: str) -> bytes:
        """The file's content. Raises ToolError ``too_large`` beyond 1 MiB, and OSError."""
        data = await self.box.read(path, max_bytes=MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ToolError("too_large", f"{path} is larger than {MAX_FILE} bytes; use run_command")
        return data

    async def read_text(self, path: str) -> str:
        """The file as text that can be written back unchanged. Raises ToolError ``not_text``."""
        try:
            return (await self.read(path)).decode("utf-8")
        except UnicodeDecodeError:
            raise ToolError("not_text", f"{path} is not UTF-8 text") from None

    async def change(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Write a file (or delete it, if ``after`` is None) and remember how to undo that."""
        if after is None:
            await self.box.delete(path)
        elif len(after) > MAX_FILE:
            raise ToolError("too_large", f"a file may have {MAX_FILE} bytes")
        else:
            await self.box.put({path: after})
        self.edits.append(Edit(path, before))
        del self.edits[:-MAX_UNDO]
        self.effort.edits += 1
