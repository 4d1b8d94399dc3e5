"""A policy asked to remove features, one after the other, each time from the whole package in a box of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.harness.loop import run_episode
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.record.atomic import write_whole
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError
from woodshed.tasks.generators.packages.build import Progress
from woodshed.tasks.generators.packages.candidates import Candidate
from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.generators.packages.rejected import Rejected
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.generators.packages.settings import PackageTaskSettings
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.install.place import PolicyPlace
from woodshed.tasks.install.roles import Opener
from woodshed.tasks.sources.factory import build_from_sources
from woodshed.tasks.sources.pin import Wishes

from .removal import removal_of, without_caches

HARNESS = HarnessSettings(
    tools=("read_file", "write_file", "edit_file", "grep", "glob", "list_dir", "run_command", "finish"),
    limits=LimitSettings(turns=60, wall_seconds=1800.0),
)
"""The agent that removes features; a caller may give another."""

_PROMPT = """\
Remove one feature from this package, so that somebody else can be asked to write it again.

Choose something that the tests in {tests} exercise and that is worth writing: a function, the methods of a class, or
better a feature that spans several functions in several modules. Delete the bodies and leave
`raise NotImplementedError` in their places; signatures and docstrings may stay. Private helpers that only the feature
uses may go entirely. Change nothing else: no tests, no other files, no code of your own.
Afterwards the package must still import, some of the tests must fail because of it, and the others must still pass:
run them with `python3 -m pytest -q`. Then call finish.
"""


@dataclass(frozen=True)
class Proposer:
    """``open`` gives an endpoint for each attempt; ``folder`` keeps what was handed in, so that a build that was
    stopped asks for nothing twice."""

    open: Opener
    folder: Path
    harness: HarnessSettings = HARNESS

    async def __call__(self, trial: Trial) -> AsyncGenerator[Candidate | Rejected, None]:
        """Candidates, and the reasons where an attempt is none, up to the attempts that the settings allow."""
        if trial.package.language:
            raise PackageError(f"{trial.package.name}: a policy removes features of Python packages only")
        done: list[str] = []
        for number in range(trial.settings.tasks_per_package * trial.settings.attempts):
            place = self.folder / f".{trial.package.name}-removals" / f"{number:04d}.json"
            left = _kept(place)
            if left is None:
                left = await self._attempt(trial, number, done)
                write_whole(place, json.dumps({name: data.decode("latin-1") for name, data in left.items()}))
            try:
                candidate = removal_of(trial, {**trial.workspace, **left})
                if candidate.function.name in done:
                    raise Rejected("this was removed before")
            except Rejected as reason:
                yield reason
                continue
            done.append(candidate.function.name)
            yield candidate

    async def _attempt(self, trial: Trial, number: int, done: list[str]) -> dict[str, bytes]:
        """The files that one run of the agent left changed; a file that is gone counts as empty."""
        prompt = _PROMPT.format(tests=", ".join(trial.package.tests))
        if done:
            prompt += f"\nAlready taken, choose another: {', '.join(done)}.\n"
        box = await trial.fork()
        try:
            await run_episode(prompt, box, await self.open(f"remove-{trial.package.name}-{number}"), self.harness)
            try:
                left = without_caches(await box.get(["**/*"]))
            except BoxError:
                return dict.fromkeys(trial.workspace, b"")
        finally:
            await box.close()
        gone = {name: b"" for name in trial.workspace if name not in left}
        return gone | {name: data for name, data in left.items() if trial.workspace.get(name) != data}


def _kept(path: Path) -> dict[str, bytes] | None:
    try:
        return {name: text.encode("latin-1") for name, text in json.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return None


async def removals(
    sources: Sequence[str], settings: PackageTaskSettings, backend: Backend, layers: LayerStore, out: Path,
    policy: PolicyPlace, progress: Progress | None = None, *, wishes: Wishes | None = None,
    report: BuildReport | None = None,
) -> list[Task]:  # fmt: skip
    """``build_from_sources`` with a policy that says what is removed; raises as that and EndpointLost."""
    try:
        return await build_from_sources(
            sources, settings, backend, layers, out, progress, wishes=wishes, report=report,
            propose=Proposer(policy.open, out),
        )  # fmt: skip
    finally:
        await policy.close()
