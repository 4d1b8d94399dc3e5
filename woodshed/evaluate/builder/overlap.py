"""Decontamination: find tasks whose reference diff or tests are contained in a training text.

The n-grams of the added lines, without those in the agent's files, are searched in every text of a corpus: files of any
kind below a folder (including archives and escaped text), each line of JSON lines, each row of Parquet, and every file
of task directories of a training split.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.grading.pytest_grader import TESTS_PREFIX
from woodshed.record.task import Task
from woodshed.record.walk import all_below
from woodshed.tasks.change import LineMatcher
from woodshed.tasks.validate.contamination import GRAM
from woodshed.tasks.validate.leak_readers import texts_of
from woodshed.tasks.validate.leaks import tokenise

from .lock import BenchmarkError

FEWEST = 12
"""Diffs and tests with fewer n-grams than this are not searched, because the same text may occur by chance."""
_SKIPPED = frozenset({".git", ".hg", "__pycache__"})
Gram = tuple[str, ...]


@dataclass(frozen=True)
class Overlap:
    """A text that contains ``share`` of the n-grams of a task's ``part`` (``diff`` or ``tests``)."""

    task: str
    part: str
    text: str
    share: float


def parts_of(task: Task) -> dict[str, frozenset[Gram]]:
    """Return the n-grams of each part, without those in the agent's version of the files, and without parts that have
    fewer than ``FEWEST``."""
    start, gold = task.workspace_files(), task.solution_files()
    graded = {n.removeprefix(TESTS_PREFIX): d for n, d in task.test_files().items() if n.startswith(TESTS_PREFIX)}
    files = {test.partition("::")[0] for test in task.info.fail_to_pass}
    found = {"diff": _added(start, gold), "tests": _added(start, {n: d for n, d in graded.items() if n in files})}
    return {part: grams for part, grams in found.items() if len(grams) >= FEWEST}


def _added(start: Mapping[str, bytes], after: Mapping[str, bytes]) -> frozenset[Gram]:
    """Return the n-grams of all runs of added lines, without those of the files before the change."""
    grams: set[Gram] = set()
    for path in after:
        before, now = (f.get(path, b"").decode("utf-8", "replace").splitlines() for f in (start, after))
        for first, last in _runs(before, now):
            grams |= _grams("\n".join(now[first:last]))
        grams -= _grams("\n".join(before))
    return frozenset(grams)


def _runs(before: Sequence[str], now: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of added lines."""
    for tag, _, _, first, last in LineMatcher(before, now).get_opcodes():
        if tag in ("insert", "replace"):
            yield first, last


def _grams(text: str) -> set[Gram]:
    tokens = tokenise(text)
    return set(zip(*(tokens[i:] for i in range(GRAM)), strict=False))


def overlaps(tasks: Sequence[Task], texts: Iterable[tuple[str, str]], most: float) -> list[Overlap]:
    """Return, for each task and part, the text with the largest share of its n-grams, if that is above ``most``.
    ``texts``: (name, text)."""
    forms: list[tuple[str, str, int]] = []
    holders: dict[Gram, list[int]] = defaultdict(list)
    for task in tasks:
        for part, grams in parts_of(task).items():
            for gram in grams:
                holders[gram].append(len(forms))
            forms.append((task.name, part, len(grams)))
    best: dict[int, Overlap] = {}
    for source, text in texts:
        counts = Counter(number for gram in _grams(text) for number in holders.get(gram, ()))
        for number, count in counts.items():
            name, part, total = forms[number]
            share = count / total
            if share > most and (number not in best or best[number].share < share):
                best[number] = Overlap(name, part, source, share)
    return [best[number] for number in sorted(best)]


def corpus_texts(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of everything below ``folders``. Raises OSError if something cannot be read, BenchmarkError if
    Parquet is damaged."""
    for folder in folders:
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder}: no such folder")
        for path in all_below(folder, skip=_SKIPPED):
            if path.is_file() and not path.is_symlink():
                yield from _texts(path, path.relative_to(folder).as_posix())


def _texts(path: Path, name: str) -> Iterator[tuple[str, str]]:
    if path.suffix == ".parquet":
        for number, row in enumerate(_rows(path)):
            yield f"{name}:{number}", "\n".join(_strings(row))
    elif path.suffix == ".jsonl":
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield f"{name}:{number}", "\n".join(_strings(json.loads(line)))
                except (ValueError, RecursionError):
                    yield f"{name}:{number}", line.decode("utf-8", "replace")
    else:
        yield from ((name, text) for text in texts_of(path.read_bytes()))


def _rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BenchmarkError(f"{path}: cannot be read as Parquet ({error}); move it out of the corpus") from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield from texts_of(value)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, (list, tuple)):  # a row of a map is a list of pairs
        for each in value:
            yield from _strings(each)
