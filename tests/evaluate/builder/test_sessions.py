"""A recorded conversation wrote a commit: the task's query is the first message of its user.

The conversation is real: our agent in a box, the gateway on a port, its journal, and the store of trajectories. Only
what the policy says is written down.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine
from rich.console import Console

from tests.programs import serve_app
from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from tests.tasks.sources.test_replay import TEST_DEAREST
from woodshed.evaluate.builder.accepted import accepted_of, offer
from woodshed.evaluate.builder.ambiguity import Endpoint
from woodshed.evaluate.builder.build import Inputs, build_benchmark
from woodshed.evaluate.builder.describe import figures, task_text
from woodshed.evaluate.builder.lock import load_benchmark, read_lock
from woodshed.evaluate.builder.sessions import read_sessions
from woodshed.evaluate.builder.settings import BenchmarkSettings
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.journal import Journal
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.settings import HarnessSettings
from woodshed.harness.terminal import work_on_folder
from woodshed.policy.formats import get_format
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import BoxSpec

QUERY = "we have cheapest() in prices, pls add the opposite and call it dearest"
OLD = "def split(amount, people):"
NEW = f"""def dearest(prices):
    best = max(prices)
    place = list(prices).index(best)
    return best, place


{OLD}"""
HARNESS = HarnessSettings(tools=("read_file", "edit_file", "finish"))
COMMITTED = 1_750_000_000
"""Unix time of every commit; the session ends a minute before."""
AT = "https://git.example.invalid/team/prices.git"


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def edit(new: str) -> str:
    return call("edit_file", path="src/prices/__init__.py", old_string=OLD, new_string=new)


def engine(*replies: str) -> ScriptedEngine:
    said = iter(replies)
    return ScriptedEngine(lambda _: HERMES.encode(f"{next(said)}<|im_end|>", allow_special=True), context=1 << 16)


@pytest.fixture
def repository(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its commits have the same ids in every run, because what a task is asked besides is drawn by the commit."""
    for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.setenv(name, f"@{COMMITTED} +0000")
    folder = tmp_path / "prices"
    other = b"from prices import total\n\n\ndef test_nothing_to_pay():\n    assert total([]) == 0\n"
    repos.repository(folder, {**repos.PROJECT, "LICENSE": repos.MIT, "tests/test_more.py": other})
    repos.git(folder, "remote", "add", "origin", "git@git.example.invalid:team/prices.git")
    return folder


def work(repository: Path, folder: Path) -> tuple[Path, Path]:
    """The agent works on the repository; (store, journal) with the record of it."""
    journal = Journal(folder / "journal")
    policy = engine(call("read_file", path="src/prices/__init__.py"), edit(NEW), call("finish"))
    app = build_app(policy, get_format("hermes"), HERMES, admin_key=ADMIN, journal=journal)
    store = TrajectoryStore(folder / "trajectories")

    async def talk(url: str) -> None:
        backend = open_backend("namespace")
        async with GatewayAdmin(url, ADMIN) as admin:
            key = await admin.open("talk-1", source="live", labels={"repository": AT})
            chat = HttpEndpoint(url, key, "policy")
            try:
                console = Console(file=io.StringIO())
                box = await backend.create(BoxSpec(workdir=HARNESS.workdir))
                episode = await work_on_folder(repository, QUERY, chat, box, HARNESS, console, yes=True)
            finally:
                await chat.close()
                await backend.close()
            finished = await admin.finish("talk-1", messages=True)
        assert finished.about["source"] == "live"
        store.add(
            Trajectory(
                id=finished.id,
                task="",
                group="",
                source="live",
                harness_hash="",
                policy="policy",
                status=episode.status,
                segments=finished.segments,
                messages=episode.messages,
                events=episode.events,
                labels=dict(finished.about["labels"]),
                started=COMMITTED - 600,
                ended=COMMITTED - 60,
            )
        )

    with serve_app(app) as url:
        asyncio.run(talk(url))
    journal.close()
    store.close()
    return folder / "trajectories", journal.path


def test_a_commit_of_a_session_becomes_a_task(
    place: Place, repository: Path, settings: BenchmarkSettings, tmp_path: Path
) -> None:
    store, journal = work(repository, tmp_path)
    assert "def dearest" in (repository / "src/prices/__init__.py").read_text(), "the agent's edit was written back"
    tests = repos.TESTS.replace(b"import cheapest, split", b"import cheapest, dearest, split") + TEST_DEAREST
    repos.write(repository, {"tests/test_prices.py": tests})
    repos.git(repository, "commit", "-q", "-a", "-m", "Improve the prices module (#3)")
    sessions = read_sessions([store], [])
    assert [s.id for s in sessions] == ["talk-1"] and sessions[0].asked == (QUERY,)
    (of_journal,) = read_sessions([], [journal])
    assert of_journal.written == sessions[0].written and of_journal.asked == (QUERY,)
    assert of_journal.repository == AT

    # two readings of the query: one solves it another way, one does nothing
    readings = engine(edit(NEW.replace("best", "highest")), call("finish"), call("finish"))
    app = build_app(readings, get_format("hermes"), HERMES, admin_key=ADMIN)
    out = tmp_path / "bench"
    chosen = settings.model_copy(
        update={"readings": 2, "min_stated": 0.5, "trace": settings.trace.model_copy(update={"min_share": 0.2})}
    )
    with serve_app(app) as url:
        key = asyncio.run(_opened(url))
        inputs = Inputs([str(repository)], sessions, endpoint=Endpoint(url, key, "policy"))
        made = place.boxes(lambda b, layers: build_benchmark(inputs, chosen, out, b, layers))

    (traced,) = made.traced
    assert traced.session.id == "talk-1" and traced.lines == 4, "the tests are the user's own"
    (task,) = load_benchmark(out)
    assert task.instruction == QUERY + "\n"
    entry = read_lock(out).tasks[task.path.name]
    assert (entry.origin, entry.query, entry.stated) == ("session", "terse", 0.5), "its tests compare with 52 too"
    assert figures(read_lock(out))["tasks_from_sessions"] == 1
    assert task.info.provenance["sessions"] == "talk-1"
    (accepted,) = accepted_of(out, task.path.name)
    assert accepted.origin == "reading 0 of policy" and b"highest" in accepted.submission["src/prices/__init__.py"]
    shown = task_text(out, task)
    assert "1 of 2 solve it, agreement -, 1 empty" in shown and "accepted besides the reference" in shown

    wrong = {"src/prices/__init__.py": accepted.submission["src/prices/__init__.py"].replace(b"max(", b"min(")}
    for files, resolved in ((wrong, False), (dict(accepted.submission), True), (task.solution_files(), True)):
        outcome, digest = place.boxes(lambda b, layers, files=files: offer(out, task, files, "test", b, layers))
        assert outcome.resolved == resolved and digest == "", "wrong, known, or the reference: nothing new is kept"


async def _opened(url: str) -> str:
    async with GatewayAdmin(url, ADMIN) as admin:
        return await admin.open("readings", source="eval")
