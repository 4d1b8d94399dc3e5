"""The agent in a terminal, on a box or on a folder that is brought back at the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from woodshed.record.task import Task, TaskError
from woodshed.record.visible import visible
from woodshed.sandbox.protocol import Backend, BoxSpec, Sandbox

from .changes import FolderError, box_files, changed, read_folder, unified, write_back
from .display import Ask, Display, Driver, short
from .endpoint import ChatEndpoint
from .episode import Episode
from .loop import run_episode
from .settings import HarnessSettings


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
    """Run the agent on a box and show it. ``streamed`` says that the endpoint's ``on_text`` already prints replies."""
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


async def run_agent(
    path: Path,
    endpoint: ChatEndpoint,
    backend: Backend,
    settings: HarnessSettings,
    console: Console,
    *,
    prompt: str = "",
    layers: tuple[Path, ...] = (),
    step: bool = False,
    talk: bool = False,
    yes: bool = False,
    streamed: bool = False,
    ask: Ask | None = None,
) -> Episode:
    """Work on a Harbor task directory, or on any folder with a ``prompt``, inside a fresh box.

    At the end the diff is shown. For a plain folder it is written back if the person agrees (``yes`` skips the
    question); a task directory is never changed. Raises FolderError, TaskError, EndpointLost, SandboxError.
    """
    ask = ask or asker(console)
    task = Task.load(path) if (path / "task.toml").is_file() else None
    if task is None and not prompt:
        raise TaskError(f"{path}: no task.toml; say what to do with a prompt")
    before = task.workspace_files() if task else read_folder(path)
    workdir = task.info.workdir if task else settings.workdir
    settings = settings.model_copy(update={"workdir": workdir})
    box = await backend.create(BoxSpec(layers=layers, workdir=workdir))
    try:
        await box.put(before)
        episode = await agent_main(
            endpoint, box, prompt or (task.instruction if task else ""), settings, console,
            test_command=task.info.test_command if task else "", step=step, talk=talk, streamed=streamed, ask=ask,
        )  # fmt: skip
        after = await box_files(box)
    finally:
        await box.close()
    _show_diff(console, unified(before, after))
    changes = changed(before, after)
    if task is None and changes and (yes or _agrees(ask, f"write {len(changes)} changed files to {path}? [y/N] ")):
        if read_folder(path) != before:
            raise FolderError(f"{path}: changed since the agent started; nothing was written")
        write_back(path, changes)
        console.print(Text("written", style="green"))
    return episode


def asker(console: Console) -> Ask:
    return lambda prompt: console.input(Text(prompt, style="bold"))


def _agrees(ask: Ask, question: str) -> bool:
    try:
        return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _show_diff(console: Console, diff: str) -> None:
    if not diff:
        console.print(Text("nothing was changed", style="dim"))
    else:
        console.print(Syntax(visible(diff), "diff", theme="ansi_dark", word_wrap=True))
