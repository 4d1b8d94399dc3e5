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
from .spec import NOUNS, SyntheticSpec

MUTANT_SECONDS = 0.03
"""CPU time for all cases of one mutant; a correct function needs about a thousandth of it."""


class OutOfTime(BaseException):
    """Raised by the alarm. Not a subclass of Exception, so that no handler in a mutant catches it."""


def build_synthetic(split: Split, seed: int, index: int) -> SyntheticSpec:
    """Task number ``index`` of a seed. Depends on nothing else, so the tasks are the same for any number of workers."""
    rng = random.Random(f"study:{split}:{seed}:{index}")
    modules = tuple(rng.sample(NOUNS, 3))
    while True:
        functions: list[SyntheticFunction] = []
        while len(functions) < len(modules):
            drawn = draw_function(rng, split)
            if drawn.name not in [f.name for f in functions]:
                functions.append(drawn)
        broken = rng.randrange(len(modules))
        found = find_bug(functions[broken], rng)
        if found is not None:
            mutation, failing = found
            if _shows_answer(functions, broken, mutation):
                continue
            name = f"woodshed/synthetic-{split}-{seed}-{index:05d}"
            return SyntheticSpec(
                name=name,
                split=split,
                seed=seed,
                modules=modules,
                functions=tuple(functions),
                broken=broken,
                mutation=mutation,
                failing=failing,
            )


def _shows_answer(functions: Sequence[SyntheticFunction], broken: int, mutation: Mutation) -> bool:
    """Whether another module has the line that the mutation changed, or what the leak gate of tasks would find."""
    others = {f"{number}.py": f.source.encode() for number, f in enumerate(functions) if number != broken}
    lines = {line.strip() for source in others.values() for line in source.decode().split("\n")}
    path = f"{broken}.py"
    before, gold = {path: mutation.source.encode()}, {path: functions[broken].source.encode()}
    return mutation.before.strip() in lines or bool(scan(others, before, gold))


def find_bug(function: SyntheticFunction, rng: random.Random) -> tuple[Mutation, tuple[int, ...]] | None:
    """A mutation that a visible case kills, with the numbers of all cases that fail; None where there is none.

    Mutants that run out of time are passed over: as tasks they would cost their time limit at every test run.
    """
    options = mutations(function.source, function=function.name)
    while options:
        mutation = pick(rng, options)
        options.remove(mutation)
        failing = failing_cases(mutation.source, function.name, function.cases)
        if failing and failing[0] < VISIBLE:
            return mutation, failing
    return None


def failing_cases(source: str, name: str, cases: tuple[Case, ...]) -> tuple[int, ...]:
    """Numbers of the cases that a mutant fails; empty where it survives or runs out of time. Main thread only."""
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
    for index in range(request["start"], request["stop"], request["step"]):
        json.dump([index, build_synthetic(request["split"], request["seed"], index).to_dict()], sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
