"""Try instances of datasets as tasks: apply their patches, install their dependencies, run their listed tests."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.changes.partition import unplanned
from woodshed.tasks.generators.packages.replay import split_of_change
from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.generators.packages.stream import Attempt
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.install.lock import find_install
from woodshed.tasks.languages.node.project import is_node_project
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.packages.workspace import is_source, is_test, workspace_of
from woodshed.tasks.pipeline.pin import Wishes, is_own_module
from woodshed.tasks.sources.layout import find_layout
from woodshed.tasks.sources.obtain import described, project_names
from woodshed.tasks.sources.project import UNKNOWN, Project
from woodshed.tasks.sources.repository import pack, read_repository
from woodshed.tasks.sources.requirements import canonical, distribution_of, missing_modules, needed, optional, wished
from woodshed.tasks.sources.spec import SourceSpec
from woodshed.tasks.validate.splits import HELDOUT

from .instances import Instance
from .listed import Listed, check_ids, phases, run_listed, sort_out
from .needs import Needs
from .patches import apply_patch

_RETRIES = 3


@dataclass(frozen=True)
class State:
    """Files of an instance. ``base``: of the commit; ``before``, ``after``: the broken and the repaired workspace, each
    with its own tests; ``package``: with the layout of both."""

    spec: SourceSpec
    package: Package
    project: Project
    base: Mapping[str, bytes]
    before: dict[str, bytes]
    after: dict[str, bytes]


@dataclass(frozen=True)
class InstanceTrials:
    """Tries the instances of the repository at ``place``. ``like``: an empty trial; each instance gets a copy."""

    place: Path
    out: Path
    like: Trial
    needs: Needs
    wishes: Wishes
    notes: list[str]

    def attempts(self, instances: Iterable[Instance]) -> Iterator[Attempt]:
        for instance in instances:
            yield Attempt(instance.slug, instance.format, partial(self._run, instance))

    async def _run(self, instance: Instance, out: Path) -> Task:
        if not instance.statement.strip():
            raise Rejected("it has no problem statement")
        state = await asyncio.to_thread(self._state, instance)
        changed = _changed(state)
        split = HELDOUT
        if instance.format == "swesmith":
            split = split_of_change(
                unplanned(self.like.settings, state.package.name), changed, state.before, state.after
            )
        tests = check_ids(instance, frozenset(n for n in state.after if is_test(state.package, n)))
        async with self._opened(state, tests) as trial:
            graded = {n: d for n, d in state.before.items() if not is_test(trial.package, n)}
            graded |= {n: d for n, d in trial.workspace.items() if is_test(trial.package, n) or n not in state.after}
            seconds = trial.settings.suite_seconds
            listed = sort_out(instance, await trial.runs(phases(tests, trial.workspace, graded, seconds)))
            return await self._task(instance, state, trial, listed, changed, split, out)

    async def _task(
        self, instance: Instance, state: State, trial: Trial, listed: Listed, changed: list[str], split: str, out: Path
    ) -> Task:
        required = (*listed.fail_to_pass, *listed.pass_to_pass)
        trial.suite = Suite(
            package=trial.package.name, tests=dict(listed.seconds), functions=(), unstable={}, seconds=0.0
        )
        function = CoveredFunction(
            module=changed[0], name=instance.id, line=1, end_line=1, statements=0, tests=required
        )
        added = {
            n: d for n, d in trial.workspace.items() if n not in state.after or n == "pytest.ini"
        }  # files that an install added
        stated = {
            "dataset": instance.format,
            "instance": instance.id,
            "repo": f"{instance.owner}/{instance.name}",
            "base_commit": state.package.commit,
            "pass_to_pass_dropped": str(listed.dropped),
        }
        candidate = Candidate(
            package=trial.package.name,
            function=function,
            kind=instance.format,
            detail=instance.format,
            files={name: state.before.get(name, b"") for name in changed},
            line=0,
            split=split,
            start={**state.before, **added},
            text=instance.statement,
            instance=instance.slug,
            stated=stated,
        )
        task = await trial.run(candidate, out)
        if set(task.info.fail_to_pass) == set(listed.fail_to_pass) and len(task.info.pass_to_pass) == len(
            listed.pass_to_pass
        ):
            return task
        shutil.rmtree(out)
        raise Rejected("results change from run to run")

    def _state(self, instance: Instance) -> State:
        """The files of an instance. Raises Rejected: missing commit, a patch that does not fit, or no known layout."""
        try:
            snapshot = read_repository(str(self.place), instance.commit)
        except PackageError as error:
            raise Rejected(f"its commit is not there: {error}") from None
        base = dict(snapshot.files)
        if instance.format == "swebench":
            repaired = apply_patch(base, instance.patch, "patch")
            before, after = base, apply_patch(repaired, instance.test_patch, "test_patch")
        else:
            before, after = apply_patch(base, instance.patch, "patch"), base
        if is_node_project(after):
            raise Rejected("it is not a Python project")
        place = str(self.place.resolve())  # as `tasks install` names it
        spec = SourceSpec(f"{place}@{snapshot.commit}", "git", place, snapshot.commit)
        project = Project(after)
        try:
            wishes = self.wishes
            layout = find_layout(
                project, sources=wishes.code, tests=wishes.tests, roots=wishes.roots, markers=wishes.markers
            )
            digest = hashlib.sha256(pack(base, spec.name)).hexdigest()
            package = described(_package(instance, snapshot.commit, digest), project, layout)
            laid = [workspace_of(package, files) for files in (before, after)]
        except PackageError as error:
            raise Rejected(f"its layout is not understood: {error}") from None
        if instance.format == "swebench":
            for name in {**after, **repaired}:
                if is_source(package, name) and after.get(name) != repaired.get(name):
                    raise Rejected(f"its test_patch changes code: {name}")
        if package.licence == UNKNOWN:
            note = "no licence was recognised: find it out before you pass these tasks on"
            if note not in self.notes:
                self.notes.append(note)
        return State(spec=spec, package=package, project=project, base=base, before=laid[0], after=laid[1])

    @asynccontextmanager
    async def _opened(self, state: State, tests: tuple[str, ...]) -> AsyncGenerator[Trial, None]:
        """A trial with the repaired workspace and its dependencies; closed at the end."""
        if self.wishes.installs is not None:
            trial = await self._by_install(state, self.wishes.installs)
        else:
            trial = await self._by_rules(state, tests)
        try:
            yield trial
        finally:
            await trial.close()

    async def _by_install(self, state: State, folder: Path) -> Trial:
        try:
            found = await asyncio.to_thread(find_install, folder, state.spec.origin)
        except PackageError as error:
            raise Rejected(f"it has no install: {error}") from None
        package, names = await self.needs.installed(state.package, state.base, found, self.out)
        return self._trial(package, names, workspace_of(package, {**state.after, **found.added}))

    async def _by_rules(self, state: State, tests: tuple[str, ...]) -> Trial:
        """Install what the project states; up to three times, add what tests fail to import and it states elsewhere."""
        own = [state.spec.name, state.package.name.rpartition("__")[2], *project_names(state.spec, state.project)]
        requirements = [*wished(self.wishes.needs), *needed(state.project, canonical(own[-1]))]
        possible = optional(state.project, canonical(own[-1]))
        for attempt in range(_RETRIES + 1):
            package, names = await self.needs.met(state.package, requirements, own)
            trial = self._trial(package, names, state.after)
            if attempt == _RETRIES:
                break
            complete, text = await _complaints(trial, tests)
            missing = [m for m in missing_modules(text) if not is_own_module(m, package)]
            known = {r.name for r in requirements}
            found = [distribution_of(m, possible) for m in missing]
            more = [r for r in found if r is not None and r.name not in known]
            if complete and not more:
                break
            await trial.close()
            if not more:
                said = " ".join(text.split())[-300:]
                advice = f"; nothing provides {', '.join(missing)}: use --needs or --install" if missing else ""
                raise Rejected(f"its tests do not run to their end after the fix: {said}{advice}")
            requirements += more
        return trial

    def _trial(self, package: Package, names: tuple[str, ...], workspace: dict[str, bytes]) -> Trial:
        return replace(
            self.like,
            package=package,
            suite=Suite(package=package.name, tests={}, functions=(), unstable={}, seconds=0.0),
            workspace=workspace,
            layer_names=names,
            kept={},
        )


async def _complaints(trial: Trial, tests: Sequence[str]) -> tuple[bool, str]:
    """Return (whether the ``tests`` run to their end, output of those that fail, or why none is run)."""
    try:
        box = await trial.fork()
        try:
            run = await run_listed(box, trial.package, tests, trial.settings.suite_seconds)
        finally:
            await box.close()
    except BaseException:
        await trial.close()
        raise
    texts = [r.text for r in run.results.values() if r.status in ("failed", "error")]
    return run.complete, "\n".join([run.detail, *texts])


def _package(instance: Instance, commit: str, digest: str) -> Package:
    origin = f"{instance.owner}/{instance.name}@{commit}"
    return Package(
        name=instance.package,
        version=commit[:12],
        file="",
        sha256=digest,
        licence=UNKNOWN,
        sources=(),
        tests=(),
        origin=origin,
        commit=commit,
    )


def _changed(state: State) -> list[str]:
    """Code files that differ between before and after. Raises Rejected if there are none or one is removed."""
    package, before, after = state.package, state.before, state.after
    changed = [n for n in {**before, **after} if is_source(package, n) and before.get(n) != after.get(n)]
    if not changed:
        raise Rejected("its patch changes no code under test")
    if gone := [name for name in changed if name not in after]:
        raise Rejected(f"its solution removes files: {gone[0]}")
    return sorted(changed)
