"""The agent in a terminal: every step shown, and a person who may watch, step, answer or take over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from woodshed.record.task import Task, TaskError
from woodshed.sandbox.protocol import Backend, BoxSpec, Sandbox

from .changes import FolderError, box_files, changed, read_folder, unified, write_back
from .endpoint import ChatEndpoint
from .episode import Episode, Moment, Reaction
from .loop import run_episode
from .settings import HarnessSettings
from .tools.base import ToolResult

Ask = Callable[[str], str]
"""Shows a prompt and returns a line; raises EOFError where there is nobody."""

SHOWN = 4_000


class Display:
    """Renders moments of an episode. As an observer it never changes what happens."""

    def __init__(self, console: Console, *, streamed: bool = False) -> None:
        self.console = console
        self.streamed = streamed

    def show(self, moment: Moment) -> None:
        if moment.kind in ("reply", "summary"):
            self._message(moment)
        elif moment.kind == "call" and moment.call is not None:
            self.console.print(Text.assemble(("→ ", "cyan"), (call_line(moment.call.name, moment.call.arguments))))
        elif moment.kind == "result" and moment.result is not None:
            self._result(moment.result)
        elif moment.kind == "notice" and moment.message is not None:
            self.console.print(Text(str(moment.message["content"]), style="yellow"))
        elif moment.kind == "end":
            style = "green" if moment.status == "submitted" else "red"
            self.console.print(Text(f"{moment.status} after {moment.turn} turns", style=style))

    def _message(self, moment: Moment) -> None:
        message = moment.message or {}
        thinking = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
        if isinstance(thinking, str) and thinking.strip():
            self.console.print(Text(_short(thinking.strip()), style="dim italic"))
        content = message.get("content")
        title = "summary" if moment.kind == "summary" else f"turn {moment.turn}"
        if isinstance(content, str) and content.strip() and not self.streamed:
            self.console.print(Panel(Text(_short(content.strip())), title=title, title_align="left", border_style="blue"))
        elif moment.kind == "reply":
            self.console.print(Text(title, style="bold blue"))

    def _result(self, result: ToolResult) -> None:
        style = "red" if result.error else "dim"
        self.console.print(Text(_indent(_short(result.text)), style=style))


class Driver:
    """An observer that shows every step and lets a person act.

    ``step``: wait before each call (enter runs it; ``s TEXT`` answers TEXT in the tool's place; ``n`` refuses it; ``a``
    stops asking). ``talk``: when the agent is done, a line that is typed continues the conversation.
    """

    def __init__(self, display: Display, ask: Ask, *, step: bool = False, talk: bool = False) -> None:
        self.display = display
        self.ask = ask
        self.step = step
        self.talk = talk
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, moment: Moment) -> Reaction:
        async with self._one_at_a_time:
            self.display.show(moment)
            if moment.kind == "call" and self.step:
                return await self._before_call()
            if moment.kind == "final" and self.talk:
                return await self._line("message to the agent (enter to end): ") or None
        return None

    async def _before_call(self) -> Reaction:
        line = await self._line("  [enter] run  [s TEXT] answer yourself  [n] refuse  [a] run all: ")
        if line is None or line == "a":
            self.step = False
        elif line == "n":
            return ToolResult("error: refused by the user", "not_executed")
        elif line.startswith("s "):
            return ToolResult(line[2:])
        return None

    async def _line(self, prompt: str) -> str | None:
        try:
            return (await asyncio.to_thread(self.ask, prompt)).strip()
        except EOFError:
            return None


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
    console.print(Panel(Text(_short(prompt.strip())), title="task", title_align="left"))
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
    base = workdir.rstrip("/")
    box = await backend.create(
        BoxSpec(layers=layers, files={f"{base}/{name}": data for name, data in before.items()}, workdir=workdir)
    )
    try:
        before = await box_files(box)
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
        if read_folder(path) != {name: data for name, data in before.items()}:
            raise FolderError(f"{path}: changed since the agent started; nothing was written")
        write_back(path, changes)
        console.print(Text("written", style="green"))
    return episode


def asker(console: Console) -> Ask:
    return lambda prompt: console.input(Text(prompt, style="bold"))


def call_line(name: str, arguments: str) -> str:
    """One line for a call: ``read_file path=a.py limit=20``. Arguments that are no JSON object are shown as they are."""
    try:
        values: Any = json.loads(arguments or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return f"{name} {arguments[:200]}"
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())
    line = " ".join([name, *shown]).replace("\n", "⏎")
    return line if len(line) <= 400 else line[:400] + "…"


def _agrees(ask: Ask, question: str) -> bool:
    try:
        return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _show_diff(console: Console, diff: str) -> None:
    if not diff:
        console.print(Text("nothing was changed", style="dim"))
    else:
        console.print(Syntax(diff, "diff", theme="ansi_dark", word_wrap=True))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n[... {len(text) - SHOWN} more characters, not shown ...]"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
