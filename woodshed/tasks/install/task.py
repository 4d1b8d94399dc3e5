"""``woodshed tasks install --tasks``: turn each verified install into a task, to find out how to set up the repository.

The solution of the task is the verified recipe.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from woodshed.grading.install.changes import SETUP
from woodshed.grading.install.grader import DEPOT, SPEC, InstallSpec, Observation, observe, target_id
from woodshed.record.task import Task, TaskError, TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.taskbox import box_spec
from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.generators.packages.stream import STAGING, clear_staging
from woodshed.tasks.install.python.depot import wheel_name
from woodshed.tasks.install.python.kit import PythonKit
from woodshed.tasks.install.python.plugins import entry_points
from woodshed.tasks.packages.catalogue import Wheel, load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import WORKDIR, coarse, suite_files
from woodshed.tasks.packages.source import fetch
from woodshed.tasks.packages.workspace import is_test
from woodshed.tasks.sources.claim import claim
from woodshed.tasks.sources.requirements import canonical
from woodshed.tasks.sources.resolve import import_names
from woodshed.tasks.sources.spec import parse_source
from woodshed.tasks.validate.gates import check_task

from .command import InstallWishes
from .lock import NAME, Install, load_install
from .roles import listed
from .run import Outcome, ground_of
from .space import Boxes, Ground, build_layers
from .use import only_wheels, plugin_lines

MOST_TESTS = 100
"""Maximum number of required tests besides the targets: the fastest that pass with the recipe."""

_TIMEOUT = 300.0
_ASK = f"""\
Set up this repository, so that the commands below work.

{PythonKit.box}

Write {SETUP}, a shell script that is run once with `sh -e` in the root of a fresh copy of the repository, without a
network: its pip finds the same wheels. What is missing may be mocked by files that it creates in the repository. It may
not change or delete the repository's files, nor add tests or configuration of the test runner. Only this script and
what it does count. Then call finish.

Commands that must work, and what they must print:
"""


async def make_install_task(ground: Ground, found: Install, depot: Sequence[Wheel], boxes: Boxes, out: Path) -> Task:
    """Write the task of a verified install to ``out``. Raises Rejected, and then leaves no ``out``.

    ``depot``: wheels that its index has besides those of the install, so that the index does not give the answer away.
    """
    if not isinstance(ground.kit, PythonKit):
        raise Rejected("install tasks are made from Python projects only")
    if found.recipe.start:
        raise Rejected("it needs services, which install tasks do not support")
    served = only_wheels(found.served)
    barred = {canonical(name) for name in ground.names} | {canonical(w.name) for w in served}
    others = [w for w in depot if canonical(w.name) not in barred]  # one set of versions per project
    wheels = {w.file: w for w in (*served, *others)}
    layers = [*build_layers(ground, boxes.layers), _depot_layer(list(wheels.values()), ground, boxes.layers)]
    spec = _spec(ground, found, list(wheels.values()))
    try:
        draft = _save(
            ground=ground,
            found=found,
            spec=spec,
            layers=layers,
            out=out,
            broken=(target_id(1, spec.targets[0]),),
            whole=(),
        )
        before = await _observed(draft, {}, boxes)
        after = await _observed(draft, draft.solution_files(), boxes)
        task = _save(ground, found, spec, layers, out, *_required(before, after))
        report = await check_task(task, boxes.backend, boxes.layers)
        if not report.passed:
            raise Rejected("; ".join(f"{gate}: {why}" for gate, why in report.failures.items()))
        return task
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _required(before: Observation, after: Observation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (targets and tests that need the recipe, those that pass without it too). Raises Rejected."""
    missed = [f"`{one.goal.command}`: {one.why}" for one in after.reached.values() if not one.ok]
    if after.problem or missed:
        raise Rejected(f"the recipe does not reach its targets offline: {after.problem or missed[0]}")
    passing = {t: r for t, r in after.run.results.items() if r.status == "passed"} if after.run.complete else {}
    if not passing:
        raise Rejected(f"no test passes with the recipe under the grader's runner: {after.run.detail[:200]}")
    fastest = sorted(passing, key=lambda test: (coarse(passing[test].seconds), test))[:MOST_TESTS]
    worked = {test for test, result in before.run.results.items() if result.status == "passed"}
    worked = (worked if before.run.complete else set()) | {name for name, one in before.reached.items() if one.ok}
    required = [*after.reached, *sorted(fastest)]
    broken = tuple(test for test in required if test not in worked)
    if not broken:
        raise Rejected("everything works without the recipe")
    return broken, tuple(test for test in required if test in worked)


async def _observed(task: Task, submission: Mapping[str, bytes], boxes: Boxes) -> Observation:
    box = await boxes.backend.create(box_spec(task, boxes.layers))
    try:
        await box.put({f"{WORKDIR}/{name}": data for name, data in submission.items()})
        return await observe(task=task, box=box, backend=boxes.backend, layers=boxes.layers, tests=None)
    finally:
        await box.close()


def _spec(ground: Ground, found: Install, wheels: Sequence[Wheel]) -> InstallSpec:
    package = ground.package
    return InstallSpec(
        targets=found.targets,
        wheels={
            "-".join(wheel_name(w.file)): (_place(w), entry_points([w], cache=ground.cache))
            for w in sorted(wheels, key=lambda w: w.file)
        },
        own=ground.names,
        roots=tuple(sorted({".", *package.path, *_test_folders(ground)})),
        taken=tuple(sorted(import_names((*ground.base, *wheels), cache=ground.cache))),
        tests=tuple(suite_files(package, ground.files)),
        ini=(f"pythonpath = {' '.join(package.path)}", *package.ini, *plugin_lines(ground.files)),
    )


