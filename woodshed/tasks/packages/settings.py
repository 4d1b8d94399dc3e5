"""Settings of tasks built from real packages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.record.settings import Settings

Kind = Literal["mutate", "delete_function"]
Prompt = Literal["terse", "located", "pointed"]


class PackageTaskSettings(Settings):
    """Which packages become tasks, how many, and which of them are held out."""

    folder: str = ""
    """A folder that ``woodshed tasks build`` made: its tasks are used, and nothing else of this table applies."""

    packages: tuple[str, ...] = ()
    """Names from the catalogue; empty means all of it."""

    catalogue: str = ""
    """Path of a catalogue file in the form of ``tasks/packages/catalogue.toml``; empty means that one."""

    tasks_per_package: int = Field(default=6, ge=1)
    """Tasks to keep from each package."""

    kinds: tuple[Kind, ...] = ("mutate", "delete_function")
    """What is done to make a task, in turn: change one line, or remove the body of one function."""

    prompt: Prompt = "terse"
    """What the instruction of a ``mutate`` task tells: the failing test and what it observed; ``located``: also the
    function, its file and where it begins; ``pointed``: also the line that is wrong. A small policy cannot afford to
    search."""

    heldout_packages: tuple[str, ...] = ("semver", "itsdangerous")
    """Packages of which no function is ever trained on."""

    heldout_share: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the functions of the other packages that are held out, chosen by a hash of package and function."""

    max_tests: int = Field(default=40, ge=1)
    """At most this many required tests for a task; every failing one is always among them."""

    max_test_seconds: float = Field(default=3.0, gt=0.0)
    """At most this much measured time of passing tests that cover the function."""

    test_timeout_sec: float = Field(default=10.0, gt=0.0)
    """Limit of one test; a changed function may loop for ever."""

    attempts: int = Field(default=4, ge=1)
    """Candidates tried for each task wanted before a package is given up."""

    parallel: int = Field(default=2, ge=1)
    """Boxes that work at the same time."""

    seed: int = 0
    """Decides functions, kinds and changes."""
