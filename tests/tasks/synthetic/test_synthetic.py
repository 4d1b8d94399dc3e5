"""Synthetic tasks: how many meanings there are, how splits keep apart, that seeds decide everything, what lands on
disk."""

from __future__ import annotations

import json
import keyword
import random
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.record.task import Task
from woodshed.tasks.generators.synthetic import (
    HIDDEN,
    NOUNS,
    TEMPLATES,
    VISIBLE,
    SyntheticSpec,
    draw_functions,
    draw_synthetic,
    semantic_keys,
    solution_edit,
    split_of,
    write_synthetic,
)
from woodshed.tasks.generators.synthetic.function import SHARES, build_function
from woodshed.tasks.generators.synthetic.worker import build_synthetic, failing_cases
from woodshed.tasks.languages.python import apply_line, normalise
from woodshed.tasks.validate.leaks import scan


@pytest.fixture(scope="module")
def specs() -> list[SyntheticSpec]:
    return draw_synthetic(40, split="train", seed=11, workers=1)


_LOOP = """
def NAME(*args):
    while True:
        try:
            pass
        except Exception:
            pass
"""


def _run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "run_tests.py"], cwd=folder, capture_output=True, text=True)


def test_there_are_enough_templates_meanings_and_names() -> None:
    assert len(TEMPLATES) >= 30
    keys = semantic_keys()
    assert len(keys) == len(set(keys)) >= 1500
    assert 0.15 < len(semantic_keys("heldout")) / len(keys) < 0.25
    assert len(set(NOUNS)) == len(NOUNS) >= 48
    assert not [n for n in NOUNS if n in sys.stdlib_module_names or keyword.iskeyword(n) or not n.isalpha()]


def test_every_choice_of_every_template_renders_and_nearly_all_make_a_function() -> None:
    rng = random.Random(0)
    built = total = 0
    for template in TEMPLATES:
        for choice in template.choices()[::7]:
            name, source, _ = template.render(choice, rng)
            assert normalise(source) == source and name.isidentifier()
            assert 2 <= len(source.splitlines()) <= 10
            built += build_function(template, choice, rng) is not None
            total += 1
    assert built / total > 0.95


def test_no_two_keys_of_one_family_are_the_same_function() -> None:
    """Equal behaviour under two keys would let a held-out meaning into training."""
    seen: dict[tuple[str, str, str], str] = {}
    clashes = []
    for template in TEMPLATES:
        for choice in template.choices():
            rng = random.Random(7)
            function = build_function(template, choice, rng)
            if function is None:
                continue
            values = json.dumps([[c.args, c.want] for c in function.cases])
            mark = (template.family, str(template.args), values)
            if seen.setdefault(mark, function.key) != function.key:
                clashes.append((seen[mark], function.key))
    assert len(clashes) < 0.02 * len(semantic_keys()), clashes


def test_splits_share_no_key(specs: list[SyntheticSpec]) -> None:
    held = draw_synthetic(24, split="heldout", seed=11, workers=1)
    assert all(split_of(key) == "heldout" for spec in held for key in spec.keys)
    assert all(split_of(key) == "train" for spec in specs for key in spec.keys)
    every = [key for split in SHARES for key in semantic_keys(split)]
    assert sorted(every) == sorted(semantic_keys()), "each key belongs to one split"
    for split, share in SHARES.items():
        assert abs(len(semantic_keys(split)) / len(every) - share) < 0.03


def test_a_seed_decides_everything_whatever_the_workers(specs: list[SyntheticSpec]) -> None:
    assert draw_synthetic(40, split="train", seed=11, workers=2) == specs
    assert draw_synthetic(3, split="train", seed=11, start=5, workers=1) == specs[5:8]
    assert build_synthetic("train", 11, 2) == specs[2]
    assert draw_synthetic(3, split="sft", seed=11, workers=1) != specs[:3]
    assert draw_functions(5, 3, "train") == draw_functions(5, 3, "train")
    assert draw_functions(5, 3, "train") != draw_functions(5, 4, "train")


