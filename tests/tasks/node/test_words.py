"""What is tried on JavaScript and what its instructions tell, by the settings; nothing runs."""

from __future__ import annotations

from typing import get_args

import pytest

from woodshed.tasks.generators.changes.candidates import candidates, combinations
from woodshed.tasks.generators.changes.groups import GROUPS
from woodshed.tasks.generators.packages.node_toolchain import NODE
from woodshed.tasks.generators.packages.node_trial import NodeTrial
from woodshed.tasks.generators.prompts.write import Facts, Shown, template
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.settings import Kind, PackageTaskSettings
from woodshed.tasks.validate.reasons import wrong_reason

CODE = """\
/** Adds up. */
function add(a, b) {
  const sum = a + b;
  if (sum > 9) return 9;
  return sum;
}

function sub(a, b) {
  const rest = a - b;
  if (rest < 0) return 0;
  return rest;
}
"""
TEST = "test/add.js::adds"
FUNCTIONS = tuple(
    CoveredFunction("lib/add.js", name, line, line + 4, 4, (TEST,)) for name, line in (("add", 2), ("sub", 8))
)
WORKSPACE = {"lib/add.js": CODE.encode()}


def test_kinds_that_need_python_are_left_out_and_others_combine() -> None:
    settings = PackageTaskSettings(kinds=get_args(Kind), per_function=3, heldout_share=0.0, heldout_packages=())
    suite = Suite("adder", {TEST: 0.1}, FUNCTIONS, {}, 0.1)
    found = list(candidates(settings, suite, WORKSPACE, NODE.change, NODE.kinds & GROUPS.keys()))
    assert {c.kind for c in found} == {"mutate", "delete_function"} and len(found) > 2
    first = next(c for c in found if c.function.name == "add")
    second = next(c for c in found if c.function.name == "sub")
    (both,) = combinations(settings, WORKSPACE, [first, second])
    assert both.kind in NODE.kinds and both.files["lib/add.js"] not in (first.source, second.source)


@pytest.mark.parametrize("level", ["precise", "normal", "terse"])
@pytest.mark.parametrize("kind", ["mutate", "delete_function"])
def test_instructions_speak_of_javascript(level: str, kind: str) -> None:
    settings = PackageTaskSettings(kinds=(kind,), heldout_packages=())  # type: ignore[arg-type]
    suite = Suite("adder", {TEST: 0.1}, FUNCTIONS[:1], {}, 0.1)
    (candidate,) = candidates(settings, suite, WORKSPACE, NODE.change, ())
    shown = Shown("/** Adds up. */\nfunction add(a, b)", 2)
    texts = {TEST: "AssertionError: expected 3, got 5"}
    said = template(settings, level, Facts(candidate, WORKSPACE, {}, WORKSPACE, (TEST,), texts, (), shown))
    assert "python" not in said and "docstring" not in said and "NotImplementedError" not in said
    assert ("```js\n/** Adds up. */\nfunction add(a, b)\n```" in said) == (level == "precise" and kind != "mutate")


def test_a_missing_module_is_no_reason_and_an_error_of_a_parser_is_one() -> None:
    assert wrong_reason("Error: Cannot find module 'chai'", grader="node")
    assert wrong_reason("SyntaxError: Unexpected token }", grader="pytest")
    assert not wrong_reason("SyntaxError: Unexpected token } in JSON", grader="node")


def test_mutants_of_a_solution_change_what_it_changes() -> None:
    before = NODE.change("delete_function", FUNCTIONS[0], CODE, None)  # type: ignore[arg-type]
    assert before is not None
    found = NodeTrial.variants(None, "lib/add.js", before[1].encode(), CODE.encode())  # type: ignore[arg-type]
    assert found and all(b"const rest = a - b;\n  if (rest < 0) return 0;" in source for _, source in found)
