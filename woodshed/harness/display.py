"""Shows an episode in a terminal, and lets a person take part in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from woodshed.harness.tools.base import ToolResult
from woodshed.record.visible import visible

from .episode import Moment, Reaction

Ask = Callable[[str], str]
"""Shows a prompt and returns a line; raises EOFError if there is no input."""

SHOWN = 4_000


class Display:
    """Prints the moments of an episode; never influences it."""

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
            self.console.print(Text(short(str(moment.message["content"])), style="yellow"))
        elif moment.kind == "end":
            style = "green" if moment.status == "submitted" else "red"
            self.console.print(Text(f"{moment.status} after {moment.turn} turns", style=style))

    def _message(self, moment: Moment) -> None:
        message = moment.message or {}
        thinking = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
        if isinstance(thinking, str) and thinking.strip():
            self.console.print(Text(short(thinking.strip()), style="dim italic"))
        content = message.get("content")
        title = "summary" if moment.kind == "summary" else f"turn {moment.turn + 1}"  # counted after it is shown
        if isinstance(content, str) and content.strip() and not self.streamed:
            text = Text(short(content.strip()))
            self.console.print(Panel(text, title=title, title_align="left", border_style="blue"))
        elif moment.kind == "reply":
            self.console.print(Text(title, style="bold blue"))

    def _result(self, result: ToolResult) -> None:
        style = "red" if result.error else "dim"
        self.console.print(Text(_indent(short(result.text)), style=style))


class Driver:
    """An observer that shows every step and lets a person act.

    ``step``: ask before each call (enter runs it, ``s TEXT`` answers with TEXT instead of the tool, ``n`` refuses it,
    ``a`` stops asking; after any other line it asks again). ``talk``: when the agent is done, a typed line continues
    the conversation.
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
        while True:
            line = await self._line("  [enter] run  [s TEXT] answer yourself  [n] refuse  [a] run all: ")
            if line is None or line == "a":
                self.step = False
                return None
            if line == "n":
                return ToolResult("error: refused by the user", "not_executed")
            if line.startswith("s "):
                return ToolResult(line[2:])
            if not line:
                return None

    async def _line(self, prompt: str) -> str | None:
        line = await ask_line(self.ask, prompt)
        return None if line is None else line.strip()


async def ask_line(ask: Ask, prompt: str) -> str | None:
    """Return the line that ``ask`` gets, None if there is no input.

    It waits in a daemon thread: after Ctrl-C, the end of the program would wait for a line in any other.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def settle(line: str | None, error: BaseException | None) -> None:
        if answer.done():  # cancelled
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(line)

    def wait() -> None:
        line, failure = None, None
        try:
            line = ask(prompt)
        except EOFError:
            pass
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, line, failure)

    threading.Thread(target=wait, name="ask", daemon=True).start()
    return await answer


def call_line(name: str, arguments: str) -> str:
    """One line for a call: ``read_file path=a.py limit=20``. Arguments that are not a JSON object appear verbatim."""
    try:
        values: Any = json.loads(arguments or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return visible(f"{name} {arguments[:200]}".replace("\n", "⏎"))
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())
    line = visible(" ".join([name, *shown]).replace("\n", "⏎"))
    return line if len(line) <= 400 else line[:400] + "…"


def short(text: str) -> str:
    """Return the visible form of a text: at most ``SHOWN`` characters, and a line that says how many were left out."""
    text = visible(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n[... {len(text) - SHOWN} more characters, not shown ...]"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
