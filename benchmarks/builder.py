"""Build a benchmark from real repositories and measure number, size, clarity and contamination of its tasks.

    python benchmarks/builder.py --repository PATH ... [--per-source 4] [--sessions 2] [--dir runs/builder]

Give at least five git repositories with a history. There are no recorded sessions of people here, so sessions are
*played*: for the newest commits of each repository our agent repeats the commit's edits in a box, through a real
gateway, with a scripted policy; the user's message is the commit's title. That measures tracing and the way from a
record to a task, not how people ask. Half of the sessions are labelled with another repository, and must not be traced.
``ambiguity_agreement`` is by rules unless ``--endpoint`` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from result import write_result

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.gateway.parts import ADMIN, HERMES, ScriptedEngine  # noqa: E402
from tests.programs import serve_app  # noqa: E402
from tests.tasks.packages.test_leaks import PLANTS  # noqa: E402
from woodshed.evaluate.builder.ambiguity import Endpoint  # noqa: E402
from woodshed.evaluate.builder.build import Inputs, Round, _traced, build_benchmark, summary  # noqa: E402
from woodshed.evaluate.builder.describe import figures as headline  # noqa: E402
from woodshed.evaluate.builder.lock import LOCK, load_benchmark, read_lock  # noqa: E402
from woodshed.evaluate.builder.overlap import overlaps, parts_of  # noqa: E402
from woodshed.evaluate.builder.sessions import LABEL, read_sessions  # noqa: E402
from woodshed.evaluate.builder.settings import BenchmarkSettings  # noqa: E402
from woodshed.evaluate.builder.trace import unix  # noqa: E402
from woodshed.gateway.app import build_app  # noqa: E402
from woodshed.gateway.client import GatewayAdmin  # noqa: E402
from woodshed.harness.endpoint import HttpEndpoint  # noqa: E402
from woodshed.harness.loop import run_episode  # noqa: E402
from woodshed.harness.settings import HarnessSettings, OutputSettings  # noqa: E402
from woodshed.policy.formats import get_format  # noqa: E402
from woodshed.record.cache import cache_directory  # noqa: E402
from woodshed.record.store import TrajectoryStore  # noqa: E402
from woodshed.record.task import Task  # noqa: E402
from woodshed.record.trajectory import Trajectory  # noqa: E402
from woodshed.sandbox.backends.by_name import open_backend  # noqa: E402
from woodshed.sandbox.layers import LayerStore  # noqa: E402
from woodshed.sandbox.protocol import BoxSpec  # noqa: E402
from woodshed.tasks.change import change_of  # noqa: E402
from woodshed.tasks.generators.prompts.write import cleaned  # noqa: E402
from woodshed.tasks.library.statistics import BENCHMARKS  # noqa: E402
from woodshed.tasks.packages.history import Commit, replayable  # noqa: E402
from woodshed.tasks.packages.workspace import MAX_FILE_BYTES  # noqa: E402
from woodshed.tasks.sources.repository import Objects, read_repository, write_bundle  # noqa: E402
from woodshed.tasks.validate.leaks import scan  # noqa: E402

HARNESS = HarnessSettings(
    tools=("read_file", "edit_file", "write_file", "finish"), output=OutputSettings(snippet=False), workdir="/workspace"
)
DECOY = "https://git.example.invalid/nobody/other.git"


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def edits(path: str, before: str, after: str) -> Iterator[str]:
    """Yield calls that turn ``before`` into ``after``: a replacement of each hunk with enough lines around it to be
    unique, or one call that writes the whole file."""
    old, new = before.splitlines(True), after.splitlines(True)
    every = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    codes = [code for code in every if code[0] != "equal"]
    calls = []
    for _, a, b, c, d in reversed(codes):  # from the end, so that the text before a hunk is as it was
        for around in range(1, 40):
            low, high = max(0, a - around), min(len(old), b + around)
            text = "".join(old[low:high])
            if text and before.count(text) == 1:
                put = "".join([*old[low:a], *new[c:d], *old[b:high]])
                calls.append(call("edit_file", path=path, old_string=text, new_string=put))
                break
        else:
            yield call("write_file", path=path, content=after)
            return
        before = before.replace(text, put, 1)
        old = before.splitlines(True)
    yield from calls


class Played:
    """A session to play, which repeats the source changes of ``commit``. ``at``: Unix time of the commit."""

    def __init__(self, repository: str, place: Path, commit: Commit, objects: Objects) -> None:
        self.commit = commit
        self.id = f"{place.name}-{commit.id[:12]}"
        self.repository, self.at = repository, unix(commit.date)
        before, after = objects.files(commit.parent), objects.files(commit.id)
        self.message = f"{cleaned(commit.message)[0]}, please"
        self.files = {n: d for n, d in before.items() if len(d) <= MAX_FILE_BYTES}
        self.calls: list[str] = []
        for name in commit.files:
            if name.endswith(".py") and name in after and not is_test(name):
                old, new = (f.get(name, b"").decode("utf-8", "replace") for f in (before, after))
                self.calls += edits(name, old, new)


async def play(url: str, engine: ScriptedEngine, store: TrajectoryStore, played: Played) -> None:
    """Play one session: the policy replies with the edits of a commit, our agent makes them in a box, and the gateway
    records them."""
    said = iter([*played.calls, call("finish")])
    engine.say = lambda _: HERMES.encode(f"{next(said)}<|im_end|>", allow_special=True)
    backend = open_backend("namespace")
    box = await backend.create(BoxSpec(workdir=HARNESS.workdir))
    try:
        await box.put(played.files)
        async with GatewayAdmin(url, ADMIN) as admin:
            key = await admin.open(played.id, source="live", labels={LABEL: played.repository})
            chat = HttpEndpoint(url, key, "played")
            episode = await run_episode(played.message, box, chat, HARNESS)
            await chat.close()
            finished = await admin.finish(played.id, messages=True)
    finally:
        await box.close()
        await backend.close()
    refused = [event for event in episode.events if event.error]
    if refused:
        print(f"{played.id}: {len(refused)} edits refused: {refused[0].error} {refused[0].result[:80]}", flush=True)
    store.add(
        Trajectory(
            id=played.id,
            task="",
            group="",
            source="live",
            harness_hash="",
            policy="played",
            status=episode.status,
            segments=finished.segments,
            messages=episode.messages,
            events=episode.events,
            labels=dict(finished.about["labels"]),
            started=played.at - 3600,
            ended=played.at - 1800,
        )
    )


def is_test(name: str) -> bool:
    return name.startswith("tests/") or name.rpartition("/")[2].startswith("test_")


def plan(places: Sequence[Path], each: int, scratch: Path) -> tuple[list[Played], list[dict[str, str]]]:
    """Return (sessions to play, repositories): ``each`` sessions of every repository and as many decoys."""
    sessions: list[Played] = []
    repositories = []
    for place in places:
        commit = read_repository(str(place), "").commit
        write_bundle(str(place), commit, scratch / f"{place.name}.bundle")
        objects = Objects(scratch / f"{place.name}.bundle")
        try:
            log = objects.log(commit, first_parent=True)
            replay = BenchmarkSettings().tasks().replay
            tops = sorted({n.partition("/")[0] for n in objects.files(commit) if n.endswith(".py") and "/" in n})
            code = [top for top in tops if top not in ("tests", "test", "docs", "examples")]
            chosen = replayable(log, code, ("tests", "test"), replay)[: 2 * each]
            root = objects.roots(commit)[0]
            sessions += [Played(root, place, each_, objects) for each_ in chosen[::2]]
            sessions += [Played(DECOY, place, each_, objects) for each_ in chosen[1::2]]
            repositories.append({"name": place.name, "commit": commit, "commits": str(len(log))})
        finally:
            objects.close()
    return sessions, repositories


async def play_all(sessions: Sequence[Played], url: str, engine: ScriptedEngine, store: TrajectoryStore) -> None:
    for played in sessions:
        await play(url, engine, store, played)


def planted(tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Plant leaks in the workspace (three kinds for each task, in turn), in the query and in a corpus, and scan for
    them; return [planted, found] by kind of leak."""
    found: dict[str, list[int]] = {}

    def count(kind: str, hit: bool) -> None:
        both = found.setdefault(kind, [0, 0])
        both[0] += 1
        both[1] += hit

    kinds = list(PLANTS.items())
    for number, task in enumerate(tasks):
        start, gold = task.workspace_files(), task.solution_files()
        path = max((n for n in gold if n.endswith(".py")), key=lambda n: len(gold[n]))
        for turn in range(3 * number, 3 * number + 3):
            kind, (name, pack) = kinds[turn % len(kinds)]
            name = f"zz/{name.rpartition('/')[2]}"
            leaks = scan({name: pack(gold[path])}, start, {path: gold[path]})  # files are scanned one by one
            count(kind, any(leak.path == name for leak in leaks))
        diff = change_of(task).diff
        query = f"{task.instruction}\n{diff}".encode()
        count("diff in the query", bool(scan({"(instruction)": query}, start, gold)))
        parts = parts_of(task)
        tests = "\n".join(d.decode("utf-8", "replace") for d in task.test_files().values())
        for part, text in (("diff", "\n".join(d.decode("utf-8", "replace") for d in gold.values())), ("tests", tests)):
            if part in parts:
                hits = overlaps([task], [("corpus", text)], BenchmarkSettings().max_overlap)
                count(f"{part} in a corpus", any(hit.part == part for hit in hits))
    return found


