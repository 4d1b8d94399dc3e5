"""Nothing that is trained on tells on what is held out: near-duplicates across splits, held-out code in other texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.stages.examples import Example, save_examples
from woodshed.stages.failures import StageFailed
from woodshed.stages.tasks import check_training_data
from woodshed.tasks.generators.packages.build import separated
from woodshed.tasks.generators.packages.report import BuildReport, Ledger, PackageYield
from woodshed.tasks.validate.check import Verdict, mark_twins
from woodshed.tasks.validate.contamination import contamination, held_out_repositories
from woodshed.tasks.validate.splits import TWIN, twins_of_heldout

from . import tiny

BUG = tiny.SHAPES.replace(b"width < 0 or height", b"width < 0 and height")
OTHER = tiny.SHAPES.replace(b"width * width + height", b"width * width - height")


def task(path: Path, split: str, start: bytes, package: str = "tinyshapes", gold: bytes = tiny.SHAPES) -> Task:
    info = TaskInfo(
        family="package", split=split, key=path.name, provenance={"package": package, "generator": "package"}
    )
    return save_task(
        path,
        name=f"woodshed/{path.name}",
        instruction="fix",
        info=info,
        workspace={"shapes.py": start},
        tests={"test.sh": b"", "workspace/test_shapes.py": tiny.TESTS},
        solution={"shapes.py": gold},
    )


def test_the_training_side_of_a_pair_is_named(tmp_path: Path) -> None:
    tasks = [
        task(tmp_path / "held", "heldout", BUG),
        task(tmp_path / "twin", "train", BUG + b"\n# a comment\n", gold=tiny.SHAPES + b"\n# a comment\n"),
        task(tmp_path / "other", "train", OTHER),
        task(tmp_path / "again", "heldout", BUG),
    ]
    assert set(twins_of_heldout(tasks)) == {tmp_path / "twin"}
    assert twins_of_heldout(tasks[2:]) == {}


def test_the_same_name_in_two_folders_is_no_excuse(tmp_path: Path) -> None:
    held, twin = task(tmp_path / "a" / "area", "heldout", BUG), task(tmp_path / "b" / "area", "train", BUG)
    for tasks in ([held, twin], [twin, held]):
        assert twins_of_heldout(tasks) == {twin.path: held.name} and held.name == twin.name
        verdicts = [Verdict(t.path, t.name) for t in tasks]
        mark_twins(verdicts)
        assert {v.path for v in verdicts if "twin" in v.failures} == {twin.path}


def test_a_build_drops_the_training_side_and_a_check_fails_on_it(tmp_path: Path) -> None:
    kept = [task(tmp_path / "held", "heldout", BUG), task(tmp_path / "twin", "train", BUG)]
    verdicts = [Verdict(t.path, t.name) for t in kept]
    mark_twins(verdicts)
    assert [set(v.failures) for v in verdicts] == [set(), {"twin"}] and "drop one of the two" in str(verdicts[1])
    line, ledger = PackageYield("tinyshapes", kept=2), Ledger(tmp_path / ".tinyshapes.jsonl", "x")
    line.count("package", True)
    assert separated(kept, BuildReport([line]), {"tinyshapes": ledger}, tmp_path) == kept[:1]
    assert not (tmp_path / "twin").exists() and line.kept == 1 and ledger.verdicts == {"twin": TWIN}


def test_held_out_repositories_are_those_that_nobody_trains_on(tmp_path: Path) -> None:
    mixed = [task(tmp_path / "a", "heldout", BUG, "mixed"), task(tmp_path / "b", "train", OTHER, "mixed")]
    found = held_out_repositories([*mixed, task(tmp_path / "c", "heldout", BUG, "whole")])
    assert set(found) == {"whole"} and found["whole"] == {"shapes.py": tiny.SHAPES}


NUMBERED = "".join(f"\n{n}{line}" for n, line in enumerate(tiny.SHAPES.decode().split("\n"), 1))


@pytest.mark.parametrize("text", [tiny.SHAPES.decode(), NUMBERED, tiny.SHAPES.decode().replace("'", '"')])
def test_held_out_code_is_found_in_any_form(text: str) -> None:
    found = contamination({"whole": {"shapes.py": tiny.SHAPES}}, ["def f(): pass", f"user: read this\n{text}\ndone"])
    assert {m.function for m in found} >= {"shapes.py:area", "shapes.py:size"} and {m.text for m in found} == {1}
    assert contamination({"whole": {"shapes.py": tiny.SHAPES}}, [tiny.TESTS.decode(), "x = 1"]) == []


SCRIPT = b"""'use strict';

