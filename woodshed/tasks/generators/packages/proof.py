"""What a finished task must do before it is kept: its own tests on the solution, on nothing, on less than nothing.

The box is a fork of the package's, with exactly the files of the task and its bytecode, and the runs are those of the
grader; ``woodshed tasks check`` grades the same once more from the task's own files.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from woodshed.grading.altered import altered_ids, altered_tests, known_of
from woodshed.grading.crossing import crossing
from woodshed.grading.heldout import PYTEST, encoder
from woodshed.grading.other_constants import KINDS, SAME
from woodshed.grading.pytest_given import placeholders
from woodshed.grading.pytest_grader import TESTS_PREFIX, is_stray, outcome_of, test_timeout
from woodshed.grading.pytest_phases import Phase
from woodshed.grading.results import TestRun
from woodshed.grading.telling import Reference, Values, kind_of, problem_of, reference_of, values_of
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.tasks.languages.python import changed_functions, mutations
from woodshed.tasks.validate.guessing import ENDLESS, UNTOLD, by_heart, left_of, stubs, too_cheap, untold

from .report import Rejected, Untold

GATES = 9
"""Number of this set of gates: verdicts of an earlier one are reached again, of packages, exercises and imported
instances. Those of RefactorBench are not concerned: without a solution, its tasks go through none of these."""

WEAK = "its tests notice too few mutants of the solution"

_BRIEF_SECONDS = 10.0
"""Limit of all tests on one mutant or stub, some of which never end, beside four times what the solution takes."""


_HANG_SECONDS = 5.0
"""A test with other inputs that takes the solution as long would hold up every grading."""


def difference(have: Mapping[str, bytes], want: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """(files to write, files to delete) that make ``want`` of ``have``."""
    return {n: d for n, d in want.items() if have.get(n) != d}, sorted(set(have) - set(want))


Variants = Callable[[str, bytes, bytes], list[tuple[str, bytes]]]
"""(path, file as it is given, file of the solution) -> one-line mutations of what the solution changes, with kinds."""


async def prove(
    task: Task, run: Callable[[list[Phase]], Awaitable[list[TestRun]]], base: Mapping[str, bytes],
    most_mutants: int, variants: Variants, *, guesses: bool, functions: Mapping[str, Sequence[str]],
    least_score: float = 0.0,
) -> dict[str, str]:  # fmt: skip
    """Run the gates of ``task``; what is to be recorded as its quality. ``run`` runs phases in a box whose workdir
    holds ``base``. ``guesses``: whether fixes must be told from guesses here, with other inputs to its tests.
    ``functions``: what is changed, with the tests that run it. ``least_score``: the share of mutants that the required
    tests must notice.

    Raises Rejected: the solution does not pass, the untouched workspace passes or differs from what was seen before,
    an emptied one passes, code that computes nothing does, or too many mutants of the solution do. Untold where
    only some of the functions cannot be told from a guess.
    """
    info, gold, start = task.info, task.solution_files(), task.workspace_files()
    if any(is_stray(name) for name in gold):
        raise Rejected("the solution is configuration")
    tests = {n.removeprefix(TESTS_PREFIX): d for n, d in task.test_files().items() if n.startswith(TESTS_PREFIX)}
    write, delete = difference(base, {**start, **gold, **tests})
    back, new = {n: start[n] for n in gold if n in start}, [n for n in gold if n not in start]
    submitted = crossing(info, start)
    mutants = draw_mutants(task.path.name, start, gold, most_mutants, variants)
    required = [*info.fail_to_pass, *info.pass_to_pass]
    files = sorted({test.partition("::")[0] for test in required})
    whole, one = info.timeout_sec, test_timeout(task)

    def phase(write: Mapping[str, bytes], delete: Sequence[str]) -> Phase:
        return Phase(files, required, write, delete, whole, one)

    solved, given = {**submitted, **gold}, {**submitted, **back}
    if guesses:  # first, for these runs are the shorter ones
        asked = _other_inputs(task, write, delete, given, new)
        answers = await run(asked[:1])
        if not answers[0].complete:
            raise Rejected(ENDLESS)
        answers += await run(asked[1:])
        found = _told_apart(task, answers)
        stubbed = _stubbed(task, asked[1], given, _patience(task, answers[0]))
        _judge_guesses(task, found, [values_of(guess) for guess in await run(stubbed)], functions)
        left = {name for guess in (*asked, *stubbed) for name in guess.write} - set(start) - set(gold) - set(tests)
        write, delete = {**solved, **tests}, sorted(left)
    phases = [phase(write, delete), phase(back, new), phase({}, sorted(submitted))]
    first, untouched, emptied = await run(phases)
    _judge(task, *(outcome_of(task, done) for done in (first, untouched, emptied)))
    # Files of failing tests first: that is where mutants are noticed.
    first_files = sorted(files, key=lambda name: not any(t.startswith(f"{name}::") for t in info.fail_to_pass))
    limits = _patience(task, first)
    mutated = [Phase(first_files, required, {**solved, **mutant}, (), *limits, stop_at="failure") for mutant in mutants]
    runs = await run(mutated) if mutated else []
    if not mutants:
        return {}
    score = sum(not outcome_of(task, done).resolved for done in runs) / len(mutants)
    if len(mutants) > 1 and score < least_score:  # a single one may be equivalent to the solution
        raise Rejected(WEAK)
    return {"mutation_score": f"{score:.2f}", "mutants": str(len(mutants))}


def _patience(task: Task, solved: TestRun) -> tuple[float, float]:
    """Limits in seconds of all tests and of one, where the solution took as long as ``solved`` did."""
    taken = [result.seconds for result in solved.results.values()]
    one = 0.5 + 8 * max(taken, default=0.0)
    return min(task.info.timeout_sec, _BRIEF_SECONDS + 4 * sum(taken)), min(test_timeout(task), one)


def _other_inputs(
    task: Task, write: Mapping[str, bytes], delete: Sequence[str], given: Mapping[str, bytes], new: Sequence[str]
) -> list[Phase]:
    """Tests with other inputs, and with the visible ones: on the solution (``write`` and ``delete`` lay the task),
    once more with other hashes and addresses, and on the files as they are given (``new`` are not), with placeholders
    for what their tests import."""
    files, same = altered_tests(task, PYTEST), altered_tests(task, PYTEST, (SAME,))
    ids, both, text = altered_ids(task), altered_ids(task, (*KINDS, SAME)), encoder()
    whole, one = task.info.timeout_sec, test_timeout(task)
    brief, hang = min(whole, _BRIEF_SECONDS), min(one, max(_HANG_SECONDS, one / 4))
    start = {**given, **placeholders(task)}
    all_files = sorted({*files, *same})
    return [
        # Asserts are rewritten once: what is compiled of all these tests serves the later runs.
        Phase(
            all_files,
            both,
            {**write, **files, **same},
            delete,
            whole,
            hang,
            encoder=text,
            bytecode=True,
            stop_at="hang",
        ),
        Phase(sorted(files), ids, {}, (), whole, one, encoder=text, fresh=True),
        Phase(all_files, both, start, [n for n in new if n not in start], brief, one, encoder=text),
    ]


def _stubbed(task: Task, asked: Phase, given: Mapping[str, bytes], limits: tuple[float, float]) -> list[Phase]:
    """The tests of ``asked``, which lie there already, on what computes nothing: constant answers, then, after a run
    that notes the solution's answers to the visible inputs, these by heart."""
    phase = partial(Phase, timeout=limits[0], test_timeout=limits[1], encoder=asked.encoder)
    teacher, pupils = by_heart(task)
    same, visible = sorted(altered_tests(task, PYTEST, (SAME,))), altered_ids(task, (SAME,))
    taught = [phase(same, visible, write={**given, **task.solution_files(), **teacher})] if pupils else []
    return [
        *(phase(asked.files, asked.ids, write={**given, **stub}) for stub in stubs(task)),
        *taught,
        *(phase(asked.files, asked.ids, write={**given, **placeholders(task), **stub}) for stub in pupils),
    ]


