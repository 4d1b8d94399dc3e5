"""The agent in a terminal: on a box, or on a folder whose changes are written back at the end."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from woodshed.record.visible import visible
from woodshed.record.walk import all_below
from woodshed.sandbox.protocol import Sandbox
from woodshed.sandbox.taskbox import first_commit

from .display import Ask, Display, Driver, ask_line, short
from .endpoint import ChatEndpoint
from .episode import Episode
from .loop import run_episode
from .settings import HarnessSettings

SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
MAX_TOTAL = 64 << 20


class FolderError(Exception):
    """A folder cannot be worked on; the message says why."""


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read regular files by relative path, without caches and version control. Raises FolderError beyond 64 MiB and
    for files that cannot be read."""
    if not folder.is_dir():
        raise FolderError(f"{folder}: not a folder")
    files: dict[str, bytes] = {}
    total = 0
    try:
        for path in all_below(folder, skip=SKIPPED):
            if path.name in SKIPPED or path.is_symlink() or not path.is_file():
                continue
            total += path.stat().st_size
            if total > MAX_TOTAL:
                raise FolderError(f"{folder}: more than {MAX_TOTAL >> 20} MiB of files; name a smaller folder")
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    except OSError as error:
        raise FolderError(f"{folder}: cannot be read: {error}") from None
    return files


async def box_files(box: Sandbox) -> dict[str, bytes]:
    """Read the files of a box's workdir, with the same exceptions as ``read_folder``."""
    found = await box.get(["**/*"], max_bytes=2 * MAX_TOTAL)  # with the history
    return {name: data for name, data in found.items() if not SKIPPED.intersection(Path(name).parts)}


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Return the files whose content differs: path -> new content, None if deleted."""
    names = sorted({*before, *after})
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def unified(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return a unified diff of all changes; binary files are only named."""
    parts = []
    for name in changed(before, after):
        try:
            old, new = before.get(name, b"").decode(), after.get(name, b"").decode()
        except UnicodeDecodeError:
            parts.append(f"Binary file {name} differs\n")
            continue
        source = f"a/{name}" if name in before else "/dev/null"
        target = f"b/{name}" if name in after else "/dev/null"
        for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), source, target):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def write_back(folder: Path, changes: Mapping[str, bytes | None]) -> None:
    """Apply changes from a box to the folder. Raises FolderError for a path outside the folder, before it writes
    anything."""
    root = folder.resolve()
    for name in changes:
        target = root / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not target.parent.resolve().is_relative_to(root):
            raise FolderError(f"{folder}: refusing to write outside of it: {name!r}")
        if target.is_symlink() or target.is_dir():
            raise FolderError(f"{target}: is a link or a folder here; move it away first")
    for name, data in changes.items():
        try:
            _write(root / name, data)
        except OSError as error:
            raise FolderError(f"{root / name} could not be written, nor what follows it in the diff: {error}") from None


def _write(target: Path, data: bytes | None) -> None:
    if data is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.new")
    try:
        temporary.write_bytes(data)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


async def agent_main(
    endpoint: ChatEndpoint,
    box: Sandbox,
    prompt: str,
    settings: HarnessSettings,
    console: Console,
    *,
    test_command: str = "",
    step: bool = False,
    talk: bool = False,
    streamed: bool = False,
    ask: Ask | None = None,
) -> Episode:
    """Run the agent on a box and show it. ``streamed``: True if the endpoint's ``on_text`` already prints replies."""
    driver = Driver(Display(console, streamed=streamed), ask or asker(console), step=step, talk=talk)
    console.print(Panel(Text(short(prompt.strip())), title="task", title_align="left"))
    episode = await run_episode(prompt, box, endpoint, settings, test_command=test_command, on_event=driver)
    if episode.error:
        console.print(Text(episode.error, style="red"))
    effort = episode.effort
    console.print(
        Text(
            f"{effort.turns} turns, {effort.tool_calls} calls ({effort.invalid_calls} invalid), {effort.edits} edits, "
            f"{effort.test_runs} test runs, {effort.sampled_tokens} tokens sampled",
            style="dim",
        )
    )
    return episode


async def work_on_folder(
    folder: Path,
    prompt: str,
    endpoint: ChatEndpoint,
    box: Sandbox,
    settings: HarnessSettings,
    console: Console,
    *,
    test_command: str = "",
    step: bool = False,
    talk: bool = False,
    yes: bool = False,
    ask: Ask | None = None,
) -> Episode:
    """Work on the files of ``folder`` in ``box``, show the changes, and write them back if the person agrees (``yes``
    skips the question). Raises FolderError, EndpointLost, SandboxError."""
    ask = ask or asker(console)
    before = read_folder(folder)
    await box.put({**before, **first_commit(before)})
    episode = await agent_main(
        endpoint, box, prompt, settings, console, test_command=test_command, step=step, talk=talk, ask=ask
    )
    after = await box_files(box)
    _show_diff(console, unified(before, after))
    changes = changed(before, after)
    if changes and (yes or await _agrees(ask, f"write {len(changes)} changed files to {folder}? [y/N] ")):
        if read_folder(folder) != before:
            raise FolderError(f"{folder}: changed since the agent started; nothing was written")
        write_back(folder, changes)
        console.print(Text("written", style="green"))
    return episode


def asker(console: Console) -> Ask:
    return lambda prompt: console.input(Text(prompt, style="bold"))


async def _agrees(ask: Ask, question: str) -> bool:
    return (await ask_line(ask, question) or "").strip().lower() in ("y", "yes")


def _show_diff(console: Console, diff: str) -> None:
    if not diff:
        console.print(Text("nothing was changed", style="dim"))
    else:
        console.print(Syntax(visible(diff), "diff", theme="ansi_dark", word_wrap=True))
