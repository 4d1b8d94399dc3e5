"""Agreement of readings, overlap with a corpus."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from woodshed.evaluate.builder.ambiguity import pairwise
from woodshed.evaluate.builder.lock import BenchmarkError
from woodshed.evaluate.builder.overlap import corpus_texts, overlaps, parts_of
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.record.trajectory import Trajectory

START = b"def total(prices):\n    return sum(prices)\n"
ADDED = b"""

def shares(amount, people, *, rounding="down", smallest=1):
    whole, rest = divmod(abs(amount), people * smallest)
    sign = -1 if amount < 0 else 1
    each = [sign * whole * smallest for _ in range(people)]
    for index in range(rest if rounding == "down" else people - rest):
        each[index % people] += sign * smallest
    return each
"""
OTHER = b"""

def spread(prices, *, ignore=0):
    kept = sorted(price for price in prices if price > ignore)
    return kept[-1] - kept[0] if len(kept) > 1 else None
"""
TESTS = b"""from prices import shares


def test_shares():
    assert shares(10, 3) == [4, 3, 3] and shares(-10, 3) == [-4, -3, -3]
    assert shares(100, 7, smallest=5) == [15, 15, 15, 15, 15, 15, 10]
"""


def _task(folder: Path, name: str, added: bytes, tests: bytes = TESTS) -> Task:
    return save_task(
        folder / name,
        name=f"w/{name}",
        instruction="-",
        info=TaskInfo(fail_to_pass=("tests/test_prices.py::test_shares",), split="heldout"),
        workspace={"src/prices.py": START},
        tests={"test.sh": b"", "workspace/tests/test_prices.py": tests},
        solution={"src/prices.py": START + added},
    )


def test_agreement_is_the_share_of_agreeing_pairs() -> None:
    rng = random.Random(0)
    for _ in range(50):
        count, tests = rng.randint(2, 7), [f"t{n}" for n in range(rng.randint(1, 5))]
        readings = [{test: rng.random() < 0.6 for test in tests} for _ in range(count)]
        pairs = [[one[test] == other[test] for one, other in itertools.combinations(readings, 2)] for test in tests]
        expected = sum(sum(agree) / len(agree) for agree in pairs) / len(tests)
        assert pairwise(readings) == pytest.approx(expected)
    assert pairwise([{"t": True}]) is None and pairwise([]) is None
    assert pairwise([{"t": True}, {"t": False}]) == 0.0


@pytest.mark.parametrize("form", ["file", "jsonl", "parquet", "bytes", "map", "escaped", "new", "compacted"])
@pytest.mark.parametrize("part", ["diff", "tests"])
def test_a_diff_or_its_tests_in_a_corpus_are_found(tmp_path: Path, form: str, part: str) -> None:
    task, other = _task(tmp_path, "one", ADDED), _task(tmp_path, "two", OTHER, b"def test_shares():\n    pass\n")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    text = "# training\n" + (ADDED if part == "diff" else TESTS).decode() + "\nmore = 1\n"
    (corpus / "clean.py").write_text("def total(prices):\n    return sum(prices)\n" * 20)
    if form == "file":
        (corpus / "x.py").write_text(text)
    elif form == "jsonl":
        (corpus / "x.jsonl").write_text('{"text": "nothing"}\n' + json.dumps({"meta": {"body": [text]}}) + "\n")
    elif form == "parquet":
        pq.write_table(pa.table({"text": ["nothing", text]}), corpus / "x.parquet")
    elif form == "bytes":
        pq.write_table(pa.table({"content": [b"nothing", text.encode()]}), corpus / "x.parquet")
    elif form == "map":
        files = pa.array([[], [("a.py", text)]], pa.map_(pa.string(), pa.string()))
        pq.write_table(pa.table({"files": files}), corpus / "x.parquet")
    elif form in ("new", "compacted"):
        store = TrajectoryStore(corpus / "x.trajectories")
        messages = [{"role": "assistant", "content": text}]
        store.add(Trajectory("a", "w/a", "g", "train", "h", "p", "submitted", messages=messages))
        if form == "compacted":
            store.compact(minimum=1)
        store.close()
    else:
        (corpus / "x.txt").write_text(json.dumps(text))
    (found,) = overlaps([task, other], corpus_texts([corpus]), 0.5)
    assert (found.task, found.part) == ("w/one", part) and found.share == 1.0 and found.text.startswith("x.")


def test_unchanged_repeated_lines_are_not_of_the_diff(tmp_path: Path) -> None:
    results = [str(n) for n in range(80)]
    changed = [f"shares({n}, people, rounding={n + 1}, smallest={n + 2})" for n in (0, 1, 78, 79)]
    start, gold = (
        "".join(f"@cached\ndef f(x):\n    x += 1\n    return {result}\n\n\n" for result in each)
        for each in (results, [*changed[:2], *results[2:78], *changed[2:]])
    )
    task = save_task(
        tmp_path / "task",
        name="w/task",
        instruction="-",
        info=TaskInfo(split="heldout"),
        workspace={"a.py": start.encode()},
        tests={"test.sh": b""},
        solution={"a.py": gold.encode()},
    )
    (found,) = overlaps([task], [("copied", "\npass\n".join(f"return {each}" for each in changed))], 0.5)
    assert found.share == 1.0


def test_what_the_agent_has_anyway_and_short_diffs_are_not_searched(tmp_path: Path) -> None:
    short = _task(
        tmp_path, "short", b"\n\ndef low(prices):\n    return min(prices)\n", b"def test_shares():\n    pass\n"
    )
    assert parts_of(short) == {}
    task = _task(tmp_path, "long", ADDED)
    start = frozenset(zip(*(["def", "total", "(", "prices", ")", ":", "return", "sum"][i:] for i in range(8))))
    assert not parts_of(task)["diff"] & start
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "half.py").write_bytes(ADDED[: len(ADDED) // 3])
    assert overlaps([task], corpus_texts([corpus]), 0.5) == []
    with pytest.raises(NotADirectoryError, match="no such folder"):
        list(corpus_texts([tmp_path / "none"]))
    (corpus / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(BenchmarkError, match=r"cut\.parquet: cannot be read as Parquet"):
        list(corpus_texts([corpus]))
