"""Turn a source into a pinned package: its archive, its layout, the wheels that its tests need, a suite that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.install.lock import Install, find_install
from woodshed.tasks.install.use import installed_package, only_modules, only_wheels
from woodshed.tasks.languages.node.modules import described_node, pin_node
from woodshed.tasks.languages.node.project import NodeProject, is_node_project
from woodshed.tasks.packages.catalogue import Catalogue, Module, Package, Wheel
from woodshed.tasks.packages.dependencies import dependency_layers
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import SUITE_SECONDS, Suite, SuiteError, prepare, unused_tests
from woodshed.tasks.packages.source import fetch
from woodshed.tasks.sources.layout import find_layout
from woodshed.tasks.sources.obtain import described, obtain, project_names
from woodshed.tasks.sources.project import UNKNOWN, Project
from woodshed.tasks.sources.requirements import (
    canonical,
    distribution_of,
    missing_modules,
    needed,
    optional,
    possible_names,
    wished,
)
from woodshed.tasks.sources.resolve import check_import_names, resolve
from woodshed.tasks.sources.spec import SourceSpec

_RETRIES = 3


@dataclass(frozen=True)
class Wishes:
    """Options of the command line that override what is found in a source.

    ``code`` and ``tests``: their paths; ``needs``: further requirements of the tests; ``roots``: import roots;
    ``markers``: the tests that are wanted (an expression, as for ``pytest -m``). ``installs``: a folder of ``woodshed
    tasks install``; the dependencies then come from there alone.
    """

    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    installs: Path | None = None
    roots: tuple[str, ...] = ()
    markers: str = ""


@dataclass(frozen=True)
class Pinned:
    """A pinned package with its groups of wheels or its npm modules; ``notes`` say what was left out."""

    package: Package
    groups: dict[str, Sequence[Wheel]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    modules: tuple[Module, ...] = ()


@dataclass(frozen=True)
class Pinner:
    """Pins the sources of one build. ``base``: the pinned wheels of pytest. ``boxes`` limits the boxes that work.

    ``history``: also keep the commits of git repositories. ``suite_seconds``: limit of one run of a suite.
    """

    out: Path
    base: tuple[Wheel, ...]
    backend: Backend
    layers: LayerStore
    boxes: asyncio.Semaphore
    wishes: Wishes = Wishes()
    cache: Path | None = None
    history: bool = False
    suite_seconds: float = SUITE_SECONDS

    async def pin(self, spec: SourceSpec, name: str) -> Pinned:
        """Pin a source. Raises PackageError, which says what is wrong with the source and what to do."""
        package, files, notes = await asyncio.to_thread(
            obtain, spec, name, self.out, history=self.history, cache=self.cache
        )
        if spec.kind == "npm" or is_node_project(files):
            return await self._node(package, files, notes, self._install(spec))
        project = Project(files)
        wishes = self.wishes
        layout = find_layout(
            project, sources=wishes.code, tests=wishes.tests, roots=wishes.roots, markers=wishes.markers
        )
        package = described(package, project, layout)
        if package.licence == UNKNOWN:
            notes.append("no licence was recognised: find it out before you pass these tasks on")
        found = self._install(spec)
        if found is not None:
            return await self._by_install(package, files, notes, found)
        own = [name, *filter(None, project_names(spec, project))]
        requirements = [*wished(self.wishes.needs), *needed(project, canonical(own[-1]))]
        possible = optional(project, canonical(own[-1]))
        for attempt in range(_RETRIES + 1):
            resolved = await asyncio.to_thread(resolve, requirements, self.base, without=own)
            made = replace(package, needs=(f"{name}-tests",) if resolved.wheels else ())
            groups: dict[str, Sequence[Wheel]] = {f"{name}-tests": resolved.wheels} if resolved.wheels else {}
            catalogue = Catalogue({name: made}, {"pytest": self.base, **{k: tuple(v) for k, v in groups.items()}})
            suite, failure, text = await self._suite(made, catalogue, files)
            known = {r.name for r in requirements}
            missing = [m for m in missing_modules(text) if not is_own_module(m, made)]
            bringing = [distribution_of(m, possible) for m in missing]
            more = [r for r in bringing if r is not None and r.name not in known]
            if not more or attempt == _RETRIES:
                break
            requirements += more
        stated = {*possible, *(r.name for r in requirements)}
        notes += [f"{wanted} was left out: {why}" for wanted, why in resolved.left_out.items()]
        if failure is not None:
            if not missing:
                raise failure
            advice = missing_advice(missing, stated)
            raise PackageError(f"{failure}; the tests import {', '.join(missing)}: {advice}")
        if missing:
            notes.append(
                f"some tests import {', '.join(missing)} and were not used; "
                f"{missing_advice(missing, stated)}; use another --out"
            )
        elif suite is not None:
            notes += unused_tests(suite)
        _check_functions(name, suite)
        return Pinned(made, groups, tuple(notes))

    def _install(self, spec: SourceSpec) -> Install | None:
        """The install of a source; None without ``--install``."""
        if self.wishes.installs is None:
            return None
        if self.wishes.needs:
            raise PackageError("--needs has no effect beside --install: give it to `woodshed tasks install`")
        return find_install(self.wishes.installs, spec.origin)

    async def _node(self, package: Package, files: dict[str, bytes], notes: list[str], found: Install | None) -> Pinned:
        """``pin`` for a Node project, with the modules that npm resolves or that an install locked."""
        wishes, modules = self.wishes, None
        if found is not None:
            package = described_node(package, NodeProject(files), wishes.code, wishes.tests)
            package, files = installed_package(package, files, found, self.out)
            modules, notes = only_modules(found.installed), [*notes, *found.notes]
        async with self.boxes:
            made, modules, said = await pin_node(
                package=package,
                files=files,
                code=wishes.code,
                tests=wishes.tests,
                needs=wishes.needs,
                backend=self.backend,
                layers=self.layers,
                locked=modules,
                cache=self.cache,
                seconds=self.suite_seconds,
            )
        return Pinned(made, notes=(*notes, *said), modules=modules)

    async def _by_install(self, package: Package, files: dict[str, bytes], notes: list[str], found: Install) -> Pinned:
        """``pin`` with exactly the dependencies that the install locked."""
        made, files = installed_package(package, files, found, self.out)
        groups = dict.fromkeys(made.needs, only_wheels(found.installed))
        catalogue = Catalogue({made.name: made}, {"pytest": self.base, **groups})
        suite, failure, text = await self._suite(made, catalogue, files)
        if failure is not None:
            raise failure
        _check_functions(made.name, suite)
        missing = [m for m in missing_modules(text) if not is_own_module(m, made)]
        if missing:
            notes.append(f"some tests import {', '.join(missing)} and were not used")
        elif suite is not None:
            notes += unused_tests(suite)
        return Pinned(made, dict(groups), (*notes, *found.notes))

    async def _suite(
        self, package: Package, catalogue: Catalogue, files: dict[str, bytes]
    ) -> tuple[Suite | None, SuiteError | None, str]:
        """Return (suite, why there is none, output of pytest about everything that failed)."""
        names = await asyncio.to_thread(self._layers, package, catalogue)
        paths = tuple(self.layers.path(layer) for layer in names)
        try:
            async with self.boxes:
                suite = await prepare(
                    package=package,
                    catalogue=catalogue,
                    files=files,
                    backend=self.backend,
                    layers=paths,
                    cache=self.cache,
                    seconds=self.suite_seconds,
                )
        except SuiteError as error:
            return None, error, error.text
        return suite, None, "\n".join([suite.problems, *suite.unstable.values()])

    def _layers(self, package: Package, catalogue: Catalogue) -> tuple[str, ...]:
        for _, wheels in catalogue.wheels_of(package):
            for wheel in wheels:
                path = fetch(wheel.name, wheel.version, wheel.file, wheel.sha256, cache=self.cache)
                check_import_names(wheel, path, package.sources)
        return dependency_layers(catalogue, package, self.layers, cache=self.cache)


def _check_functions(name: str, suite: Suite | None) -> None:
    assert suite is not None
    if not suite.functions:
        raise PackageError(
            f"{name}: its tests pass but run none of its functions; give the path of its code with --code"
        )


def missing_advice(missing: Sequence[str], names: Collection[str]) -> str:
    """Return advice about modules that tests cannot import. ``names``: canonical names of everything that the project
    states; if one of these cannot be imported, it is compiled or contradicts the rest, and ``--needs`` does not help.
    """
    stated = [module for module in missing if set(possible_names(module)) & set(names)]
    unknown = [module for module in missing if module not in stated]
    parts = []
    if stated:
        parts.append(
            f"{', '.join(stated)} {'is' if len(stated) == 1 else 'are'} stated by the project but cannot be had as "
            "pure-Python wheels: run `woodshed tasks install` first, then build with --install"
        )
    if unknown:
        parts.append("name the packages with --needs" + (f" ({', '.join(unknown)})" if stated else ""))
    return "; ".join(parts)


def is_own_module(module: str, package: Package) -> bool:
    """Return whether the module is the project's own, so that no wheel can provide it."""
    return any(Path(root).name.removesuffix(".py") == module for root in (*package.sources, *package.tests))
