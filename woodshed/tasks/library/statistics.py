"""``woodshed tasks stats``: number and size of tasks as tables and plots, beside published benchmarks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from woodshed.record.history import History, Status, read_history
from woodshed.record.task import Task, TaskError
from woodshed.tasks.change import change_of, generator_of, source_of
from woodshed.tasks.find import task_folders
from woodshed.tasks.validate.splits import Pair, near_duplicates

from .difficulty import Spread, spread


@dataclass(frozen=True)
class Published:
    """Medians of a published benchmark, as its source prints them: a number, or a range over several suites."""

    name: str
    changed_lines: str
    prompt_chars: str
    source: str


_REPORT = "Composer 2 Technical Report (Cursor, arXiv:2603.24477), section 5"

BENCHMARKS = (
    Published("SWE-bench (Verified, Multilingual)", "7-10", "1185-3055", _REPORT),
    Published("CursorBench", "181", "390", _REPORT),
)
"""The report gives 7 to 10 changed lines for SWE-bench Verified and Multilingual, and 1,185 to 3,055 characters of
prompt for the public suites that it compares. It says nothing about files and required tests.
"""


@dataclass(frozen=True)
class Size:
    """The size of one task. ``prompt``: characters of the instruction."""

    name: str
    generator: str
    source: str
    split: str
    licence: str
    changed_lines: int
    files: int
    prompt: int
    fail_to_pass: int
    pass_to_pass: int
    mutation_score: float | None = None
    status: Status = "in use"


MEASURES = ("changed_lines", "files", "prompt", "fail_to_pass", "pass_to_pass")


@dataclass(frozen=True)
class Statistics:
    """Statistics of tasks. ``broken``: unreadable task directory -> why. ``duplicates``: near-duplicate pairs.
    ``difficulty``: results of each policy that rated tasks. ``withheld``: number of tasks without a published solution;
    their changed lines and files count as 0."""

    sizes: list[Size]
    duplicates: list[Pair]
    broken: dict[str, str]
    difficulty: list[Spread]
    withheld: int = 0

    def groups(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return (all, generator, source or split) -> group -> {tasks, median of each measure}."""
        keys: dict[str, Callable[[Size], str]] = {
            "all": lambda s: "all tasks",
            "generator": lambda s: s.generator,
            "source": lambda s: s.source,
            "split": lambda s: s.split,
        }
        found: dict[str, dict[str, dict[str, float]]] = {}
        for title, key in keys.items():
            members: dict[str, list[Size]] = defaultdict(list)
            for size in self.sizes:
                members[key(size)].append(size)
            found[title] = {name: _medians(members[name]) for name in sorted(members)}
        return found

    def text(self) -> str:
        """Tables as text."""
        head = ("", "tasks", "changed lines", "files", "prompt chars", "fail to pass", "pass to pass")
        rows: list[tuple[str, ...]] = []
        for title, members in self.groups().items():
            rows += [(f"by {title}", *[""] * 6)] if title != "all" else []
            indent = "  " if title != "all" else ""
            rows += [
                (indent + name, f"{m['tasks']:g}", *(f"{m[k]:g}" for k in MEASURES)) for name, m in members.items()
            ]
        rows.append(("published", *[""] * 6))
        rows += [(f"  {b.name}", "", b.changed_lines, "-", b.prompt_chars, "-", "-") for b in BENCHMARKS]
        first = max(len(row[0]) for row in (head, *rows))
        lines = [(f"{row[0]:{first}}  " + "  ".join(f"{c:>13}" for c in row[1:])).rstrip() for row in (head, *rows)]
        lines += ["", "Medians. Changed lines are added plus removed ones. Published: " + BENCHMARKS[0].source + "."]
        licences = Counter(s.licence for s in self.sizes)
        lines.append("Licences: " + ", ".join(f"{name} {n}" for name, n in licences.most_common()))
        scores = [s.mutation_score for s in self.sizes if s.mutation_score is not None]
        if scores:
            weak = sum(score < 0.5 for score in scores)
            mean = sum(scores) / len(scores)
            lines.append(f"Mutation score: mean {mean:.2f} over {len(scores)} tasks, {weak} of them under 0.5")
        statuses = Counter(s.status for s in self.sizes)
        if set(statuses) != {"in use"}:
            lines.append("Status: " + ", ".join(f"{name} {n}" for name, n in statuses.most_common()))
        if self.difficulty:
            lines.append("Difficulty (shares of tasks, with 95 % intervals):")
            lines += [f"  {each}" for each in self.difficulty]
        crossing = sum(p.crosses for p in self.duplicates)
        lines.append(f"Near-duplicate pairs: {len(self.duplicates)}, of which {crossing} across splits")
        lines += [f"  {p.similarity:.2f}  {p.first}  {p.second}" for p in self.duplicates[:10]]
        if self.withheld:
            lines.append(f"Solution withheld: {self.withheld}; their changed lines and files count as 0")
        lines += [f"cannot be read: {why}" for why in self.broken.values()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "tasks": [vars(s) for s in self.sizes],
            "medians": self.groups(),
            "published": [vars(b) for b in BENCHMARKS],
            "near_duplicates": [vars(p) for p in self.duplicates],
            "broken": self.broken,
            "difficulty": [asdict(each) for each in self.difficulty],
            "withheld": self.withheld,
        }


