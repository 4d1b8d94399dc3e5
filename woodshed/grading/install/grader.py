"""The ``install`` grader: runs a recipe (``.woodshed/setup.sh``) in a fresh box and judges its results in two others.

``tests/install.json`` of a task never enters a box. It holds the targets, the wheels of the index with their pytest
plugins, and the names of modules that no added file may take. From the box in which the recipe ran, only names of
wheels and added files cross over, and the files are checked as when an install is proved. The wheels are then installed
from the index again in a box in which the recipe never ran. Of its two forks, one runs the repository's tests through
the ``pytest`` grader's channel, the other runs the targets, whose output is matched in a box of its own. Ids of targets
are ``target N: COMMAND``.

``needless`` refuses constructs in added files that no mock needs, because these files run beside the tests and no
held-out values check them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter

from woodshed.grading.pytest_grader import import_path, run_pytest, test_timeout
from woodshed.grading.pytest_screen import screen
from woodshed.grading.python_names import Names, UnreadableError, parse
from woodshed.grading.results import TestRun
from woodshed.record.fault import is_shortage
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, BoxSpec, Sandbox, SandboxError, Snapshot
from woodshed.sandbox.taskbox import box_spec

from .changes import SETUP, SETUP_SECONDS, TARGET_SECONDS, WORKDIR, changes, installed_in, python_refusal, shell
from .goal import Goal, goal_of
from .match import Reached, reached


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words(
    "pytest _pytest pluggy unittest gc ctypes _ctypes atexit signal faulthandler site sitecustomize mmap _testcapi "
    "_testinternalcapi tracemalloc subprocess multiprocessing socket pty resource dis marshal inspect"
)
_USES = _words(
    "sys._getframe sys._current_frames sys.settrace sys.setprofile sys.meta_path sys.path_hooks sys.modules sys.exit "
    "os._exit os.abort os.fork os.execv os.execve os.kill os.dup2 builtins.exec builtins.eval builtins.compile "
    "builtins.__import__ builtins.breakpoint builtins.exit builtins.quit builtins.SystemExit importlib.import_module"
)


def needless(added: Mapping[str, bytes]) -> list[str]:
    """List constructs of added files that no mock needs, as ``path: construct``."""
    found = screen(added)
    for path, data in sorted(added.items()):
        if path.endswith(".py"):
            with suppress(UnreadableError):  # the screen reports that
                found += [f"{path}: {use}" for use in dict.fromkeys(_uses(data))]
    return found


def _uses(data: bytes) -> Iterator[str]:
    names = Names(parse(data))
    for module in names.imports:
        if module.partition(".")[0] in _MODULES or module in _USES:
            yield f"import {module}"
    for node in names.nodes:
        for origin in names.origins(node):
            if origin in _USES:
                yield f"use of {origin}"


SPEC = "install.json"
DEPOT = "/opt/depot"
"""Folder of the package index in a box: ``simple/PROJECT/`` with wheels (PEP 503)."""

_PIP_SECONDS = 300.0


@dataclass(frozen=True)
class InstallSpec:
    """``wheels``: ``NAME-VERSION`` -> path below ``DEPOT`` and plugins of pytest in it. ``own``: names of the project
    itself. ``roots``: import roots. ``taken``: modules of the wheels. ``tests``: where the tests are. ``ini``: lines of
    the pytest configuration."""

    targets: tuple[Goal, ...]
    wheels: Mapping[str, tuple[str, tuple[str, ...]]]
    own: tuple[str, ...]
    roots: tuple[str, ...]
    taken: tuple[str, ...]
    tests: tuple[str, ...]
    ini: tuple[str, ...] = ()

    def dump(self) -> bytes:
        table = {
            **{key: list(getattr(self, key)) for key in ("own", "roots", "taken", "tests", "ini")},
            "targets": [goal.table() for goal in self.targets],
            "wheels": {name: [path, list(plugins)] for name, (path, plugins) in self.wheels.items()},
        }
        return json.dumps(table, indent=1).encode() + b"\n"


@dataclass
class Observation:
    """Results of a recipe. ``problem``: why nothing was tried; ``reached``: by id of the target; ``run``: tests."""

    problem: str = ""
    reached: dict[str, Reached] = field(default_factory=dict)
    run: TestRun = field(default_factory=lambda: TestRun({}, False))


async def grade_install(task: Task, box: Sandbox, backend: Backend, layers: LayerStore) -> Outcome:
    """Grade the files in ``box``, a fresh box of ``task`` with only the submission put into it."""
    start = perf_counter()
    required = (*task.info.fail_to_pass, *task.info.pass_to_pass)
    tests = [test for test in required if not is_target(test)]
    seen = await observe(task, box, backend, layers, tests)
    statuses = {}
    for test in required:
        if is_target(test):
            good = test in seen.reached and seen.reached[test].ok
        else:  # a test that cannot be collected fails: something is not installed
            good = test in seen.run.results and seen.run.results[test].status == "passed" and seen.run.complete
        statuses[test] = "passed" if good else "failed"
    why = [f"{test}: {one.why}" for test, one in seen.reached.items() if not one.ok]
    detail = "; ".join(filter(None, [seen.problem, *why, "" if seen.run.complete else seen.run.detail]))
    resolved = bool(task.info.fail_to_pass) and all(status == "passed" for status in statuses.values())
    return Outcome(resolved, statuses, perf_counter() - start, detail[:2000])


async def observe(
    task: Task, box: Sandbox, backend: Backend, layers: LayerStore, tests: Sequence[str] | None
) -> Observation:
    """Run the recipe in ``box``, if there is one; then targets and ``tests`` (None: all) in boxes without it."""
    spec = load_spec(str(task.path / "tests" / SPEC), task.digest)
    wheels, added, problem = await _left(task, spec, box)
    if problem:
        return Observation(problem)
    fresh = await backend.create(box_spec(task, layers))
    try:
        paths = " ".join(shlex.quote(f"{DEPOT}/{spec.wheels[name][0]}") for name in wheels)
        done = await shell(
            fresh, f"python3 -m pip install -q --no-deps {paths}" if paths else "true", timeout=_PIP_SECONDS
        )
        if done.returncode or done.timed_out:
            return Observation(
                f"what was installed cannot be installed again: {done.stdout[-300:].decode('utf-8', 'replace')}"
            )
        await fresh.put({f"{WORKDIR}/{name}": data for name, data in added.items()})
        site = await fresh.exec(["python3", "-c", "import site; print(site.getusersitepackages())"])
        state = await fresh.snapshot("fs")
    finally:
        await fresh.close()
    try:
        run = await _run(task, spec, backend, state, wheels, site.stdout.decode().strip(), tests)
        return Observation("", await _targets(spec, backend, state), run)
    finally:
        await backend.drop(state)


def target_id(number: int, goal: Goal) -> str:
    """Return the id of a target; ``number`` counts from 1."""
    return f"target {number}: {goal.command}"


def is_target(test: str) -> bool:
    return test.startswith("target ")


@lru_cache(maxsize=256)
def load_spec(path: str, digest: str) -> InstallSpec:
    """Read ``tests/install.json`` of the task with this digest. Raises TaskError naming the file if it is damaged."""
    try:
        table = json.loads(Path(path).read_bytes())
        lists = {key: tuple(map(str, table[key])) for key in ("own", "roots", "taken", "tests", "ini")}
        wheels = {str(name): (str(file), tuple(map(str, plugins))) for name, (file, plugins) in table["wheels"].items()}
        goals = tuple(goal_of(goal, f"target {number}") for number, goal in enumerate(table["targets"], 1))
        return InstallSpec(goals, wheels, **lists)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError) and is_shortage(error):
            raise SandboxError(f"{path}: this machine cannot read it now: {error}") from error
        raise TaskError(f"{path}: not a table of targets and wheels ({type(error).__name__}: {error})") from None


async def _left(task: Task, spec: InstallSpec, box: Sandbox) -> tuple[list[str], dict[str, bytes], str]:
    """Run the recipe; return the names of installed wheels, the added files, and why neither counts ('' if both do)."""
    try:
        await box.read(f"{WORKDIR}/{SETUP}")
    except BoxError:
        return [], {}, ""  # no recipe was handed in
    done = await shell(box, f"sh -e {SETUP}", timeout=SETUP_SECONDS)
    if done.timed_out or done.returncode:
        how = "did not end in time" if done.timed_out else f"ended with {done.returncode}"
        return [], {}, f"setup.sh {how}: {done.stdout[-600:].decode('utf-8', 'replace').strip()}"
    try:
        left = await box.get(["**/*"], max_bytes=512 << 20)
    except BoxError as error:
        return [], {}, f"the workspace cannot be read back: {error}"
    names = await installed_in(box)
    own = {_canonical(name) for name in spec.own}
    strange = [n for n in names if n not in spec.wheels and _canonical(n.rpartition("-")[0]) not in own]
    before = task.workspace_files()
    added, problems = changes(before, left, python_refusal(spec.roots, spec.taken, before))
    problems += [f"{name} is installed and is no wheel of the index" for name in strange[:3]]
    problems += [f"it adds {found}, which no mock needs" for found in needless(added)[:3]]  # they run beside the tests
    return sorted(n for n in names if n in spec.wheels), added, "; ".join(problems)


async def _run(
    task: Task,
    spec: InstallSpec,
    backend: Backend,
    state: Snapshot,
    wheels: Sequence[str],
    site: str,
    tests: Sequence[str] | None,
) -> TestRun:
    """Run the repository's tests under the grader's own configuration, with only the plugins of installed wheels."""
    loaded = "".join(f" -p {plugin}" for name in wheels for plugin in spec.wheels[name][1])
    ini = "\n".join(["[pytest]", f"addopts = -p no:cacheprovider{loaded}", *spec.ini]) + "\n"
    files = list(spec.tests) if tests is None else sorted({test.partition("::")[0] for test in tests})
    (box,) = await backend.fork(state)
    try:
        await box.put({f"{WORKDIR}/pytest.ini": ini.encode()})
        return await run_pytest(
            box,
            files,
            tests,
            path=(*import_path(task), site),
            timeout=task.info.timeout_sec,
            test_timeout=min(60.0, test_timeout(task)),
        )
    finally:
        await box.close()


async def _targets(spec: InstallSpec, backend: Backend, state: Snapshot) -> dict[str, Reached]:
    clean = await backend.create(BoxSpec())
    try:
        (box,) = await backend.fork(state)
        try:
            found = {}
            for number, goal in enumerate(spec.targets, 1):
                done = await shell(box, goal.command, timeout=TARGET_SECONDS)
                found[target_id(number, goal)] = await reached(goal, done, clean)
            return found
        finally:
            await box.close()
    finally:
        await clean.close()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