/** Adds up. */
function total(rows, key) {
  let sum = 0;
  for (const row of rows) {
    if (row[key] !== undefined) sum += Number(row[key]);
  }
  return sum;
}

const short = (a) => { return a; };
module.exports = { total, short };
"""


def node_task(path: Path, split: str, package: str) -> Task:
    info = TaskInfo(family="package", grader="node", split=split, provenance={"package": package})
    return save_task(
        path,
        name=f"woodshed/{path.name}",
        instruction="fix",
        info=info,
        solution={"lib/total.js": SCRIPT},
        workspace={"lib/total.js": b"", "lib/more.mjs": SCRIPT, "test/total.test.js": SCRIPT, "data.json": b"{}"},
        tests={"test.sh": b"", "workspace/test/total.test.js": SCRIPT},
    )


def test_held_out_javascript_is_found(tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter_javascript")
    mixed = [node_task(tmp_path / "a", "heldout", "mixed"), node_task(tmp_path / "b", "train", "mixed")]
    found = held_out_repositories([*mixed, node_task(tmp_path / "c", "heldout", "whole")])
    assert found == {"whole": {"lib/total.js": SCRIPT, "lib/more.mjs": SCRIPT}}
    numbered = "".join(f"\n{n}: {line}" for n, line in enumerate(SCRIPT.decode().split("\n"), 1))
    for text in (SCRIPT.decode(), numbered, SCRIPT.decode().replace("'", '"').replace("  ", "\t")):
        met = contamination(found, ["const a = 1;", f"read this\n{text}\ndone"])
        assert {(m.function, m.text) for m in met} == {("lib/total.js:total", 1), ("lib/more.mjs:total", 1)}
    assert contamination(found, ["const short = (a) => { return a; };", "function total(rows, key) {}"]) == []
    assert contamination({"broken": {"a.js": b"function ("}}, [SCRIPT.decode()]) == []


@pytest.mark.parametrize("place", ["corpus", "demonstrations"])
def test_a_run_that_trains_on_held_out_code_stops(tmp_path: Path, place: str) -> None:
    run = RunDirectory(tmp_path / "run")
    task(run.tasks("packages-heldout") / "c", "heldout", BUG, "whole")
    task(run.tasks("packages-train") / "d", "train", OTHER, "other")
    tokenizer = Tokenizer(train_bpe([tiny.SHAPES.decode()] * 3, 300, ["<end>"]))
    run.corpus.mkdir(parents=True)
    tokenizer.save(run.corpus / "tokenizer.json")

    def train_on(folder: str, text: str) -> None:
        tokens = np.asarray(tokenizer.encode(text), np.int32)
        save_examples(tmp_path / "run" / folder / "examples.npz", [Example(tokens, np.ones(len(tokens), np.float32))])

    train_on("corpus", "def mean(values):\n    return sum(values) / len(values)\n")
    train_on("demonstrations", "def first(values):\n    return values[0]\n")
    assert check_training_data(run) == 1
    train_on(place, f"read this\n{tiny.SHAPES.decode()}")
    with pytest.raises(StageFailed, match=rf"(?s){place}/examples.npz: example 0 holds 100% of shapes.py:\w+ of whole"):
        check_training_data(run)