async def build(inputs: Inputs, settings: BenchmarkSettings, out: Path) -> Round:
    backend, layers = open_backend(), LayerStore(cache_directory() / "layers")

    def say(done: int, total: int, note: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {done}/{total} {note}", flush=True)

    try:
        return await build_benchmark(inputs, settings, out, backend, layers, say)
    finally:
        await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repository", type=Path, action="append", required=True, help="git repository; again for more"
    )
    parser.add_argument("--per-source", type=int, default=4, help="tasks wanted from the history of each")
    parser.add_argument("--sessions", type=int, default=2, help="sessions played for each, and as many decoys")
    parser.add_argument("--attempts", type=int, default=4, help="commits tried for each task wanted")
    parser.add_argument("--dir", type=Path, default=Path("runs/builder"), help="where the build works")
    parser.add_argument("--endpoint", default="", help="Chat Completions server that readings are sampled from")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/builder.json")
    arguments = parser.parse_args()
    started = time.monotonic()
    folder: Path = arguments.dir
    folder.mkdir(parents=True, exist_ok=True)
    sessions, repositories = plan(arguments.repository, arguments.sessions, folder)
    store = TrajectoryStore(folder / "trajectories")
    known = {row["id"] for row in store.rows()}
    engine = ScriptedEngine(lambda _: [], context=1 << 22)
    app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
    with serve_app(app) as url:
        asyncio.run(play_all([s for s in sessions if s.id not in known], url, engine, store))
    store.close()
    settings = BenchmarkSettings(per_source=arguments.per_source, attempts=arguments.attempts)
    endpoint = Endpoint(arguments.endpoint, "none", arguments.model) if arguments.endpoint else None
    recorded = read_sessions([folder / "trajectories"], [])
    inputs = Inputs([str(place) for place in arguments.repository], recorded, endpoint=endpoint)
    bench = folder / "bench"
    if (bench / LOCK).exists():  # an earlier start built it and was stopped while it measured
        lock = read_lock(bench)
        made = Round(1, dict(lock.tasks), dict(lock.rounds[0]["left_out"]), traced=_traced(inputs, settings, ""))
        made.gates = {name: {} for name in lock.tasks}  # a task that fails a gate is not locked
    else:
        made = asyncio.run(build(inputs, settings, bench))
    write(folder, made, sessions, repositories, endpoint, time.monotonic() - started, arguments.out)


