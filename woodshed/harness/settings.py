"""Settings of the harness. They enter the harness hash: trajectories with equal hashes had the same agent."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from woodshed.record.settings import Settings, is_reference

ALL_TOOLS = (
    "read_file",
    "edit_file",
    "write_file",
    "delete_file",
    "grep",
    "glob",
    "list_dir",
    "run_command",
    "run_tests",
    "read_lints",
    "todo_write",
    "finish",
)
"""Default tools. ``edit_line``, ``edit_words`` and ``undo`` are left out; they are meant for tiny policies."""

COMPACT_TOOLS = ("read_file", "edit_line", "edit_words", "undo", "run_tests", "finish")
"""Tools for a tiny policy with the ``compact`` chat format."""

FILE_TOOLS = {*ALL_TOOLS, *COMPACT_TOOLS} - {"run_command"}
"""Built-in tools that change only files of the workspace in a box, apart from what the tests themselves do."""


class LimitSettings(Settings):
    """Limits that end an episode."""

    turns: int = Field(default=100, ge=1)
    """Maximum number of replies of the policy (summaries not counted)."""
    context_tokens: int = Field(default=0, ge=0)
    """Tokens of one context (prompt plus reply, as the endpoint counts them) at which the episode ends, and up to which
    a reply is sampled; 0: the endpoint's own limit. What the reply before did not know, a context's first prompt and
    tool results, may exceed it by their own size; for external programs the gateway refuses such a request."""
    sampled_tokens: int = Field(default=0, ge=0)
    """Maximum tokens sampled in the whole episode, summaries included; 0 is no limit."""
    turn_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens sampled in one reply."""
    wall_seconds: float = Field(default=1800.0, gt=0)
    """Maximum wall time of an episode; beyond it the status is ``timeout``."""
    bad_turns: int = Field(default=3, ge=1)
    """Consecutive turns without a well-formed call that end the episode with ``repeated_format_error``."""
    calls_per_turn: int = Field(default=16, ge=1)
    """Maximum number of calls of one reply that run; further ones are answered with an error."""


class OutputSettings(Settings):
    """Limits and layout of tool results. Longer text keeps its head and tail and says how much was left out."""

    separator: str = "\t"
    """Text between line number and line in ``read_file``. If it is empty, every line starts with a newline."""
    file_lines: int = Field(default=500, ge=1)
    """Maximum lines of one ``read_file`` result."""
    chars: int = Field(default=10_000, ge=40)
    """Maximum characters of one tool result."""
    test_chars: int = Field(default=10_000, ge=40)
    """Maximum characters of one ``run_tests`` result."""
    matches: int = Field(default=100, ge=1)
    """Maximum lines or paths in a result of ``grep``, ``glob`` and ``list_dir``."""
    line_chars: int = Field(default=500, ge=20)
    """Maximum characters of one line in a ``grep`` result."""
    snippet: bool = True
    """Answer an edit with the lines around it; if false, with ``ok``."""
    error_detail: bool = True
    """Say in errors what to do; if false, errors are only the type in words (``error: not found``)."""


class CommandSettings(Settings):
    """Running programs in the sandbox."""

    timeout: float = Field(default=60.0, gt=0)
    """Time limit of ``run_command`` in seconds, unless the call asks for another."""
    max_timeout: float = Field(default=600.0, gt=0)
    """Maximum seconds that a call may ask for."""
    test_timeout: float = Field(default=60.0, gt=0)
    """Time limit of ``run_tests`` in seconds."""
    persistent_cwd: bool = True
    """Start each ``run_command`` in the final working directory of the one before."""


REQUEST = (
    "Summarize our conversation so far, so that you can continue from the summary alone: the goal, what was done, what "
    "was learned, what is still broken, what to do next, the files that matter. Do not call a tool."
)


class SummarySettings(Settings):
    """Self-summarisation: the policy condenses its own context (Composer 2 report, 4.1)."""

    trigger_tokens: int = Field(default=0, ge=0)
    """Context length in tokens at which a summary is requested; 0 turns it off."""
    request: str = Field(default=REQUEST, min_length=1)
    """The message that asks for a summary. One word is enough for a tiny policy, which learns its meaning from
    demonstrations."""
    max_tokens: int = Field(default=2048, ge=1)
    """Maximum tokens sampled for one summary, thinking included."""
    max_count: int = Field(default=16, ge=1)
    """Maximum number of summaries of one episode; after them the context limit applies."""


class RetrySettings(Settings):
    """Retries of failed requests from the harness to the endpoint."""

    attempts: int = Field(default=5, ge=1)
    """Maximum tries of one request, after which the endpoint counts as lost."""
    first_delay: float = Field(default=0.2, ge=0)
    """Seconds before the second try; each further wait is twice as long."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Time limit of one request in seconds."""


