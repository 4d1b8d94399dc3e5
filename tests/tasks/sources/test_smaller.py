"""A group of which one function cannot be told from a guess becomes a task without that function."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tasks.packages.test_groups import ALL, FUNCTIONS, POP, PUSH, SHOW, SUITE, WORKSPACE
from woodshed.record.jsonl import read_jsonl
from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate, candidates, group_candidate
from woodshed.tasks.generators.changes.partition import unplanned
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.generators.packages.work import LEFT_OUT, smaller
from woodshed.tasks.validate.guessing import GUESSABLE

from . import repos
from .place import Place
from .test_build import tree

INIT = FUNCTIONS[0]
CHECK = "posters/text.py:check"
SIZES = [(7 * n + 3, 5 * n + 2) for n in range(1, 9)]
PAPERS = "\n".join(f"    assert paper({w}, {h}) == {(w + 4) * (h + 4) + w % 3}" for w, h in SIZES)
POSTERS = {
    "posters/__init__.py": "",
    "posters/frame.py": '''from posters.text import check, line, paper, stamp, width


def poster(words, strict=False, mark=None):
    """The words, one in each line of a frame."""
    if strict:
        check(words)
    wide = width(words)
    rows = [line(word, wide) for word in words]
    if paper(wide, len(rows)) > 10000:
        raise ValueError("too large")
    if mark:
        rows.append(stamp(mark))
    edge = "+" + "-" * wide + "+"
    return "\\n".join([edge, *rows, edge])
''',
    "posters/text.py": '''def line(word, wide):
    """A word between bars."""
    filled = word.ljust(wide, ".")
    return "|" + filled[::-1] + "|"


def width(words):
    """The longest word counts, and each adds one."""
    longest = max(len(word) for word in words)
    return longest + len(words)


def check(words):
    """Raises ValueError where a word is empty."""
    empty = [word for word in words if not word]
    if empty:
        raise ValueError(empty)


def paper(wide, high):
    """Area of the paper, with a margin on all sides."""
    area = (wide + 4) * (high + 4)
    return area + wide % 3


def stamp(mark):
    """A number for a mark, between angle brackets."""
    found = sum(ord(letter) for letter in mark)
    return f"<{found}>"


def shout(text):
    """In capital letters."""
    found = text.upper()
    return found + "!"


def halve(number):
    """Half of it, and the rest."""
    whole, rest = divmod(number, 2)
    return whole, rest
''',
    "tests/test_posters.py": '''from posters.frame import poster
from posters.text import halve, paper, shout


def test_poster():
    assert poster(["one", "seven"]) == "+-------+\\n|....eno|\\n|..neves|\\n+-------+"


def test_long_poster():
    assert poster(["elephant", "is", "wide"]).split("\\n")[1] == "|...tnahpele|"


def test_rows():
PAPERS
    assert poster(["ab", "cd"], mark="me").split("\\n")[3] == "<210>"


def test_strict():
    poster(["some", "words"], strict=True)


def test_shout():
    assert shout("hello") == "HELLO!"
    assert shout("other words") == "OTHER WORDS!"


def test_shout_again():
    assert shout("a1") == "A1!"


def test_halve():
    assert halve(7) == (3, 1)


def test_halve_even():
    assert halve(8) == (4, 0)


def test_constant():
    assert 1 + 1 == 2
'''.replace("PAPERS", PAPERS),
}  # fmt: skip


def trial(**settings: Any) -> Any:
    """What ``smaller`` reads of a trial."""
    asked = ALL.model_copy(update={"kinds": ("delete_class",), **settings})
    return SimpleNamespace(suite=SUITE, workspace=WORKSPACE, settings=asked, splits=unplanned(asked, "words"))


def group(kind: str, lead: Any) -> Candidate:
    found = group_candidate(SUITE, WORKSPACE, kind, lead, trial().splits)
    assert found is not None
    return found


def test_what_is_left_stays_of_its_kind() -> None:
    whole = group("delete_class", PUSH)
    less = smaller(trial(), whole, [POP.place])
    assert less is not None and less.kind == whole.kind and less.slug != whole.slug
    assert set(less.functions) == {INIT, PUSH, SHOW} and less.stated == {LEFT_OUT: POP.place}
    assert b"return self.items.pop()" in less.source and b"return self.items.pop()" not in whole.source
    other = smaller(trial(), whole, [INIT.place])
    assert other is not None and other.function == PUSH, "named after a function that goes"
    three = [f.place for f in whole.functions][1:]
    assert smaller(trial(), whole, three) is None, "one function is no group"
    feature = group("delete_feature", SHOW)
    assert len(feature.files) == 2
    assert smaller(trial(), feature, ["words/text.py:join"]) is None, "it would be of one file"
    assert smaller(trial(), feature, ["words/stack.py:_shown"]) is not None
    assert smaller(trial(), feature, [SHOW.place]) is not None, "join is public too"


def test_what_is_no_group_or_offered_anyway_is_not_made_smaller() -> None:
    whole = group("delete_class", PUSH)
    single = next(iter(candidates(ALL.model_copy(update={"kinds": ("delete_function",)}), SUITE, WORKSPACE)))
    assert smaller(trial(), single, [single.function.place]) is None
    assert smaller(trial(), whole, ["words/text.py:join"]) is None, "nothing is left out"
    methods = ("delete_class", "delete_methods")
    assert smaller(trial(), whole, [SHOW.place]) is not None
    assert smaller(trial(kinds=methods), whole, [SHOW.place]) is None, "Stack.pop leads to these three"


@pytest.fixture(scope="module")
def posters(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Task], BuildReport]:
    root, report = tmp_path_factory.mktemp("posters"), BuildReport()
    folder = repos.write(root / "posters", {name: text.encode() for name, text in POSTERS.items()})
    return folder, root / "out", built(place, folder, root / "out", report), report


def built(place: Place, folder: Path, out: Path, report: BuildReport) -> list[Task]:
    return place.build(
        str(folder), out=out, report=report, kinds=["delete_feature"], tasks_per_package=1, heldout_share=0.0
    )


def test_the_group_without_it_is_kept(posters: tuple[Path, Path, list[Task], BuildReport]) -> None:
    """No value tells whether ``check`` is fixed. Those that tell of ``line``, ``width`` and ``stamp`` are few beside
    those of ``paper``, and are required."""
    _, out, tasks, report = posters
    (task,), (line,) = tasks, report.packages
    assert task.info.provenance[LEFT_OUT] == CHECK and "line" in task.info.provenance["also"]
    assert CHECK not in task.info.provenance["also"]
    assert set(task.info.own_values) == {f"posters/text.py:{name}" for name in ("line", "width", "stamp")}
    assert set(task.solution_files()) == {"posters/frame.py", "posters/text.py"}
    start = task.workspace_files()["posters/text.py"]
    assert b"raise ValueError(empty)" in start and b"ljust" not in start
    assert (line.tried, line.kept, line.smaller) == (2, 1, [1, 1]), report.table()
    assert line.rejected == {GUESSABLE: 1} and line.kinds == {"delete_feature": [2, 1]}
    assert "1 groups were tried again without guessable functions, 1 kept" in report.table()
    rows = [row for row in read_jsonl(out / ".posters.jsonl") if "rejected" in row]
    assert [(row["slug"] == task.path.name, row.get("guessable")) for row in rows] == [(False, [CHECK]), (True, None)]


def test_a_kill_between_both_changes_nothing(
    place: Place, tmp_path: Path, posters: tuple[Path, Path, list[Task], BuildReport]
) -> None:
    folder, out, tasks, first = posters
    whole = tree(out)
    report = BuildReport()
    again = built(place, folder, out, report)
    assert [t.name for t in again] == [t.name for t in tasks] and tree(out) == whole
    assert report.packages[0].counts() == first.packages[0].counts(), "every verdict is known"
    ledger = out / ".posters.jsonl"
    ledger.write_text(ledger.read_text().splitlines(True)[0])  # killed after the first verdict
    for file in sorted(tasks[0].path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    tasks[0].path.rmdir()
    report = BuildReport()
    assert [t.name for t in built(place, folder, out, report)] == [t.name for t in tasks]
    assert tree(out) == whole and report.packages[0].counts() == first.packages[0].counts()
