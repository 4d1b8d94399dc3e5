"""A goal: a command that works once a repository is installed, and the output that it must have."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_MAX_COMMAND, _MAX_PATTERN = 500, 300


@dataclass(frozen=True)
class Goal:
    """``command`` is a shell line for the root of the repository; ``expect`` describes its output in words.

    It is reached if the command ends with one of ``exit_codes``, ``pattern`` (a regular expression, lines matched
    by ``^`` and ``$``) is found in the output and, with ``passing_share`` above 0, the test runner's counts report at
    least one passed test and at least that share of all that ran.
    """

    command: str
    expect: str
    pattern: str
    exit_codes: tuple[int, ...] = (0,)
    passing_share: float = 0.0

    def __post_init__(self) -> None:
        for name, text, most in (("command", self.command, _MAX_COMMAND), ("pattern", self.pattern, _MAX_PATTERN)):
            if not isinstance(text, str) or not text.strip() or len(text) > most or "\0" in text:
                raise ValueError(f"{name} must be a text of 1 to {most} characters, got {str(text)[:60]!r}")
        if not isinstance(self.expect, str) or len(self.expect.split()) < 3:
            raise ValueError(f"expect must describe the output in words, got {str(self.expect)[:60]!r}")
        codes = self.exit_codes
        if not codes or not all(type(code) is int and 0 <= code < 256 for code in codes):
            raise ValueError(f"exit_codes must be numbers of 0 to 255, got {codes!r}")
        share = self.passing_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"passing_share must be 0 to 1, got {share!r}")

    @property
    def codes(self) -> str:
        """The exit codes as readable text."""
        low, high = min(self.exit_codes), max(self.exit_codes)
        if sorted(self.exit_codes) == list(range(low, high + 1)) and high - low > 2:
            return f"{low} to {high}"
        return " or ".join(map(str, self.exit_codes))

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "exit_codes": list(self.exit_codes)}


def goal_of(entry: object, where: str) -> Goal:
    """Parse a goal from a table. Raises ValueError that names ``where`` and the field."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: must be an object with command, expect, pattern, exit_codes")
    known = {"command", "expect", "pattern", "exit_codes", "passing_share"}
    if unknown := sorted(set(entry) - known):
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if missing := sorted({"command", "expect", "pattern"} - set(entry)):
        raise ValueError(f"{where}: {missing[0]} is missing")
    codes = entry.get("exit_codes", [0])
    try:
        return Goal(**{**entry, "exit_codes": tuple(codes) if isinstance(codes, list) else (codes,)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
