"""Find near-duplicates among tasks, and training tasks that nearly repeat a held-out one.

Similarity is the Jaccard index of the sets of token 5-grams ("shingles", A. Broder, "On the resemblance and containment
of documents", 1997) over the lines of the diff. It is computed exactly: a few thousand tasks need no sketches.
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
    """Two similar tasks, by name; ``crosses``: they are in different splits, so training on one leaks the other."""

    first: str
    second: str
    similarity: float
    crosses: bool


def near_duplicates(tasks: Sequence[Task], changes: Sequence[Change], threshold: float = THRESHOLD) -> list[Pair]:
    """Pairs of tasks with a similarity of at least ``threshold``, most similar first."""
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
    """Yield (index, index, similarity) of each pair of ``changes`` with a similarity of at least ``threshold``."""
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
    """The 5-grams of a diff without file names and line numbers; a shorter text is one shingle."""
    lines = [line for line in change.diff.split("\n") if not line.startswith(("---", "+++", "@@"))]
    tokens = tokenise("\n".join(lines))
    if len(tokens) <= SHINGLE:
        return frozenset([tuple(tokens)]) if tokens else frozenset()
    return frozenset(zip(*(tokens[i:] for i in range(SHINGLE))))


HELDOUT = "heldout"
TWIN = "nearly the same as a held-out task"


def twins_of_heldout(tasks: Sequence[Task]) -> dict[Path, str]:
    """Training tasks that nearly repeat a held-out one: path -> name of the most similar held-out task.

    The two may have the same name: the same change has the same name in another folder, where its split may differ.
    """
    found: dict[Path, str] = {}
    pairs = sorted(similar([change_of(task) for task in tasks]), key=lambda pair: -pair[2])
    for pair in ((tasks[first], tasks[second]) for first, second, _ in pairs):
        for task, other in (pair, pair[::-1]):
            if task.info.split != HELDOUT and other.info.split == HELDOUT:
                found.setdefault(task.path, other.name)
    return found


def heldout_beside(out: Path, tasks: Sequence[Task]) -> list[Task]:
    """Held-out tasks in the folder ``out`` that are not among ``tasks``."""
    own = {task.path for task in tasks}
    folders = [toml.parent for toml in sorted(out.glob("*/task.toml")) if not toml.parent.name.startswith(".")]
    others = (Task.load(folder) for folder in folders if folder not in own)
    return [task for task in others if task.info.split == HELDOUT]
