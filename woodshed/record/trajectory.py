"""The common record of everything a policy does: rollout, benchmark run or live conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .segment import Segment

Source = Literal["train", "eval", "live"]
ExitStatus = Literal["submitted", "limit", "repeated_format_error", "timeout", "infra_error"]


@dataclass
class ToolEvent:
    """One tool call as the harness saw it.

    ``error`` is None or a type from ``woodshed.harness.errors`` (``unknown_tool``, ``invalid_arguments``, ...);
    ``raw`` keeps the model's own text if it could not be parsed; ``seconds`` is wall time in the sandbox. ``exit_code``
    is that of the command or test program which the call ran, negative for a signal; None if there is none, as in
    records of external programs.
    """

    turn: int
    name: str
    arguments: dict[str, Any] | None
    result: str
    error: str | None = None
    raw: str | None = None
    seconds: float = 0.0
    exit_code: int | None = None


@dataclass
class Outcome:
    """Verified result of grading in a clean box; never inferred from the agent's own output.

    ``tests`` maps each required test id to ``passed``, ``failed``, ``error``, ``skipped`` or ``missing``.
    """

    resolved: bool
    tests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    detail: str = ""


@dataclass
class Effort:
    """Counts behind the effort penalty (Composer 2 report, section 4.2) and the behaviour plots."""

    turns: int = 0
    tool_calls: int = 0
    invalid_calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    thinking_tokens: int = 0
    tool_call_tokens: int = 0
    tool_output_tokens: int = 0
    final_message_tokens: int = 0
    """Tokens, without thinking, of replies without calls, of those that only call ``finish``, and of summaries."""
    test_runs: int = 0
    edits: int = 0
    summaries: int = 0
    summary_tokens: int = 0
    """Sampled tokens of the replies that are summaries, thinking included; the three classes above have them too."""


@dataclass(frozen=True)
class ReplyUsage:
    """Usage data of one reply of an episode, from the policy server. ``context``: number of contexts before that of the
    reply (each summary starts a new one); ``summary``: the reply is a summary. ``prompt_tokens``: length of its context
    before the reply. ``parse_error``: why a call of the reply could not be parsed, else ''. ``asked_seconds``: how much
    of the episode's wall-time limit was used when the reply was requested."""

    context: int
    summary: bool
    prompt_tokens: int
    sampled_tokens: int
    thinking_tokens: int
    finish_reason: str
    parse_error: str = ""
    asked_seconds: float = 0.0


@dataclass(frozen=True)
class Fork:
    """The point at which a trajectory branched off from another one, its ``parent``.

    Both have the same first ``replies`` replies (summaries included) and the same results of their calls. ``tokens``:
    the first segment begins with this number of tokens of the parent's segment ``segment``. They are context in the
    fork: only the parent sampled them.
    """

    parent: str
    replies: int
    segment: int
    tokens: int


@dataclass(frozen=True)
class Trajectory:
    """One agent episode, complete. Frozen: a later step makes a new one (``dataclasses.replace``).

    ``id`` is unique and assigned at dispatch, so that a retry after a crash stores the same record once; ``attempts``
    counts the tries, of which all but the last ended in infrastructure errors. ``messages`` is the conversation in
    OpenAI chat form, for people; the trainer reads only ``segments``. ``rewards`` are named terms; the training reward
    is their sum. ``ignored``: fields of the agent's requests that the gateway accepted without effect, with the number
    of requests that had them. ``changed``: final text of each file of code that the submission changes or adds.
    ``summaries``: (segment, start, end) of the tokens that the policy sampled for each summary of its context.
    ``findings``: what monitors flagged (``monitor``, ``turn``, ``evidence``). ``hints``: what the model of
    ``rl.reader`` would have told the policy (``reply``: number of the policy's message; ``text``); ``ratings``: its
    scores in [-1, 1] by rubric. ``replies``: one entry for each reply; empty for other agents than the built-in one.
    ``fork``: set if the episode continues another one's beginning. Times are Unix seconds.
    """

    id: str
    task: str
    group: str
    source: Source
    harness_hash: str
    policy: str
    status: ExitStatus
    segments: list[Segment] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    events: list[ToolEvent] = field(default_factory=list)
    outcome: Outcome | None = None
    effort: Effort = field(default_factory=Effort)
    changed: dict[str, str] = field(default_factory=dict)
    summaries: list[tuple[int, int, int]] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    hints: list[dict[str, Any]] = field(default_factory=list)
    ratings: dict[str, float] = field(default_factory=dict)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    prefix_breaks: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    attempts: int = 1
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    replies: list[ReplyUsage] = field(default_factory=list)
    fork: Fork | None = None

    @property
    def reward(self) -> float:
        return float(sum(self.rewards.values()))

    @property
    def sampled_tokens(self) -> int:
        return int(sum(int(s.sampled.sum()) for s in self.segments))

    @property
    def flagged(self) -> set[str]:
        """Names of the monitors that found something."""
        return {str(finding["monitor"]) for finding in self.findings}

    def version_range(self) -> tuple[int, int]:
        """Return the smallest and largest PolicyVersion that sampled a token; (-1, -1) if none was sampled."""
        seen = [s.versions[s.sampled] for s in self.segments if s.sampled.any()]
        if not seen:
            return (-1, -1)
        return (min(int(v.min()) for v in seen), max(int(v.max()) for v in seen))
