"""Held-out tasks are about something else than those that are trained on: near-duplicates across splits.

Near-duplicates among tasks: their changed code is almost the same text.

Similarity is the Jaccard index of the sets of token 5-grams ("shingles", A. Broder, "On the resemblance and containment
of documents", 1997) over the lines of the diff. It is exact: a few thousand tasks need no sketches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.record.task import Task
from woodshed.tasks.change import Change, change_of

from .leaks import tokenise

SHINGLE = 5
THRESHOLD = 0.8


@dataclass(frozen=True)
class Pair:
    """Two tasks by name; ``crosses``: they are in different splits, so one tells on the other."""

    first: str
    second: str
    similarity: float
    crosses: bool


def near_duplicates(tasks: Sequence[Task], changes: Sequence[Change], threshold: float = THRESHOLD) -> list[Pair]:
    """Pairs of at least ``threshold`` similarity, most similar first."""
    pairs = [
        Pair(
            tasks[first].name,
            tasks[second].name,
            round(similarity, 3),
            tasks[first].info.split != tasks[second].info.split,
        )
        for first, second, similarity in similar(changes, threshold)
    ]
    return sorted(pairs, key=lambda p: (-p.similarity, p.first, p.second))


def similar(changes: Sequence[Change], threshold: float = THRESHOLD) -> Iterator[tuple[int, int, float]]:
    """(number of the first, of the second, similarity) of each pair of ``changes`` with at least ``threshold``."""
    sets = [shingles(change) for change in changes]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, own in enumerate(sets):
        shared: Counter[int] = Counter()
        for shingle in own:
            shared.update(holders[shingle])
            holders[shingle].append(number)
        for other, count in shared.items():
            similarity = count / (len(own) + len(sets[other]) - count)
            if similarity >= threshold:
                yield other, number, similarity


def shingles(change: Change) -> frozenset[tuple[str, ...]]:
    """The 5-grams over the diff's lines, file names and line numbers left out; a shorter text is one shingle."""
    lines = [line for line in change.diff.split("\n") if not line.startswith(("---", "+++", "@@"))]
    tokens = tokenise("\n".join(lines))
    if len(tokens) <= SHINGLE:
        return frozenset([tuple(tokens)]) if tokens else frozenset()
    return frozenset(zip(*(tokens[i:] for i in range(SHINGLE))))


HELDOUT = "heldout"
TWIN = "nearly the same as a held-out task"


def twins_of_heldout(tasks: Sequence[Task]) -> dict[Path, str]:
    """Training tasks whose change is almost that of a held-out one: path -> name of the most similar held-out one.

    Only one of the two may be met in training, and what is evaluated stays. Names need not differ: the same change is
    called the same in another folder, where it may be of another split.
    """
    found: dict[Path, str] = {}
    pairs = sorted(similar([change_of(task) for task in tasks]), key=lambda pair: -pair[2])
    for pair in ((tasks[first], tasks[second]) for first, second, _ in pairs):
        for task, other in (pair, pair[::-1]):
            if task.info.split != HELDOUT and other.info.split == HELDOUT:
                found.setdefault(task.path, other.name)
    return found


def heldout_beside(out: Path, tasks: Sequence[Task]) -> list[Task]:
    """Held-out tasks in the folder ``out`` that are none of ``tasks``."""
    own = {task.path for task in tasks}
    folders = [toml.parent for toml in sorted(out.glob("*/task.toml")) if not toml.parent.name.startswith(".")]
    others = (Task.load(folder) for folder in folders if folder not in own)
    return [task for task in others if task.info.split == HELDOUT]
