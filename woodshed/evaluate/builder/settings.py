"""Settings of a benchmark."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import Field, field_validator

from woodshed.record.settings import Settings
from woodshed.tasks.settings import PackageTaskSettings, ReplaySettings

QueryLevel = Literal["terse", "named", "full"]
"""``terse``: the title of a commit, or a user's first message; ``named``: also the new public names; ``full``: also the
body of the commit's message, or the user's later messages."""


class TraceSettings(Settings):
    """Conditions under which a commit counts as written in a session."""

    min_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Minimum share of the distinctive added lines of a commit that one session must have written."""

    min_lines: int = Field(default=3, ge=1)
    """Minimum number of such lines."""

    days: float = Field(default=30.0, gt=0.0)
    """Maximum number of days between the start of a session and the commit."""


class BenchmarkSettings(Settings):
    """Choice of the commits that become tasks, and of their queries."""

    per_source: int = Field(default=20, ge=1)
    """Number of tasks to keep from the history of each repository, newest commits first."""

    attempts: int = Field(default=8, ge=1)
    """Number of commits tried for each wanted task before a repository is given up."""

    since: str = ""
    """Only commits of this date (YYYY-MM-DD, UTC) or later; empty for no limit."""

    min_lines: int = Field(default=0, ge=0)
    """Minimum number of added plus removed lines of a commit, in all files."""

    max_lines: int = Field(default=1000, ge=1)
    """Maximum number of added plus removed lines of a commit, in all files."""

    max_files: int = Field(default=30, ge=1)
    """Maximum number of files that a commit changes."""

    query: Literal["auto", "terse", "named", "full"] = "auto"
    """Level of the query (``QueryLevel``) that becomes the instruction; ``auto``: the tersest one that states enough
    (``min_stated``), which is recorded."""

    min_stated: float = Field(default=0.8, ge=0.0, le=1.0)
    """Minimum share, of the words that the tests need and that are in no file, that the query must state. A task
    without such a query is left out as ambiguous."""

    readings: int = Field(default=4, ge=2)
    """Number of solutions sampled from the query of each task, if there is an endpoint."""

    min_agreement: float = Field(default=0.0, ge=0.0, le=1.0)
    """Minimum agreement of these solutions on the tests; a task below is left out as ambiguous. 0 leaves none out: a
    weak policy disagrees with itself on clear tasks too."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the readings."""

    max_overlap: float = Field(default=0.5, gt=0.0, le=1.0)
    """Maximum share of the n-grams of the solution, or of its tests, that one text of a corpus may contain."""

    trace: TraceSettings = TraceSettings()
    """Tracing of commits to sessions."""

    suite_seconds: float = Field(default=300.0, gt=0.0)
    """Time limit of one run of a whole suite."""

    parallel: int = Field(default=2, ge=1)
    """Number of boxes at the same time."""

    catalogue: str = ""
    """Path of another catalogue of vetted packages and of the test runner; empty means the built-in one."""

    @field_validator("since")
    @classmethod
    def _a_date(cls, value: str) -> str:
        return checked_date(value)

    def tasks(
        self, *, commits: tuple[str, ...] = (), without: tuple[str, ...] = (), since: str = ""
    ) -> PackageTaskSettings:
        """Return the settings of the task build: every task held out, tests never shown; only ``commits``, if given,
        and none of ``without``."""
        replay = ReplaySettings(
            history="first_parent",
            commits=commits,
            without=without,
            since=since or self.since,
            max_files=self.max_files,
            max_lines=self.max_lines,
            min_lines=self.min_lines,
            show_tests=False,
        )
        return PackageTaskSettings(
            tasks_per_package=max(self.per_source, len(commits)),
            kinds=("replay",),
            replay=replay,
            level="terse",
            heldout_share=1.0,
            heldout_packages=(),
            attempts=self.attempts,
            suite_seconds=self.suite_seconds,
            parallel=self.parallel,
            catalogue=self.catalogue,
        )


def checked_date(value: str) -> str:
    """Return ``value`` if it is empty or an ISO date. Raises ValueError otherwise."""
    if value:
        try:
            date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a date; write YYYY-MM-DD, such as 2026-01-31") from None
    return value
