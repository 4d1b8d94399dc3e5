"""Undo the last edit of this session."""

from __future__ import annotations

from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session

from .base import NoArguments, Tool, ToolResult


class Undo(Tool):
    name = "undo"
    verb = "undo"

    def description(self) -> str:
        return "Revert your last edit. May be called again for the one before it."

    async def run(self, args: NoArguments, session: Session) -> ToolResult:
        if not session.edits:
            raise ToolError("nothing_to_undo", "no edit was made")
        edit = session.edits[-1]
        if edit.before is None:
            await session.box.delete(edit.path)
        else:
            await session.box.put({edit.path: edit.before})
        session.edits.pop()
        return ToolResult(f"ok: {edit.path} is as before" if self.settings.output.snippet else "ok")
