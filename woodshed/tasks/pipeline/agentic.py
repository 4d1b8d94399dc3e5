"""Tasks made by a policy: it removes a feature of a package, which then goes through the gates of a generated deletion.

The policy is asked repeatedly, each time with the whole package in a new box. What it leaves is read as the removal of
one feature, or rejected with the reason.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from woodshed.harness.loop import run_episode
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.record.atomic import write_whole
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.packages.build import Progress
from woodshed.tasks.generators.packages.report import BuildReport, Rejected
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.install.command import PolicyPlace
from woodshed.tasks.install.roles import Opener
from woodshed.tasks.languages.python import function_spans
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import CoveredFunction
from woodshed.tasks.packages.workspace import is_source, is_test
from woodshed.tasks.settings import PackageTaskSettings

from .build import build_from_sources
from .pin import Wishes

KIND, FEATURE, DETAIL = "delete_function", "delete_feature", "agentic_delete"

_PLACEHOLDERS = {"raise NotImplementedError", "raise NotImplementedError()", "pass", "..."}
_CACHES = {"__pycache__", ".pytest_cache", ".hypothesis"}


def removal_of(trial: Trial, left: Mapping[str, bytes]) -> Candidate:
    """Interpret ``left``, the whole workspace afterwards, as a removal. Raises Rejected if it is not; runs no code."""
    before, after = trial.workspace, without_caches(left)
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    if not changed:
        raise Rejected("nothing was removed")
    if any(is_test(trial.package, name) for name in changed):
        raise Rejected("the tests were changed")
    if any(name not in before or name not in after for name in changed):
        raise Rejected("files were added or deleted")
    if not all(is_source(trial.package, name) for name in changed):
        raise Rejected("what was changed is not code")
    public: list[CoveredFunction] = []
    private: list[CoveredFunction] = []
    for module in changed:
        old, new = _text(before[module]), _text(after[module])
        _only_less(old, new)
        asked, helpers = _feature(trial, module, old, new)
        public += asked
        private += helpers
    if not public and not private:
        raise Rejected("no test runs what was removed")
    function, *also = [*sorted(public, key=lambda f: -len(f.tests)), *private]
    split = trial.splits.of(function)
    if any(trial.splits.of(f) != split for f in also if f.statements >= 2):
        raise Rejected("it changes functions of both splits")
    files = {module: after[module] for module in changed}
    kind = KIND if len(public) <= 1 and len(changed) == 1 else FEATURE
    return Candidate(
        package=trial.package.name,
        function=function,
        kind=kind,
        detail=DETAIL,
        files=files,
        line=0,
        split=split,
        also=tuple(also),
    )


def without_caches(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """``files`` without caches and bytecode, which test runs leave behind."""
    return {n: d for n, d in files.items() if not _CACHES & set(PurePosixPath(n).parts) and not n.endswith(".pyc")}


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected("the module is not text any more") from None
    if "\r" in text:
        raise Rejected("the module has carriage returns")
    return text


def _only_less(old: str, new: str) -> None:
    """Raise Rejected if ``new`` adds lines, except placeholders: a removal adds no bug and no hint."""
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    lines = new.split("\n")
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind in ("insert", "replace") and any(
            line.strip() and line.strip() not in _PLACEHOLDERS for line in lines[start:end]
        ):
            raise Rejected("code was added")


def _feature(trial: Trial, module: str, old: str, new: str) -> tuple[list[CoveredFunction], list[CoveredFunction]]:
    """Return (public functions of the module that changed and that tests run, private ones)."""
    before, after = _functions(old), _functions(new)
    changed = {name for name, text in before.items() if after.get(name) != text}
    covered = [f for f in trial.suite.functions if f.module == module and f.name in changed]
    public = [f for f in covered if not f.name.rpartition(".")[2].startswith("_")]
    return public, [f for f in covered if f not in public]


def _functions(source: str) -> dict[str, str]:
    try:
        spans = function_spans(source)
    except SyntaxError:
        raise Rejected("the module does not parse any more") from None
    lines = source.split("\n")
    return {span.name: "\n".join(lines[span.line - 1 : span.end_line]) for span in spans}


HARNESS = HarnessSettings(
    tools=("read_file", "write_file", "edit_file", "grep", "glob", "list_dir", "run_command", "finish"),
    limits=LimitSettings(turns=60, wall_seconds=1800.0),
)
"""Default settings of the agent that removes features."""

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
    """Has a policy propose removals. ``open`` opens an endpoint for each attempt; ``folder`` stores what the policy
    left, so that a build that was stopped does not ask again."""

    open: Opener
    folder: Path
    harness: HarnessSettings = HARNESS

    async def __call__(self, trial: Trial) -> AsyncGenerator[Candidate | Rejected, None]:
        """Yield a candidate, or the reason of its rejection, for each attempt that the settings allow."""
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
        """The files that one run of the agent changed; a deleted file counts as empty."""
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
    sources: Sequence[str],
    settings: PackageTaskSettings,
    backend: Backend,
    layers: LayerStore,
    out: Path,
    policy: PolicyPlace,
    progress: Progress | None = None,
    *,
    wishes: Wishes | None = None,
    report: BuildReport | None = None,
) -> list[Task]:
    """Run ``build_from_sources`` with a policy that proposes removals. Raises the same errors, and EndpointLost."""
    try:
        return await build_from_sources(
            sources=sources,
            settings=settings,
            backend=backend,
            layers=layers,
            out=out,
            progress=progress,
            wishes=wishes,
            report=report,
            propose=Proposer(policy.open, out),
        )
    finally:
        await policy.close()
