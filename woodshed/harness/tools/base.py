"""The base class of tools, their OpenAI function schemas, and the bounding of untrusted bytes to well-formed text.

A tool is a subclass of ``Tool``. A recipe names it in ``harness.tools``: the built-in ones by name, a class of your own
by reference (``"my_module:MyTool"``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from woodshed.harness.settings import HarnessSettings

if TYPE_CHECKING:
    from woodshed.harness.session import Session


@dataclass(frozen=True)
class ToolResult:
    """Result of a call. ``text`` is what the policy reads; ``error``: None or a kind of ``woodshed.harness.errors``;
    ``exit_code``: that of the program that the call ran, for the record."""

    text: str
    error: str | None = None
    exit_code: int | None = None


class Arguments(BaseModel):
    """Base of argument models: unknown arguments are errors; a number written as a string is accepted."""

    model_config = ConfigDict(extra="forbid")


class NoArguments(Arguments):
    pass


class Tool(ABC):
    """One tool under one HarnessSettings. Stateless: everything that an episode changes is in the Session.

    ``name`` is what the policy calls it by. ``verb`` and ``template`` are its rendering in the ``compact`` chat format.
    Tools with ``read_only`` change nothing in the box and may run concurrently with each other.
    """

    name: ClassVar[str]
    verb: ClassVar[str | None] = None
    template: ClassVar[str] = ""
    read_only: ClassVar[bool] = False
    Args: ClassVar[type[Arguments]] = NoArguments

    def __init__(self, settings: HarnessSettings) -> None:
        self.settings = settings

    @abstractmethod
    def description(self) -> str:
        """Return the description of the tool for the policy."""

    @abstractmethod
    async def run(self, args: Any, session: Session) -> ToolResult:
        """Run one call in ``session.box``.

        Raises ToolError, BoxError (both are answered to the policy) and SandboxError (infrastructure). An OSError that
        is not a BoxError counts as a failure of this machine. Any other exception is logged and answered to the policy
        as ``internal_error``.
        """

    def schema(self) -> dict[str, Any]:
        """Return the tool as an OpenAI function schema, plus ``x-compact`` if the settings and the tool have it."""
        parameters = _without_titles(self.Args.model_json_schema())
        parameters.pop("description", None)
        parameters.setdefault("properties", {})
        function = {"name": self.name, "description": self.description(), "parameters": parameters}
        schema: dict[str, Any] = {"type": "function", "function": function}
        if self.settings.compact_schemas and self.verb is not None:
            schema["x-compact"] = {"verb": self.verb, "template": self.template}
        return schema


def _without_titles(node: Any, is_properties: bool = False) -> Any:
    """Remove the ``title`` that pydantic adds to every schema, but keep properties of that name."""
    if isinstance(node, dict):
        items = node.items() if is_properties else ((k, v) for k, v in node.items() if k != "title")
        return {k: _without_titles(v, k == "properties" and not is_properties) for k, v in items}
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    return node


def decode(data: bytes) -> str:
    """Decode UTF-8 with replacement characters; NUL (which many servers refuse) becomes U+FFFD, CRLF becomes LF."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd").replace("\r\n", "\n")


def clean(text: str) -> str:
    """Replace lone surrogates and NUL, so that the text survives UTF-8 on its way to the endpoint."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def clip(text: str, limit: int) -> str:
    """Cut a text to ``limit`` characters: head and tail in equal parts around a line that says how many were cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def clip_lines(lines: list[str], limit: int, total: int | None = None) -> list[str]:
    """Return the first ``limit`` lines, and one that says how many more there are."""
    total = len(lines) if total is None else total
    shown = lines[:limit]
    if total > len(shown):
        shown.append(f"[... {total - len(shown)} more ...]")
    return shown