def collect(paths: Iterable[Path]) -> Statistics:
    """Measure every task directory in ``paths``. Raises TaskError if none can be read."""
    tasks: list[Task] = []
    broken: dict[str, str] = {}
    histories: list[History] = []
    for folder in task_folders(paths):
        try:
            task = Task.load(folder)
            histories.append(read_history(task))
            tasks.append(task)
        except (TaskError, OSError) as error:
            broken[str(folder)] = str(error)
    if not tasks:
        raise TaskError("\n".join(broken.values()))
    changes = [change_of(task) for task in tasks]
    sizes = [
        Size(
            name=t.name,
            generator=generator_of(t),
            source=source_of(t),
            split=t.info.split,
            licence=t.info.provenance.get("licence") or "not stated",
            changed_lines=c.lines,
            files=len(c.files),
            prompt=len(t.instruction),
            fail_to_pass=len(t.info.fail_to_pass),
            pass_to_pass=len(t.info.pass_to_pass),
            mutation_score=_score(t),
            status=h.status,
        )
        for t, c, h in zip(tasks, changes, histories)
    ]
    return Statistics(
        sizes=sizes,
        duplicates=near_duplicates(tasks, changes),
        broken=broken,
        difficulty=spread(histories),
        withheld=sum(t.withheld for t in tasks),
    )


def _score(task: Task) -> float | None:
    try:
        return float(task.info.quality["mutation_score"])
    except (KeyError, ValueError):
        return None


def _medians(sizes: list[Size]) -> dict[str, float]:
    return {"tasks": len(sizes), **{key: float(median(getattr(s, key) for s in sizes)) for key in MEASURES}}


def draw(statistics: Statistics, path: Path) -> None:
    """Plot histograms of changed lines and prompt length, with published medians as lines. Raises ValueError for an
    unsupported file type, OSError if the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = (("changed_lines", "changed lines"), ("prompt", "characters of prompt"))
    for axes, (measure, title) in zip(figure.subplots(1, 2), panels):
        values = [max(1, getattr(s, measure)) for s in statistics.sizes]
        published = [(b.name, b.changed_lines if measure == "changed_lines" else b.prompt_chars) for b in BENCHMARKS]
        ends = [(name, [float(v) for v in text.split("-")]) for name, text in published]
        low, high = min([*values, *(v[0] for _, v in ends)]), max([*values, *(v[-1] for _, v in ends)])
        edges = [low * (high / low) ** (i / 24) for i in range(25)] if high > low else [low * 0.5, low * 2]
        axes.hist(values, bins=edges, color="0.6")
        for (name, bounds), colour in zip(ends, ("tab:blue", "tab:red")):
            if len(bounds) == 2:
                axes.axvspan(*bounds, color=colour, alpha=0.25, label=f"{name} (medians)")
            else:
                axes.axvline(bounds[0], color=colour, label=f"{name} (median)")
        axes.set(xscale="log", xlabel=title, ylabel="tasks")
        axes.legend(fontsize=7)
    figure.savefig(path)
