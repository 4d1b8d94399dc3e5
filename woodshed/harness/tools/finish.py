"""End the episode and submit the work."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult


class FinishArgs(Arguments):
    message: str = Field(default="", description="what was done, for the user")


class Finish(Tool):
    name = "finish"
    verb = "submit"
    Args = FinishArgs

    def description(self) -> str:
        return "Submit your work. Nothing can be done afterwards."

    async def run(self, args: FinishArgs, session: Session) -> ToolResult:
        session.finished = True
        session.final_message = args.message
        return ToolResult("ok")
