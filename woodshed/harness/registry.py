"""The tools of a policy, and the harness hash: trajectories with equal hashes had the same agent."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from woodshed.harness.tools.base import Arguments, Tool, ToolResult, clean
from woodshed.harness.tools.edit_file import EditFile, EditLine, EditWords
from woodshed.harness.tools.finish import Finish
from woodshed.harness.tools.read_file import ReadFile
from woodshed.harness.tools.read_lints import ReadLints
from woodshed.harness.tools.run_command import RunCommand
from woodshed.harness.tools.run_tests import RunTests
from woodshed.harness.tools.search import Glob, Grep, ListDir
from woodshed.harness.tools.todo_write import TodoWrite
from woodshed.harness.tools.undo import Undo
from woodshed.harness.tools.write_file import DeleteFile, WriteFile
from woodshed.record.settings import is_reference, load_reference
from woodshed.sandbox.protocol import BoxError, BoxGone, SandboxError

from .errors import ToolError, error_text
from .session import Session
from .settings import HarnessSettings

TOOLS: dict[str, type[Tool]] = {
    tool.name: tool
    for tool in (
        ReadFile,
        EditFile,
        EditLine,
        EditWords,
        Undo,
        WriteFile,
        DeleteFile,
        Grep,
        Glob,
        ListDir,
        RunCommand,
        RunTests,
        ReadLints,
        TodoWrite,
        Finish,
    )
}

OS_ERRORS: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, "not_found"),
    (IsADirectoryError, "is_directory"),
    (NotADirectoryError, "not_a_directory"),
    (FileExistsError, "exists"),
    (PermissionError, "permission_denied"),
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = logging.getLogger(__name__)


def load_tool(name: str) -> type[Tool]:
    """Load a tool by its built-in name or by a reference ``"my_module:MyTool"``. Raises ValueError."""
    if not is_reference(name):
        if name not in TOOLS:
            raise ValueError(f"harness.tools: unknown tool {name!r}; known: {sorted(TOOLS)}")
        return TOOLS[name]
    tool = load_reference(name, "harness.tools")
    if not (isinstance(tool, type) and issubclass(tool, Tool)):
        raise ValueError(f"harness.tools: {name!r} is no subclass of woodshed.Tool")
    if inspect.isabstract(tool):
        missing = ", ".join(sorted(tool.__abstractmethods__))
        raise ValueError(f"harness.tools: {name!r} does not define {missing}")
    if not inspect.iscoroutinefunction(inspect.unwrap(tool.run)):
        raise ValueError(f"harness.tools: run of {name!r} is no `async def`, so every call would fail")
    called = getattr(tool, "name", None)
    if not (isinstance(called, str) and _NAME.fullmatch(called)):
        raise ValueError(
            f"harness.tools: {name!r} needs a class attribute `name`, by which the policy calls it: 1 to 64 letters, "
            f"digits, '_' or '-' (got {called!r})"
        )
    return tool


class ToolRegistry:
    """The tools of one policy. Holds no state of an episode, so one registry serves any number of them.

    ``names``: built-in names or references. Raises ValueError for a tool that cannot be used.
    """

    def __init__(self, names: Iterable[str], settings: HarnessSettings) -> None:
        self.settings = settings
        self.tools: dict[str, Tool] = {}
        self._schemas: list[dict[str, Any]] = []
        for name in names:
            kind = load_tool(name)
            if kind.name in self.tools:
                raise ValueError(f"harness.tools: {name!r} is the second tool that the policy calls {kind.name!r}")
            try:
                tool = kind(settings)
                schema = tool.schema()
                json.dumps(schema)
            except Exception as error:  # whatever a user's class raises
                raise ValueError(f"harness.tools: {name!r} has no schema: {type(error).__name__}: {error}") from error
            self.tools[kind.name] = tool
            self._schemas.append(schema)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas, in the order of the names; always the same list object."""
        return self._schemas

    @property
    def hash(self) -> str:
        return _digest(self._schemas)

    def read_only(self, name: str) -> bool:
        return name in self.tools and self.tools[name].read_only

    def parse(self, name: str, arguments: str) -> tuple[Tool, Arguments]:
        """Find the tool and check its arguments. Raises ToolError: ``unknown_tool``, ``invalid_arguments``, or
        ``internal_error`` if the check itself fails."""
        tool = self.tools.get(name)
        if tool is None:
            raise ToolError("unknown_tool", f"{clean(name)[:80]!r}; tools: {', '.join(self.tools)}")
        try:
            return tool, tool.Args.model_validate_json(arguments or "{}")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ToolError("invalid_arguments", f"{where}: {first['msg']}" if where else first["msg"]) from None
        except Exception:  # whatever a validator of the user raises; an episode must not be masked for it
            log.exception("the arguments of tool %s could not be checked: %s", name, clean(arguments))
            raise ToolError("internal_error", f"{name} failed; try another way") from None

    async def run(self, tool: Tool, args: Arguments, session: Session) -> ToolResult:
        """Run one call. Errors of the policy or its code become results; raises only SandboxError and BoxGone."""
        try:
            return _checked(await tool.run(args, session))
        except ToolError as error:
            return self.error(error)
        except (SandboxError, BoxGone):
            raise
        except BoxError as error:
            kind = next((kind for cause, kind in OS_ERRORS if isinstance(error, cause)), "io_error")
            path = str(getattr(args, "path", ""))
            return self.error(ToolError(kind, path if kind != "io_error" else f"{error.strerror}: {path}"))
        except OSError as error:  # not raised by a box, so this machine failed
            raise SandboxError(f"this machine cannot run {tool.name}: {error}") from error
        except Exception:
            log.exception("tool %s failed on %r", tool.name, args)
            return self.error(ToolError("internal_error", f"{tool.name} failed; try another way"))

    def error(self, error: ToolError) -> ToolResult:
        """Return the result with which a failed call is answered."""
        text = error_text(error.kind, clean(error.detail), self.settings.output.error_detail)
        return ToolResult(text, error.kind)


