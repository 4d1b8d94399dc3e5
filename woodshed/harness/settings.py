"""Settings of the harness. All of them enter the harness hash: two trajectories with one hash saw the same agent."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from woodshed.record.settings import Settings, is_reference

ALL_TOOLS = (
    "read_file", "edit_file", "write_file", "delete_file", "grep", "glob", "list_dir", "run_command", "run_tests",
    "read_lints", "todo_write", "finish",
)  # fmt: skip
"""What a large policy is given. ``edit_line`` and ``undo`` are meant for tiny policies."""

COMPACT_TOOLS = ("read_file", "edit_line", "undo", "run_tests", "finish")
"""What a tiny policy with the ``compact`` chat format is given."""


class LimitSettings(Settings):
    """When an episode ends without the agent's consent."""

    turns: int = Field(default=100, ge=1)
    """Most replies of the policy (summaries not counted)."""
    context_tokens: int = Field(default=0, ge=0)
    """Most tokens of one context (prompt plus reply, as the endpoint counts them); 0 leaves it to the endpoint."""
    sampled_tokens: int = Field(default=0, ge=0)
    """Most tokens sampled in the whole episode, summaries included; 0 is no limit."""
    turn_tokens: int = Field(default=4096, ge=1)
    """Most tokens sampled in one reply."""
    wall_seconds: float = Field(default=1800.0, gt=0)
    """Wall time of an episode; past it the status is ``timeout``."""
    bad_turns: int = Field(default=3, ge=1)
    """Turns in a row without any well-formed call after which the episode ends with ``repeated_format_error``."""
    calls_per_turn: int = Field(default=16, ge=1)
    """Calls of one reply that are run; further ones are answered with an error."""


class OutputSettings(Settings):
    """Caps and layout of what tools answer. Longer text keeps its head and tail and says how much was left out."""

    separator: str = "\t"
    """Between line number and text in ``read_file``. With an empty one, every line starts with a newline."""
    file_lines: int = Field(default=500, ge=1)
    """Most lines that one ``read_file`` shows."""
    chars: int = Field(default=10_000, ge=40)
    """Most characters of one tool result."""
    test_chars: int = Field(default=10_000, ge=40)
    """Most characters of one ``run_tests`` result."""
    matches: int = Field(default=100, ge=1)
    """Most lines or paths that ``grep``, ``glob`` and ``list_dir`` show."""
    line_chars: int = Field(default=500, ge=20)
    """Most characters of one line that ``grep`` shows."""
    snippet: bool = True
    """After an edit, show the lines around it; otherwise answer ``ok``."""
    error_detail: bool = True
    """Errors say what to do; otherwise they are the bare type in words (``error: not found``)."""


class CommandSettings(Settings):
    """Running programs in the sandbox."""

    timeout: float = Field(default=60.0, gt=0)
    """Seconds that ``run_command`` waits unless the call asks for another time."""
    max_timeout: float = Field(default=600.0, gt=0)
    """Most seconds that a call may ask for."""
    test_timeout: float = Field(default=60.0, gt=0)
    """Seconds that ``run_tests`` waits."""
    persistent_cwd: bool = True
    """The working directory of one ``run_command`` is where the next one starts."""


class SummarySettings(Settings):
    """Self-summarisation: the policy condenses its own context (Composer 2 report, 4.1)."""

    trigger_tokens: int = Field(default=0, ge=0)
    """Context length that asks for a summary; 0 turns it off."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens sampled for one summary, thinking included."""
    max_count: int = Field(default=16, ge=1)
    """Most summaries of one episode; past them the context limit applies."""


class RetrySettings(Settings):
    """Connection failures between harness and endpoint."""

    attempts: int = Field(default=5, ge=1)
    """Tries of one request before the endpoint counts as lost."""
    first_delay: float = Field(default=0.2, ge=0)
    """Seconds before the second try; each further wait is twice as long."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one request may take."""


_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\[\]]*\])?\s*([<>=!~][^@:/;]*)?")


class ProgramSettings(Settings):
    """A coding agent of others, unmodified, in place of ours. It runs in the box; see docs/programs.md."""

    command: str = Field(min_length=1)
    """Shell command, run in ``workdir``. It finds the policy by OPENAI_BASE_URL and OPENAI_API_KEY, or by
    ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, the model's name in WOODSHED_MODEL, its task in WOODSHED_TASK and in the
    file WOODSHED_TASK_FILE. When it ends, what lies in the box is graded."""
    packages: tuple[str, ...] = ()
    """Python requirements, such as ``mini-swe-agent==2.4.6``. pip fetches wheels and runs nothing of them; their
    scripts are on the command's PATH."""
    folder: Path | None = None
    """Folder that the command finds as /opt/harness, for agents that are no Python packages; made executable by you."""
    env: dict[str, str] = {}
    """More environment variables."""

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
    """The agent as a policy sees it."""

    program: ProgramSettings | None = None
    """Another agent in place of ours; of the other fields then only ``workdir`` and ``limits`` apply."""

    tools: tuple[str, ...] = ALL_TOOLS
    """Tools that the policy may call, in the order in which it sees them: built-in names, or ``"my_module:MyTool"`` for
    a tool of your own (a subclass of ``woodshed.Tool``)."""
    system_prompt: str | None = None
    """Replaces the built-in system prompt; an empty string sends no system message."""
    workdir: str = "/workspace"
    """Where the task's files are in the box; paths of tools are confined to it."""
    plain_message_ends: bool = True
    """A reply without a call is the final message; otherwise it is answered with an error."""
    compact_schemas: bool = True
    """Schemas carry ``x-compact``, which the ``compact`` chat format needs. Turn off for servers that refuse it."""
    check_syntax: bool = True
    """Reject edits that break the syntax of a Python file that parsed before."""
    limits: LimitSettings = LimitSettings()
    """When an episode ends."""
    output: OutputSettings = OutputSettings()
    """What tool results look like."""
    command: CommandSettings = CommandSettings()
    """How programs are run."""
    summary: SummarySettings = SummarySettings()
    """Self-summarisation."""

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
        if not self.workdir.startswith("/"):
            raise ValueError(f"harness.workdir must be absolute, got {self.workdir!r}")
        return self
