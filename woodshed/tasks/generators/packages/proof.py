"""Gates of a finished task: its tests on the solution, the untouched and the emptied workspace, guesses and mutants.

The box is a fork of the package's box, with exactly the files of the task and their bytecode, and tests are run as the
grader runs them; ``woodshed tasks check`` grades the same again from the task directory alone.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from woodshed.grading.altered import altered_ids, altered_tests, known_of, recording_helpers
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
from woodshed.tasks.validate.guessing import (
    ENDLESS,
    GUESSABLE,
    alone,
    by_heart,
    few_values,
    left_of,
    replaceable,
    stubs,
    too_cheap,
)

from .report import Guessable, Rejected

GATES = 16
"""Version of these gates. Verdicts of another version are not reused, for packages, exercises, custom sources and
imported instances. Tasks of RefactorBench have no solution and go through none of these gates."""

WEAK = "its tests notice too few mutants of the solution"

_BRIEF_SECONDS = 10.0
"""Time limit of all tests on one mutant or stub, on top of four times the solution's time; some never end."""


_HANG_SECONDS = 5.0
"""A test with altered inputs on which the solution takes longer than this counts as hanging."""


def difference(have: Mapping[str, bytes], want: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return (files to write, files to delete) that turn ``have`` into ``want``."""
    return {n: d for n, d in want.items() if have.get(n) != d}, sorted(set(have) - set(want))


@dataclass(frozen=True)
class Proof:
    """Measurements of a task that passed its gates, for the fields of ``TaskInfo`` with the same names."""

    quality: dict[str, str] = field(default_factory=dict)
    own_values: dict[str, str] = field(default_factory=dict)


Variants = Callable[[str, bytes, bytes], list[tuple[str, bytes]]]
"""(path, given file, file of the solution) -> (kind, file) of each one-line mutation of what the solution changes."""


async def prove(
    task: Task,
    run: Callable[[list[Phase]], Awaitable[list[TestRun]]],
    base: Mapping[str, bytes],
    most_mutants: int,
    variants: Variants,
    *,
    guesses: bool,
    functions: Mapping[str, Sequence[str]],
    least_score: float = 0.0,
) -> Proof:
    """Run the gates of ``task`` and return what they measured.

    ``run`` runs phases in a box whose workdir holds ``base``. ``guesses``: whether to test, with altered inputs, that
    code which only guesses fails. ``functions``: changed functions -> tests that run them. ``least_score``: share of
    the mutants that the required tests must notice.

    Raises Rejected if the solution does not pass, if the untouched workspace passes or gives other results than before,
    if an emptied workspace passes, if code that computes nothing passes, or if too many mutants pass. Raises Guessable
    if only some of the functions cannot be told from a guess.
    """
    info, gold, start = task.info, task.solution_files(), task.workspace_files()
    if any(is_stray(name) for name in gold):
        raise Rejected("the solution is configuration")
    tests = {n.removeprefix(TESTS_PREFIX): d for n, d in task.test_files().items() if n.startswith(TESTS_PREFIX)}
    write, delete = difference(base, {**start, **gold, **tests})
    back, new = {n: start[n] for n in gold if n in start}, [n for n in gold if n not in start]
    submitted = crossing(info, start)
    mutants = draw_mutants(seed=task.path.name, start=start, gold=gold, most=most_mutants, variants=variants)
    required = [*info.fail_to_pass, *info.pass_to_pass]
    files = sorted({test.partition("::")[0] for test in required})
    whole, one = info.timeout_sec, test_timeout(task)

    def phase(write: Mapping[str, bytes], delete: Sequence[str]) -> Phase:
        return Phase(files=files, ids=required, write=write, delete=delete, timeout=whole, test_timeout=one)

    solved, given = {**submitted, **gold}, {**submitted, **back}
    own: dict[str, str] = {}
    if guesses:  # first, because these runs are shorter
        asked = _other_inputs(task=task, write=write, delete=delete, given=given, new=new)
        answers = await run(asked[:1])
        if not answers[0].complete:
            raise Rejected(ENDLESS)
        answers += await run(asked[1:])
        found = _reference_answers(task, answers)
        stubbed = _stubbed(task, asked[1], given, _patience(task, answers[0]), functions)
        own = _judge_guesses(task, found, [values_of(guess) for guess in await run(stubbed)], functions)
        left = {name for guess in (*asked, *stubbed) for name in guess.write} - set(start) - set(gold) - set(tests)
        write, delete = {**solved, **tests}, sorted(left)
    phases = [phase(write, delete), phase(back, new), phase({}, sorted(submitted))]
    first, untouched, emptied = await run(phases)
    _judge(task, *(outcome_of(task, done) for done in (first, untouched, emptied)))
    # Files of the failing tests first: most mutants are noticed there.
    first_files = sorted(files, key=lambda name: not any(t.startswith(f"{name}::") for t in info.fail_to_pass))
    limits = _patience(task, first)
    mutated = [Phase(first_files, required, {**solved, **mutant}, (), *limits, stop_at="failure") for mutant in mutants]
    runs = await run(mutated) if mutated else []
    if not mutants:
        return Proof(own_values=own)
    score = sum(not outcome_of(task, done).resolved for done in runs) / len(mutants)
    if len(mutants) > 1 and score < least_score:  # a single one may be equivalent to the solution
        raise Rejected(WEAK)
    return Proof({"mutation_score": f"{score:.2f}", "mutants": str(len(mutants))}, own)


def _patience(task: Task, solved: TestRun) -> tuple[float, float]:
    """Limits in seconds of (all tests, one test), from the times of ``solved``, the run on the solution."""
    taken = [result.seconds for result in solved.results.values()]
    one = 0.5 + 8 * max(taken, default=0.0)
    return min(task.info.timeout_sec, _BRIEF_SECONDS + 4 * sum(taken)), min(test_timeout(task), one)


def _other_inputs(
    task: Task, write: Mapping[str, bytes], delete: Sequence[str], given: Mapping[str, bytes], new: Sequence[str]
) -> list[Phase]:
    """Three runs of tests with altered inputs (``KINDS``) and with the visible ones (``SAME``).

    First all on the solution, which ``write`` and ``delete`` put into the box; then those with altered inputs in a
    fresh process, with other hashes and addresses; then all on the ``given`` files (without ``new`` ones), with
    placeholders for names that the tests import.
    """
    files, same = altered_tests(task, PYTEST), altered_tests(task, PYTEST, (SAME,))
    ids, both, text = altered_ids(task), altered_ids(task, (*KINDS, SAME)), encoder()
    whole, one = task.info.timeout_sec, test_timeout(task)
    brief, hang = min(whole, _BRIEF_SECONDS), min(one, max(_HANG_SECONDS, one / 4))
    start = {**given, **placeholders(task)}
    all_files = sorted({*files, *same})
    return [
        # Writes bytecode: pytest rewrites the asserts of all these tests once, and later runs use it.
        Phase(
            files=all_files,
            ids=both,
            write={**write, **recording_helpers(task, PYTEST), **files, **same},
            delete=delete,
            timeout=whole,
            test_timeout=hang,
            encoder=text,
            bytecode=True,
            stop_at="hang",
        ),
        Phase(
            files=sorted(files), ids=ids, write={}, delete=(), timeout=whole, test_timeout=one, encoder=text, fresh=True
        ),
        Phase(
            files=all_files,
            ids=both,
            write=start,
            delete=[n for n in new if n not in start],
            timeout=brief,
            test_timeout=one,
            encoder=text,
        ),
    ]


def _stubbed(
    task: Task,
    asked: Phase,
    given: Mapping[str, bytes],
    limits: tuple[float, float],
    functions: Collection[str],
) -> list[Phase]:
    """Runs of the tests of ``asked``, which are in the box already, on code that computes nothing.

    First stubs that give constant answers; then a run that records the solution's answers to the visible inputs, and
    stubs that give these answers by heart: for all ``functions``, and for each one of several.
    """
    phase = partial(Phase, timeout=limits[0], test_timeout=limits[1], encoder=asked.encoder)
    teacher, pupils = by_heart(task)
    same, visible = sorted(altered_tests(task, PYTEST, (SAME,))), altered_ids(task, (SAME,))
    taught = [phase(same, visible, write={**given, **task.solution_files(), **teacher})] if teacher else []
    return [
        *(phase(asked.files, asked.ids, write={**given, **stub}) for stub in stubs(task)),
        *taught,
        *(phase(asked.files, asked.ids, write={**given, **placeholders(task), **stub}) for stub in pupils),
        *(phase(asked.files, asked.ids, write={**given, **files}) for files in alone(task, functions).values()),
    ]


def _reference_answers(task: Task, runs: Sequence[TestRun]) -> Reference:
    """The solution's answers to ``_other_inputs``. Raises Rejected if they do not tell a fix from a guess."""
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
) -> dict[str, str]:
    """Judge ``guesses``, the answers of ``_stubbed``; return ``TaskInfo.own_values``. Raises Rejected or Guessable if
    they come too close to ``found``."""
    constant, tried = len(stubs(task)), [*alone(task, functions)]
    rest = guesses[constant + 1 :]
    cheap, known, single = guesses[:constant], rest[: len(rest) - len(tried)], rest[len(rest) - len(tried) :]
    left = left_of(found, cheap, known)
    if why := too_cheap(found, cheap, known) or problem_of(left):
        raise Rejected(why)
    own = few_values(found, left, dict(zip(tried, single, strict=True)))
    if names := replaceable(left, functions, own):
        raise Guessable(GUESSABLE, names)
    return own


def _judge(task: Task, solved: Outcome, untouched: Outcome, emptied: Outcome) -> None:
    """Raise Rejected unless the solution passes and the untouched and the emptied workspace fail as required."""
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
    """At most ``most`` one-line mutations of the code that the solution adds or changes, without the task's own bug."""
    options: list[tuple[str, str, bytes]] = []
    for path, data in sorted(gold.items()) if most else ():
        if b"\r" not in data:
            found = variants(path, start.get(path, b""), data)
            options += [(path, kind, source) for kind, source in found if source != start.get(path)]
    rng = random.Random(f"mutants:{seed}")
    return [{path: source} for path, _, source in rng.sample(options, min(most, len(options)))]


def python_variants(path: str, before: bytes, after: bytes) -> list[tuple[str, bytes]]:
    """Mutate Python code; see ``Variants``."""
    source = after.decode("utf-8", "replace")
    names = changed_functions(before.decode("utf-8", "replace"), source) if path.endswith(".py") else []
    found = [m for name in names for m in mutations(source, function=name, keep_format=True)]
    return [(m.kind, m.source.encode()) for m in found]
