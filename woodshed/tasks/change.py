"""The difference between the workspace of a task and its reference solution."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from woodshed.record.task import Task

_PAIRS = 500_000
"""Maximum number of pairs of equal lines of an exact comparison, which takes about two seconds at most then. A table of
10,000 lines that differs at both ends has millions of pairs, and takes minutes."""


@dataclass(frozen=True)
class Change:
    """``diff``: unified diff from the workspace to the solution. ``lines``: number of added plus removed lines, as
    benchmarks count their patches."""

    files: tuple[str, ...]
    lines: int
    diff: str


def change_of(task: Task) -> Change:
    """Return the change that the reference solution makes. A file that is not text counts as one changed line."""
    files, parts, lines = [], [], 0
    for path, gold in task.solution_files().items():
        place = task.workspace / path
        start = place.read_bytes() if place.is_file() and not place.is_symlink() else None
        if start == gold:
            continue
        files.append(path)
        try:
            before, after = _lines(start or b""), _lines(gold)
        except UnicodeDecodeError:
            parts.append(f"binary file {path} differs")
            lines += 1
            continue
        hunks = list(_hunks(before, after))
        lines += sum(line[0] in "+-" for line in hunks)
        parts.append("\n".join([f"--- a/{path}", f"+++ b/{path}", *hunks] if hunks else []))
    return Change(tuple(files), lines, "\n".join(parts))


class LineMatcher(difflib.SequenceMatcher[str]):
    """Compares the lines of two versions of a file.

    By default difflib matches no line that makes up more than 1% of a file of 200 lines, and so finds many unchanged
    lines changed. Here every line is matched, unless the part between the common beginning and end has more than
    ``_PAIRS`` pairs of equal lines.
    """

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        super().__init__(None, before, after)
        self.before, self.after = before, after

    def get_matching_blocks(self) -> list[difflib.Match]:
        before, after = self.before, self.after
        shorter = min(len(before), len(after))
        same = next((i for i, (one, other) in enumerate(zip(before, after)) if one != other), shorter)
        rest = shorter - same
        end = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
        old, new = before[same : len(before) - end], after[same : len(after) - end]
        counts = Counter(new)
        pairs = sum(counts[line] for line in old)
        found = difflib.SequenceMatcher(None, old, new, autojunk=pairs > _PAIRS).get_matching_blocks()
        blocks = [(0, 0, same), *((i + same, j + same, size) for i, j, size in found)]
        blocks.append((len(before) - end, len(after) - end, end))
        return [*(difflib.Match(*b) for b in blocks if b[2]), difflib.Match(len(before), len(after), 0)]


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the hunks of a unified diff, with three lines of context."""
    for group in LineMatcher(before, after).get_grouped_opcodes(3):
        (_, start, _, now_start, _), (_, _, stop, _, now_stop) = group[0], group[-1]
        yield f"@@ -{_range(start, stop)} +{_range(now_start, now_stop)} @@"
        for tag, i, j, k, end in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i:j])
            else:
                yield from (f"-{line}" for line in before[i:j])
                yield from (f"+{line}" for line in after[k:end])


def _range(start: int, stop: int) -> str:
    """Return the lines ``start`` to ``stop`` as a unified diff states them: the first of them, or the line before where
    there is none, and their number unless it is 1."""
    size = stop - start
    return str(start + 1) if size == 1 else f"{start + bool(size)},{size}"


def _lines(data: bytes) -> list[str]:
    """Return the lines of a text as git sees them: only a line feed ends one, and a last line without one differs from
    the same line with one. Raises UnicodeDecodeError."""
    *whole, rest = data.decode().split("\n")
    return [*whole, f"{rest}\n\\ No newline at end of file"] if rest else whole


def generator_of(task: Task) -> str:
    """Return how the task was made: ``bug`` (one changed line), ``deletion`` (one body removed), the name of another
    kind of change, else the family."""
    known = {"mutate": "bug", "delete_function": "deletion"}
    stated = task.info.provenance.get("generator", "")
    if stated:
        return known.get(stated, stated)
    if task.info.family in ("synthetic", "package") and task.info.kind:
        return known.get(task.info.kind, "bug")
    return task.info.family


def source_of(task: Task) -> str:
    """Return the origin of the code: the name of the package, else the family of the task."""
    return task.info.provenance.get("package") or task.info.family