_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\[\]]*\])?\s*([<>=!~][^@:/;]*)?")


class ProgramSettings(Settings):
    """An unmodified external program as the agent. It runs in the box; see docs/programs.md."""

    command: str = Field(min_length=1)
    """Shell command, run in ``workdir``. Its environment names the gateway (OPENAI_BASE_URL and OPENAI_API_KEY, or
    ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY), the model (WOODSHED_MODEL), the task (WOODSHED_TASK) and a file with the
    task (WOODSHED_TASK_FILE). When it ends, the files in the box are graded."""
    packages: tuple[str, ...] = ()
    """Python requirements, such as ``mini-swe-agent==2.4.6``. pip unpacks their wheels and runs none of their code;
    their scripts are on the command's PATH."""
    folder: Path | None = None
    """Folder whose content is at /opt/harness in the box, for agents that are not Python packages. Make its programs
    executable."""
    env: dict[str, str] = {}
    """Additional environment variables."""

    @field_validator("packages")
    @classmethod
    def _wheels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not (text.endswith(".whl") or _REQUIREMENT.fullmatch(text)):
                raise ValueError(
                    f"{text!r} is neither NAME or NAME==VERSION nor a .whl file; what pip would have to build could "
                    "run code on this machine: build a wheel yourself, or give a folder"
                )
        return value


class HarnessSettings(Settings):
    """The agent, as the policy sees it."""

    program: ProgramSettings | None = None
    """An external program instead of the built-in agent; of the other fields only ``workdir`` and ``limits`` apply."""

    tools: tuple[str, ...] = ALL_TOOLS
    """Tools that the policy may call, in the order in which it sees them: built-in names, or ``"my_module:MyTool"`` for
    a tool of your own (a subclass of ``woodshed.Tool``)."""
    system_prompt: str | None = None
    """Replaces the built-in system prompt; an empty string sends no system message."""
    workdir: str = "/workspace"
    """Folder of the task's files in the box; paths in tool calls are confined to it."""
    plain_message_ends: bool = True
    """Take a reply without a call as the final message; if false, it is answered with an error."""
    compact_schemas: bool = True
    """Add ``x-compact`` to the schemas, which the ``compact`` chat format needs. Turn off if a server refuses it."""
    check_syntax: bool = True
    """Reject edits that break the syntax of a Python file that parsed before."""
    limits: LimitSettings = LimitSettings()
    """Limits that end an episode."""
    output: OutputSettings = OutputSettings()
    """Limits and layout of tool results."""
    command: CommandSettings = CommandSettings()
    """Running programs in the sandbox."""
    summary: SummarySettings = SummarySettings()
    """Self-summarisation."""
    reuse_test_results: bool = False
    """Answer ``run_tests`` with the output of an earlier run (of any rollout) of the same task on equal files of the
    workspace. Only for tests that depend on nothing else. Refused with tools that run commands, because then a box has
    more state than its files. Not part of the harness hash."""

    @model_validator(mode="after")
    def _check(self) -> HarnessSettings:
        if self.program is not None and self.program.packages and self.program.folder is not None:
            raise ValueError("harness.program: packages and folder both fill /opt/harness; give one of them")
        known = {*ALL_TOOLS, *COMPACT_TOOLS}
        unknown = [name for name in self.tools if name not in known and not is_reference(name)]
        if unknown:
            raise ValueError(
                f"harness.tools: unknown {unknown}; known: {sorted(known)}, or 'my_module:MyTool' for one of your own"
            )
        if len(set(self.tools)) != len(self.tools):
            raise ValueError("harness.tools: a tool is named twice")
        if not self.tools:
            raise ValueError("harness.tools is empty; name at least one tool")
        if "finish" not in self.tools and not self.plain_message_ends:
            raise ValueError("harness: the agent could never end; add the tool finish or set plain_message_ends = true")
        if self.reuse_test_results and (other := sorted(set(self.tools) - FILE_TOOLS)):
            raise ValueError(
                f"harness.reuse_test_results: the state of a box is more than its files with the tools "
                f"{other}; turn it off, or use {', '.join(sorted(FILE_TOOLS))} only"
            )
        most, trigger = self.limits.context_tokens, self.summary.trigger_tokens
        if most and trigger >= most:
            raise ValueError(
                f"harness.summary.trigger_tokens is {trigger}, and a context ends at harness.limits.context_tokens = "
                f"{most}: lower the one or raise the other"
            )
        if not self.workdir.startswith("/"):
            raise ValueError(f"harness.workdir must be absolute, got {self.workdir!r}")
        return self