def test_each_synthetic_task_has_one_killed_mutation(specs: list[SyntheticSpec]) -> None:
    assert {kind for s in specs for kind in s.kinds} >= {"compare", "binop", "constant"}
    for spec in specs:
        (bug,) = spec.bugs
        function = spec.functions[bug.module]
        assert apply_line(bug.mutation.source, bug.mutation.line, bug.mutation.before) == function.source
        assert bug.failing[0] < VISIBLE <= bug.failing[-1]
        assert failing_cases(bug.mutation.source, function.name, function.cases) == bug.failing
        assert all(failing_cases(f.source, f.name, f.cases) == () for f in spec.functions)
        for f in spec.functions:
            assert len(f.cases) == VISIBLE + HIDDEN >= 16
            assert len({json.dumps(c.args) for c in f.cases}) == len(f.cases)
            assert json.loads(json.dumps([c.want for c in f.cases])) == [c.want for c in f.cases]
        assert SyntheticSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_share_has_two_bugs_and_the_others_are_the_same(specs: list[SyntheticSpec]) -> None:
    mixed = draw_synthetic(40, split="train", seed=11, two_bugs=0.4, workers=2)
    two = [spec for spec in mixed if len(spec.bugs) == 2]
    assert 8 < len(two) < 24
    assert all(spec in two or spec == same for spec, same in zip(mixed, specs, strict=True))
    for spec in two:
        assert len({bug.module for bug in spec.bugs}) == 2
        for bug in spec.bugs:
            function = spec.functions[bug.module]
            assert failing_cases(bug.mutation.source, function.name, function.cases) == bug.failing
            assert bug.failing[0] < VISIBLE <= bug.failing[-1]


def test_mutants_that_loop_are_passed_over() -> None:
    function = draw_functions(1, 0, "train")[0]
    assert failing_cases(_LOOP.replace("NAME", function.name), function.name, function.cases) == ()


def test_written_tasks_fail_and_the_solution_line_repairs_them(specs: list[SyntheticSpec], tmp_path: Path) -> None:
    for spec in specs[:6]:
        task = write_synthetic(spec, tmp_path / spec.name.rpartition("/")[2])
        module = spec.modules[spec.bugs[0].module]
        assert task == Task.load(task.path) and task.instruction == f"fix: {' '.join(spec.modules)}"
        assert set(task.workspace_files()) == {*(f"{m}.py" for m in spec.modules), "run_tests.py", "cases.json"}
        assert len(json.loads(task.workspace_files()["cases.json"])[0][2]) == VISIBLE
        ids = {*task.info.fail_to_pass, *task.info.pass_to_pass}
        assert ids == {f"{m}::{i}" for m in spec.modules for i in range(VISIBLE + HIDDEN)}
        broken = _run_tests(task.workspace)
        lines = broken.stdout.splitlines()
        assert broken.returncode == 1 and len(lines) == 4 and lines[0] == f"FAIL {module}"
        assert lines[2].startswith("want ") and lines[3].startswith("got ")
        assert [len(line) <= width for line, width in zip(lines[1:], (44, 33, 32))] == [True] * 3
        path, line, text = solution_edit(task)
        assert path == f"{module}.py"
        target = task.workspace / path
        target.write_text(apply_line(target.read_text(), line, text))
        fixed = _run_tests(task.workspace)
        assert (fixed.returncode, fixed.stdout) == (0, f"PASS {3 * VISIBLE}\n")
        assert not list(task.workspace.rglob("*.pyc"))
        (task.workspace / "cases.json").write_bytes(task.test_files()["cases.harbor.json"])
        assert _run_tests(task.workspace).stdout == f"PASS {3 * (VISIBLE + HIDDEN)}\n"


def test_visible_runner_survives_loops_and_broken_modules(specs: list[SyntheticSpec], tmp_path: Path) -> None:
    spec = specs[0]
    task = write_synthetic(spec, tmp_path / "synthetic")
    target, name = task.workspace / f"{spec.modules[0]}.py", spec.functions[0].name
    for source, got in (
        (_LOOP.replace("NAME", name), "Timeout"),
        (f"def {name}(*args):\n    raise SystemExit(0)\n", "SystemExit"),
        ("def nothing(:\n", "SyntaxError"),
    ):
        target.write_text(source)
        done = _run_tests(task.workspace)
        assert done.returncode == 1 and done.stdout.splitlines()[0] == f"FAIL {spec.modules[0]}"
        assert done.stdout.splitlines()[3] == f"got {got}"


def test_no_other_module_shows_the_answer() -> None:
    """This one did, before drawing looked for what the leak gate finds: ``(item * 2) else:`` of another module."""
    (spec,) = draw_synthetic(1, split="sft", seed=1, start=5)
    (bug,) = spec.bugs
    others = {
        f"{m}.py": f.source.encode() for i, (m, f) in enumerate(zip(spec.modules, spec.functions)) if i != bug.module
    }
    path = f"{spec.modules[bug.module]}.py"
    gold = {path: spec.functions[bug.module].source.encode()}
    assert scan(others, {path: bug.mutation.source.encode()}, gold) == []