def _test_folders(ground: Ground) -> set[str]:
    """Folders that pytest puts first on the path: a file there could shadow any module."""
    paths = [PurePosixPath(n) for n in ground.files if n.endswith(".py") and is_test(ground.package, n)]
    return {str(path.parent) for path in paths}


def _save(
    ground: Ground,
    found: Install,
    spec: InstallSpec,
    layers: Sequence[str],
    out: Path,
    broken: tuple[str, ...],
    whole: tuple[str, ...],
) -> Task:
    package = ground.package
    info = TaskInfo(
        family="install",
        key=f"install:{package.name}",
        grader="install",
        kind="install",
        workdir=WORKDIR,
        submission=(SETUP,),
        fail_to_pass=broken,
        pass_to_pass=whole,
        test_command=found.targets[0].command,
        layers=tuple(layers),
        timeout_sec=_TIMEOUT,
        provenance={
            "package": package.name,
            "version": package.version,
            "sha256": found.source,
            "licence": package.licence,
            "source": found.origin,
            "commit": found.commit,
            "generator": "install",
            "recipe_by": found.builder,
            "install": found.digest,
        },
    )
    environment = {"network_mode": "no-network", "workdir": WORKDIR, "env": ground.kit.tool_environment(ground, _INDEX)}
    return save_task(
        out,
        name=f"woodshed/{package.name}-install",
        instruction=_ASK + listed(spec.targets),
        info=info,
        workspace=dict(ground.files),
        tests={"test.sh": _test_script(spec), SPEC: spec.dump()},
        solution={SETUP: found.recipe.setup.encode()},
        config={"environment": environment},
    )


_INDEX = f"file://{DEPOT}"


def _place(wheel: Wheel) -> str:
    return f"simple/{canonical(wheel.name)}/{wheel.file}"


def _depot_layer(wheels: Sequence[Wheel], ground: Ground, layers: LayerStore) -> str:
    """Name of the layer with the index of the box: pages and wheels as files, so that no server is needed."""

    def fill(root: Path) -> None:
        for wheel in sorted(wheels, key=lambda w: w.file):
            target = root / DEPOT[1:] / _place(wheel)
            target.parent.mkdir(parents=True, exist_ok=True)
            path = fetch(wheel.name, wheel.version, wheel.file, wheel.sha256, cache=ground.cache)
            shutil.copyfile(path, target)
            with (target.parent / "index.html").open("a", encoding="utf-8") as page:
                page.write(f'<a href="{wheel.file}#sha256={wheel.sha256}">{wheel.file}</a>\n')
        (root / DEPOT[1:] / "simple").mkdir(parents=True, exist_ok=True)

    return layers.add("install-depot", fill)


def _test_script(spec: InstallSpec) -> bytes:
    """``test.sh`` for other Harbor tools, in images with an index: run the recipe and compare exit codes of targets."""
    lines = [
        "#!/bin/sh",
        f"cd {WORKDIR} || exit 1",
        "mkdir -p /logs/verifier",
        "reward=1",
        f"sh -e {SETUP} || reward=0",
    ]
    for goal in spec.targets:
        codes = " ".join(map(str, goal.exit_codes))
        lines += [f"( {goal.command} )", f'case " {codes} " in *" $? "*) ;; *) reward=0 ;; esac']
    return ("\n".join([*lines, "echo $reward > /logs/verifier/reward.txt"]) + "\n").encode()


async def install_tasks(
    outcomes: Sequence[Outcome],
    backend: Backend,
    layers: LayerStore,
    installs: Path,
    out: Path,
    wishes: InstallWishes,
    progress: Callable[[int, int, str], None] | None = None,
    cache: Path | None = None,
) -> tuple[list[Task], dict[str, str]]:
    """Make tasks of the ``outcomes`` that have an install in ``installs``; return (tasks, source -> why it has none).

    Tasks that ``out`` holds already are kept. Raises PackageError if ``out`` cannot be used.
    """
    found = {load_install(path.parent).origin: path.parent for path in sorted(installs.glob(f"*/{NAME}"))}
    proved = [outcome.install for outcome in outcomes if outcome.install is not None]
    depot = [wheel for folder in found.values() for wheel in only_wheels(load_install(folder).served)]
    base = load_catalogue(Path(wishes.catalogue) if wishes.catalogue else None).wheels["pytest"]
    made: list[Task] = []
    refused: dict[str, str] = {}
    with claim(out, "task.toml"):
        clear_staging(out)
        for number, install in enumerate(proved):
            if progress:
                progress(number, len(proved), f"{install.origin}: making its task, running its gates")
            target = out / f"{found[install.origin].name}-install"
            known = _known(target, install)
            if known is not None:
                made.append(known)
                continue
            try:
                ground = await asyncio.to_thread(
                    ground_of,
                    parse_source(_stated(install)),
                    found[install.origin].name,
                    base,
                    installs,
                    code=wishes.code,
                    tests=wishes.tests,
                    roots=wishes.roots,
                    markers=wishes.markers,
                    cache=cache,
                )
                if ground.package.sha256 != install.source:
                    raise Rejected("its source has changed since; install it into another folder")
                staged = out / f"{STAGING}{target.name}"
                await make_install_task(
                    ground=ground, found=install, depot=depot, boxes=Boxes(backend, layers), out=staged
                )
                shutil.rmtree(target, ignore_errors=True)
                staged.rename(target)
                made.append(Task.load(target))
            except (Rejected, PackageError) as error:
                refused[install.origin] = str(error)
    return made, refused


def _stated(install: Install) -> str:
    return f"{install.origin}@{install.commit}" if install.commit else install.origin


def _known(target: Path, install: Install) -> Task | None:
    """The task at ``target``, if it was made from this install."""
    try:
        task = Task.load(target)
    except TaskError:
        return None
    return task if task.info.provenance.get("install") == install.digest else None
