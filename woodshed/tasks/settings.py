"""Settings of tasks: synthetic ones, those of a source of the user's own, and those built from packages."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import Field, field_validator

from woodshed.record.settings import Settings


class SyntheticSettings(Settings):
    """How many synthetic tasks of each split are drawn (``tasks/generators/synthetic``)."""

    train: int = Field(default=1_000, ge=0)
    """Synthetic tasks for RL. A prompt is never trained twice, so at least rl.steps x rl.groups_per_step."""

    sft: int = Field(default=2_000, ge=0)
    """Synthetic tasks for demonstrations. They share their semantic keys with pretraining, and with nothing else."""

    dev: int = Field(default=64, ge=0)
    """Synthetic tasks on which settings are chosen, such as the sampling temperature of each evaluated policy."""

    heldout: int = Field(default=128, ge=0)
    """Synthetic tasks that are only evaluated: all their functions have semantic keys that nothing else has."""

    two_bugs: float = Field(default=0.0, ge=0, le=1)
    """Share of the tasks of ``sft``, ``dev`` and ``heldout`` that have two bugs, in two files. Those of ``train`` have
    one; ``rl.growth`` makes others."""

    seed: int = 0
    """Decides functions, names, inputs and bugs."""

    checked: int = Field(default=16, ge=0)
    """Synthetic tasks of each split that go through every validation gate in sandboxes; the others only through the
    generator's own checks."""


class CustomSettings(Settings):
    """How many tasks of each split a source of the user's own is asked for (``tasks/sources/custom.py``)."""

    train: int = Field(default=100, ge=1)
    """Tasks for demonstrations and RL. A prompt is never trained twice, so at least rl.steps x rl.groups_per_step."""

    dev: int = Field(default=16, ge=0)
    """Tasks on which the sampling temperature is chosen, if the recipe gives several."""

    heldout: int = Field(default=32, ge=1)
    """Tasks that are only evaluated."""

    seed: int = 0
    """Given to the source; for training tasks the run's own ``seed`` is added."""


Kind = Literal["mutate", "delete_function", "delete_class", "delete_methods", "delete_feature", "combine", "replay"]
Prompt = Literal["terse", "located", "pointed"]
Level = Literal["precise", "normal", "terse", "mixed"]


class ReplaySettings(Settings):
    """Which commits the kind ``replay`` tries, and what their tasks show."""

    history: Literal["every", "first_parent"] = "every"
    """Every commit but merges; or the first-parent history, in which a merge is one change with all of its branch, as
    a squashed request is."""

    commits: tuple[str, ...] = ()
    """Only these commits (all 40 digits), whatever their size and message; empty for all that qualify."""

    without: tuple[str, ...] = ()
    """None of these commits (all 40 digits)."""

    since: str = ""
    """Only commits of this date (YYYY-MM-DD, UTC) or later; empty for no limit."""

    max_files: int = Field(default=15, ge=1)
    """Files that a commit may change, of any kind."""

    max_lines: int = Field(default=400, ge=1)
    """Added plus removed lines that a commit may have, of any kind of file."""

    min_lines: int = Field(default=0, ge=0)
    """Added plus removed lines that a commit must have."""

    show_tests: bool = True
    """Show the commit's tests (in the instruction, or in the workspace if they are long) if the message does not state
    what they require. False always hides them; the caller must then find out whether the message suffices."""

    @field_validator("since")
    @classmethod
    def _a_date(cls, value: str) -> str:
        if value:
            try:
                date.fromisoformat(value)
            except ValueError:
                raise ValueError(f"{value!r} is not a date; write YYYY-MM-DD, such as 2026-01-31") from None
        return value


class PackageTaskSettings(Settings):
    """Which packages become tasks, how many, and which of them are held out."""

    folder: str = ""
    """Folder made by ``woodshed tasks build``. Its tasks that are in use (``woodshed tasks refresh``) are taken, and no
    other field of this table applies."""

    packages: tuple[str, ...] = ()
    """Names from the catalogue; empty means all of it."""

    catalogue: str = ""
    """Path of a catalogue file in the form of ``tasks/packages/catalogue.toml``; empty means that one."""

    tasks_per_package: int = Field(default=6, ge=1)
    """Tasks to keep from each package."""

    kinds: tuple[Kind, ...] = ("mutate", "delete_function")
    """Ways to make a task, used in turn. ``mutate``: change one line; ``delete_...``: remove the body of one function,
    of all methods of a class, of a few methods that belong together, or of everything that only one feature needs;
    ``combine``: combine such changes; ``replay``: go back to the parent of a commit (git repositories only)."""

    replay: ReplaySettings = ReplaySettings()
    """Choice of commits for the kind ``replay``."""

    multi_file_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the deletions tried on a package that must touch two files or more: no more deletions of one file are
    tried than that leaves room for. 0 tries all."""

    prompt: Prompt = "terse"
    """Content of the instruction of a ``mutate`` task. ``terse``: the failing test and what it observed; ``located``:
    also the function, its file and where it begins; ``pointed``: also the wrong line. A small policy cannot afford to
    search."""

    level: Level = "precise"
    """Detail of the instruction. ``precise``: interface, place and tests; ``normal``: what is wrong or missing and
    about where; ``terse``: a casual remark; ``mixed``: one of these, drawn for each task."""

    heldout_packages: tuple[str, ...] = ("semver", "itsdangerous")
    """Packages whose functions are never trained on."""

    heldout_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the functions of the other packages that are held out, chosen by a hash of package and function."""

    guard_seconds: float = Field(default=10.0, gt=0.0)
    """Maximum measured time of all required tests of a task. If the whole stable suite fits, all of it is required;
    else tests of the changed modules and of modules that import them come first."""

    max_tests: int = Field(default=1500, ge=1)
    """At most this many required tests for a task, nearest to the change first; every test of a replayed commit is
    among them."""

    test_timeout_sec: float = Field(default=10.0, gt=0.0)
    """Limit of one test; a changed function may loop for ever."""

    suite_seconds: float = Field(default=300.0, gt=0.0)
    """Time limit of one run of a whole suite; each package needs two such runs before its first candidate."""

    attempts: int = Field(default=4, ge=1)
    """Candidates tried for each task wanted before a package is given up."""

    per_function: int = Field(default=1, ge=1)
    """Number of different changes tried on each function; each round tries one on every function."""

    mutants: int = Field(default=0, ge=0)
    """Mutants of the solution that the required tests of each task are tried on; the share that they notice is
    recorded as the task's mutation score. 0 measures none."""

    min_mutation_score: float = Field(default=0.5, ge=0.0, le=1.0)
    """A task whose required tests notice less than this share of at least two mutants is not kept."""

    exploits: int = Field(default=0, ge=0)
    """Exploits tried on one task of each package, after it is built; a task on which one is rewarded is dropped."""

    parallel: int = Field(default=2, ge=1)
    """Boxes that work at the same time."""

    seed: int = 0
    """Decides functions, kinds and changes."""

    @field_validator("kinds")
    @classmethod
    def _something_to_combine(cls, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        if "combine" in kinds and not set(kinds) - {"combine", "replay"}:
            raise ValueError("combine puts other changes together: name a kind of these too, such as mutate")
        return kinds
