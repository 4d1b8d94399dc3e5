"""Build synthetic tasks in a separate process, which reads a JSON request from stdin.

Some mutants loop forever. They are mutations of our own templates (no imports, no files, no attribute access beyond
list, str and dict methods), so a process with limits on time and memory is enough.
"""

from __future__ import annotations

import copy
import gc
import json
import random
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from woodshed.tasks.languages.python import Mutation, mutations, pick
from woodshed.tasks.validate.leaks import scan

from .function import VISIBLE, Case, Split, SyntheticFunction, draw_function
from .spec import NOUNS, Bug, SyntheticSpec

MUTANT_SECONDS = 0.03
"""CPU time for all cases of one mutant; a correct function needs about a thousandth of it."""
DRAWS = 5000
"""Maximum number of functions drawn for one combined task; rare kinds need a few dozen."""


class OutOfTime(BaseException):
    """Raised by the alarm. Not a subclass of Exception, so that no handler in a mutant catches it."""


def build_synthetic(split: Split, seed: int, index: int, two_bugs: float = 0.0) -> SyntheticSpec:
    """Build task number ``index`` of a seed, with two bugs in a share ``two_bugs`` of them. It depends on the arguments
    only, not on the number of workers."""
    rng = random.Random(f"study:{split}:{seed}:{index}")
    count = 2 if random.Random(f"bugs:{split}:{seed}:{index}").random() < two_bugs else 1
    modules = tuple(rng.sample(NOUNS, 3))
    while True:
        functions: list[SyntheticFunction] = []
        while len(functions) < len(modules):
            functions.append(_draw_another(functions, rng, split))
        places = [rng.randrange(len(modules))] if count == 1 else rng.sample(range(len(modules)), count)
        bugs = [Bug(place, *found) for place in places if (found := find_bug(functions[place], rng))]
        if len(bugs) < count or _shows_answer(functions, bugs):
            continue
        name = f"woodshed/synthetic-{split}-{seed}-{index:05d}"
        return SyntheticSpec(name, split, seed, modules, tuple(functions), tuple(bugs))


def build_combined(split: Split, seed: int, name: str, kinds: Sequence[str]) -> SyntheticSpec:
    """Build the task ``name`` with a bug of each of ``kinds``, in different modules. RuntimeError if none is found."""
    rng = random.Random(f"combined:{split}:{seed}:{name}:{','.join(kinds)}")
    modules = tuple(rng.sample(NOUNS, max(3, len(kinds))))
    left = DRAWS
    while left:
        drawn: list[SyntheticFunction] = []
        found: list[tuple[Mutation, tuple[int, ...]]] = []
        while left and len(drawn) < len(modules):
            left -= 1
            function = _draw_another(drawn, rng, split)
            if len(found) < len(kinds):
                bug = find_bug(function, rng, kinds[len(found)])
                if bug is None:
                    continue
                found.append(bug)
            drawn.append(function)
        if len(drawn) < len(modules):
            break
        places = rng.sample(range(len(modules)), len(modules))  # module of each drawn function, the broken ones first
        functions = tuple(drawn[places.index(number)] for number in range(len(modules)))
        bugs = tuple(Bug(place, *bug) for place, bug in zip(places, found))
        if _some_case_passes(functions, bugs) and not _shows_answer(functions, bugs):
            return SyntheticSpec(name, split, seed, modules, functions, bugs)
    raise RuntimeError(f"{name}: {DRAWS} functions of {split} gave no task with bugs of the kinds {', '.join(kinds)}")


def _draw_another(others: Sequence[SyntheticFunction], rng: random.Random, split: Split) -> SyntheticFunction:
    """Draw a function whose name differs from those of ``others``."""
    while True:
        drawn = draw_function(rng, split)
        if drawn.name not in [f.name for f in others]:
            return drawn


def _some_case_passes(functions: Sequence[SyntheticFunction], bugs: Sequence[Bug]) -> bool:
    """Return True if at least one case passes before the repair. The gate ``pass_to_pass`` requires one."""
    return len(bugs) < len(functions) or any(len(bug.failing) < len(functions[bug.module].cases) for bug in bugs)


def _shows_answer(functions: Sequence[SyntheticFunction], bugs: Sequence[Bug]) -> bool:
    """Return whether other modules, as an agent sees them, contain a line that a bug changed, or an answer that the
    leak gate would find."""
    seen = {f"{number}.py": f.source for number, f in enumerate(functions)}
    seen |= {f"{bug.module}.py": bug.mutation.source for bug in bugs}
    for bug in bugs:
        path = f"{bug.module}.py"
        others = {name: source.encode() for name, source in seen.items() if name != path}
        lines = {line.strip() for source in others.values() for line in source.decode().split("\n")}
        before, gold = {path: seen[path].encode()}, {path: functions[bug.module].source.encode()}
        if bug.mutation.before.strip() in lines or scan(others, before, gold):
            return True
    return False


def find_bug(
    function: SyntheticFunction, rng: random.Random, kind: str = ""
) -> tuple[Mutation, tuple[int, ...]] | None:
    """Return a mutation (of ``kind``, if given) that a visible and a hidden case kill, and the numbers of all failing
    cases; None if there is no such mutation. Without a hidden case, the visible answers by heart would be a fix.

    Mutants that run out of time are skipped: as tasks they would use up the time limit in every test run.
    """
    options = [m for m in mutations(function.source, function=function.name) if kind in ("", m.kind)]
    while options:
        mutation = pick(rng, options)
        options.remove(mutation)
        failing = failing_cases(mutation.source, function.name, function.cases)
        if failing and failing[0] < VISIBLE <= failing[-1]:
            return mutation, failing
    return None


def failing_cases(source: str, name: str, cases: tuple[Case, ...]) -> tuple[int, ...]:
    """Return the numbers of the cases that a mutant fails; empty if it survives or times out. Main thread only."""
    space: dict[str, Any] = {}
    failing = []
    signal.signal(signal.SIGVTALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MUTANT_SECONDS)
        exec(compile(source, f"<{name}>", "exec"), space)
        for number, case in enumerate(cases):
            try:
                got = space[name](*copy.deepcopy(case.args))
                if got != case.want or type(got) is not type(case.want):
                    failing.append(number)
            except Exception:
                failing.append(number)
    except OutOfTime:
        return ()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return tuple(failing)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise OutOfTime


def main() -> None:
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    gc.disable()  # a collection must not count against a mutant's time
    split, seed = request["split"], request["seed"]
    if "kinds" in request:
        json.dump([0, build_combined(split, seed, request["name"], request["kinds"]).to_dict()], sys.stdout)
        return
    for index in range(request["start"], request["stop"], request["step"]):
        json.dump([index, build_synthetic(split, seed, index, request["two_bugs"]).to_dict()], sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
