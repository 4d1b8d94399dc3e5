"""Options that several commands share, with the same meaning and the same help text."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from woodshed.tasks.pipeline.pin import Wishes

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
ParallelOption = Annotated[int | None, typer.Option(min=1, help="Boxes at the same time; default: one per core")]
BackendOption = Annotated[str, typer.Option(help="Sandbox backend")]
TestsOption = Annotated[list[str] | None, typer.Option(help="Where the tests are, if they are not found")]
CodeOption = Annotated[list[str] | None, typer.Option(help="Where the code under test is, if it is not found")]
NeedsOption = Annotated[list[str] | None, typer.Option(help="Package that the tests need and the source does not name")]
RootOption = Annotated[list[str] | None, typer.Option(help="Import root, such as packages/core/src; repeatable")]
MarkersOption = Annotated[
    str, typer.Option("--markers", "-m", help="Which tests, as for pytest's -m; default: what the project says")
]
SuiteSecondsOption = Annotated[float, typer.Option(min=1, help="Time limit of one run of a whole suite")]
InstallOption = Annotated[Path | None, typer.Option(help="Folder of installs, as `tasks install` makes it")]


def paths_of(paths: list[str] | None) -> tuple[str, ...]:
    """Return paths in a repository as its files are named: ``tests`` for ``./tests/``, as a shell may complete it."""
    return tuple(PurePosixPath(path).as_posix() for path in paths or ())


def wishes_of(
    *,
    code: list[str] | None,
    tests: list[str] | None,
    needs: list[str] | None,
    install: Path | None,
    root: list[str] | None,
    markers: str,
) -> Wishes:
    """Return the user's options that complement what is found in a source."""
    from woodshed.tasks.pipeline.pin import Wishes

    return Wishes(paths_of(code), paths_of(tests), tuple(needs or ()), install, paths_of(root), markers)