def _checked(result: object) -> ToolResult:
    """Return a tool's result as well-formed text. Raises TypeError for anything else that a user's tool returned."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"run must return a ToolResult, and returned {type(result).__name__}")
    if not isinstance(result.text, str) or not isinstance(result.error, str | None):
        raise TypeError(
            f"text and error of a ToolResult must be str, and are {result.text!r:.80}, {result.error!r:.80}"
        )
    if not isinstance(result.exit_code, int | None):
        raise TypeError(f"exit_code of a ToolResult must be int, and is {result.exit_code!r:.80}")
    return ToolResult(clean(result.text), result.error, result.exit_code)


def harness_hash(settings: HarnessSettings, program: Sequence[str] = ()) -> str:
    """Hash everything about the harness that a policy can notice: tools, schemas, prompts, limits, summaries.

    ``program``: digests of the files of ``harness.program``, so their place on this machine does not count. For a tool
    of the user's own, the source of its module is included. Raises ValueError if the source cannot be read.
    """
    from .prompt import system_prompt

    registry = ToolRegistry(settings.tools, settings)
    sources = [_source_digest(name) for name in settings.tools if is_reference(name)]
    parts = [registry.schemas(), system_prompt(settings), _noticed(settings), *sources, *program, _FORMAT]
    return _digest(parts)


def check_tools(settings: HarnessSettings) -> HarnessSettings:
    """Load the tools of a recipe. Raises ValueError for one that cannot be used."""
    harness_hash(settings)
    return settings


def _source_digest(reference: str) -> str:
    """Hash the whole module that defines a tool, because its helpers affect the answers as much as its class."""
    module = sys.modules[load_tool(reference).__module__]
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise ValueError(f"harness.tools: the source of {reference!r}, part of the harness hash: {error}") from None
    return hashlib.sha256(source.encode()).hexdigest()


def _noticed(settings: HarnessSettings) -> dict[str, Any]:
    """Return the settings as data, without the folder of ``harness.program`` and settings that only save time."""
    return settings.model_dump(mode="json", exclude={"program": {"folder"}, "reuse_test_results": True})


_FORMAT = 2
"""Version, increased by hand when a tool's answers change although its schema does not."""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