def _told_apart(task: Task, runs: Sequence[TestRun]) -> Reference:
    """What the solution answers to ``_other_inputs``. Raises Rejected where that tells no fix from a guess."""
    first, second, given = runs
    if not second.complete:
        raise Rejected(ENDLESS)
    answered = values_of(first)
    others = {test: values for test, values in answered.items() if kind_of(test) != SAME}
    found = reference_of(others, values_of(second), known_of(task, PYTEST, answered, values_of(given)))
    if why := problem_of(found):
        raise Rejected(why)
    return found


def _judge_guesses(
    task: Task, found: Reference, guesses: Sequence[Values], functions: Mapping[str, Sequence[str]]
) -> None:
    """``guesses`` are answers to ``_stubbed``. Raises Rejected."""
    constant = len(stubs(task))
    cheap, known = guesses[:constant], guesses[constant + 1 :]
    left = left_of(found, (*cheap, *known))
    if why := too_cheap(found, cheap, known) or problem_of(left):
        raise Rejected(why)
    if names := untold(left, functions):
        raise Untold(UNTOLD, names)


def _judge(task: Task, solved: Outcome, untouched: Outcome, emptied: Outcome) -> None:
    """Raises Rejected."""
    if untouched.resolved:
        raise Rejected("the untouched workspace passes")
    wrong = [t for t in task.info.fail_to_pass if untouched.tests[t] == "passed"]
    wrong += [t for t in task.info.pass_to_pass if untouched.tests[t] != "passed"]
    if wrong:
        raise Rejected("results change from run to run")
    if not solved.resolved:
        raise Rejected("the solution does not pass")
    if emptied.resolved:
        raise Rejected("an empty submission passes")


def draw_mutants(
    seed: str, start: Mapping[str, bytes], gold: Mapping[str, bytes], most: int, variants: Variants
) -> list[dict[str, bytes]]:
    """At most ``most`` one-line mutations of what the solution adds or changes, none of which is the task itself."""
    options: list[tuple[str, str, bytes]] = []
    for path, data in sorted(gold.items()) if most else ():
        if b"\r" not in data:
            found = variants(path, start.get(path, b""), data)
            options += [(path, kind, source) for kind, source in found if source != start.get(path)]
    rng = random.Random(f"mutants:{seed}")
    return [{path: source} for path, _, source in rng.sample(options, min(most, len(options)))]


def python_variants(path: str, before: bytes, after: bytes) -> list[tuple[str, bytes]]:
    """``Variants`` of Python code."""
    source = after.decode("utf-8", "replace")
    names = changed_functions(before.decode("utf-8", "replace"), source) if path.endswith(".py") else []
    found = [m for name in names for m in mutations(source, function=name, keep_format=True)]
    return [(m.kind, m.source.encode()) for m in found]
