"""A tool of your own: the outline of a Python file. Put this file into the folder you start runs from:

    [harness]
    tools = ["read_file", "edit_file", "run_tests", "finish", "custom_tool:Outline"]

and `woodshed run my-recipe.toml`. The policy sees the name, the description and the arguments. They are part of the
harness hash, and so is the source of this file: trajectories of different versions of a tool are not compared.
"""

import re

from pydantic import Field

from woodshed import Arguments, Session, Tool, ToolError, ToolResult

DEFINITION = re.compile(r"\s*(async\s+def|def|class)\s+\w+")


class OutlineArguments(Arguments):
    path: str = Field(description="a Python file")


class Outline(Tool):
    name = "outline"
    Args = OutlineArguments
    read_only = True  # changes nothing in the box, so calls that follow each other run at the same time

    def description(self) -> str:
        return "List the classes and functions of a Python file with their line numbers."

    async def run(self, args: OutlineArguments, session: Session) -> ToolResult:
        """Work in `session.box` only: what the policy asks for must not reach this machine."""
        text = await session.read_text(session.path(args.path))  # a path outside the workspace is an error
        lines = [f"{number}\t{line}" for number, line in enumerate(text.splitlines(), 1) if DEFINITION.match(line)]
        if not lines:
            raise ToolError("no_match", f"{args.path} defines nothing")  # the policy reads this as the result
        return ToolResult("\n".join(lines)[: self.settings.output.chars])