def write(
    folder: Path,
    made: Round,
    sessions: Sequence[Played],
    repositories: list[dict[str, str]],
    endpoint: Endpoint | None,
    seconds: float,
    path: Path | None,
) -> None:
    tasks = load_benchmark(folder / "bench")
    lock = read_lock(folder / "bench")
    head = headline(lock)
    plants = planted(tasks)
    failed = {name: dict(why) for name, why in made.gates.items() if why}
    own = {s.commit.id for s in sessions if s.repository != DECOY}
    traced = {each.commit.id for each in made.traced}
    right = {each.commit.id for each in made.traced if each.session.id.endswith(each.commit.id[:12])}
    used = {entry.source for entry in lock.in_use.values()}
    agreement = head["agreement_of_readings"] if endpoint else head["stated_by_rules"]
    figures: dict[str, float | None] = {
        "repositories": len(used),
        "tasks": head["tasks"],
        "tasks_from_history": head["tasks_from_history"],
        "tasks_from_sessions": head["tasks_from_sessions"],
        "median_changed_lines": head["median_changed_lines"],
        "median_prompt_chars": head["median_prompt_chars"],
        "ambiguity_agreement": agreement,
        "ambiguity_is_by_rules": float(endpoint is None),
        "terse_titles_state": round(mean(made.terse.values()), 3) if made.terse else None,
        "planted_leaks": sum(both[0] for both in plants.values()),
        "planted_leaks_found": sum(both[1] for both in plants.values()),
        "oracle_1_and_no_op_0": round(sum(not made.gates[task.path.name] for task in tasks) / len(tasks), 3),
        "sessions_played": len(own),
        "sessions_traced": len(traced & own),
        "sessions_traced_wrongly": len(traced - own) + len(traced - right),
    }
    detail: dict[str, Any] = {
        "repositories": repositories,
        "published": [vars(each) for each in BENCHMARKS],
        "ambiguity": "by rules (words that the tests need, and that no file tells, stated by the query); no endpoint"
        if endpoint is None
        else f"pairwise agreement of {endpoint.model}",
        "sessions": "played: our agent repeats the edits of a commit through a gateway; the message is its title",
        "decoys": len(sessions) - len(own),
        "queries": dict(Counter(entry.query for entry in lock.in_use.values())),
        "left_out": dict(Counter(why.partition(":")[0] for why in made.left_out.values())),
        "left_out_tasks": made.left_out,
        "plants": plants,
        "failed_gates": failed,
        "yield": [table.splitlines() for table in made.tables],
        "minutes": round(seconds / 60, 1),
        "tasks": {
            name: {
                "date": e.date[:10], "origin": e.origin, "query": e.query, "lines": e.changed_lines,
                "chars": e.prompt_chars, "stated": round(e.stated, 3),
            }
            for name, e in sorted(lock.in_use.items())
        },
        "round": {key: len(value) for key, value in summary(made).items()},
    }  # fmt: skip
    write_result("builder", figures, detail, path)


if __name__ == "__main__":
    main()
