"""A Node project that needs installing: by rule and by a policy, with the real npm and a registry of this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.node import project
from tests.tasks.sources import repos
from tests.tasks.sources.place import SINGLE, Place
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.install.lock import find_install, load_install
from woodshed.tasks.install.node.registry import Registry
from woodshed.tasks.install.roles import AgentBuilder, AgentSetter
from woodshed.tasks.install.run import Outcome, ground_of, install
from woodshed.tasks.install.space import Boxes
from woodshed.tasks.languages.node.modules import unpack
from woodshed.tasks.languages.node.npm import archive_path, configuration, integrity_of
from woodshed.tasks.packages.catalogue import Module
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import read_sdist
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.sources.spec import parse_source

from .npm_registry import LocalRegistry, archive, local_registry
from .policy import FINISH, call, scripted_policy

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")

PACKAGE = {
    "name": "intervals", "version": "1.2.0", "license": "ISC", "main": "lib/index.js",
    "scripts": {"test": "checked --quick && node --test"},
    "devDependencies": {"@tools/expected": "^1.0.0", "checked": "*", "late": "^2", "gone": "^1"},
}  # fmt: skip
TESTS = (
    "const expected = require('@tools/expected');\n"
    "const late = require(['la', 'te'].join(''));\n"
    "try { require('gone'); } catch { /* nice to have */ }\n" + project.TESTS
    + "it('has what it was installed with', () => assert.equal(expected.eight + late, 10));\n"
)  # fmt: skip
FILES = {**project.FILES, "package.json": json.dumps(PACKAGE), "test/intervals.test.js": TESTS}
INSTALL = "npm install --prefix .woodshed/its @tools/expected {} && mv .woodshed/its/node_modules .\n"
TRIED = "npm install digits; npm install --prefix /tmp digits && cd /tmp && node -p \"require('digits')\"; ls"
GOOD = INSTALL.format("late@2 checked") + "echo '{}' > rates.json\n"


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    with local_registry() as found:
        found.publish("digits", "3.0.0", {"index.js": "module.exports = 30;\n"})
        found.publish("digits", "2.5.0", {"index.js": "module.exports = 8;\n"})  # published after 3.0.0: the latest
        body = "exports.eight = require('digits');\n"
        found.publish("@tools/expected", "1.4.0", {"index.js": body}, dependencies={"digits": "*"})
        command = "#!/usr/bin/env node\nconsole.log('checked');\n"
        found.publish("checked", "0.1.0", {"run.js": command}, bin={"checked": "run.js"})
        found.publish("late", "2.0.1", {"index.js": "module.exports = 2;\n"})
        found.publish("intervals", "1.1.0", {"index.js": "module.exports = {};\n"})
        yield found


@pytest.fixture(scope="module")
def place(market: Place, registry: LocalRegistry) -> Iterator[Place]:
    """``market`` with a Node repository, whose npm asks ``registry``."""
    repos.repository(market.root / "intervals", {name: text.encode() for name, text in FILES.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("npm_config_registry", registry.url)
        market.environment["npm_config_registry"] = registry.url
        yield market
        del market.environment["npm_config_registry"]


def test_by_rule_and_what_is_built_of_it(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "installs"
    said = place.command("install", place.root / "intervals", "--out", out, "--json")
    assert said.returncode == 0, said.stdout + said.stderr
    (line,) = json.loads(said.stdout)
    # two tries: `late` is loaded by a name that no rule reads, `checked` is a command of a script
    assert line["installed"] and line["tries"] == 2, line
    assert line["notes"] == ["gone@^1 was left out: npm could not install it"]
    found = find_install(out, str(place.root / "intervals"))
    places = {m.place: m.version for m in found.installed if isinstance(m, Module)}
    assert places == {"@tools/expected": "1.4.0", "checked": "0.1.0", "digits": "2.5.0", "late": "2.0.1"}
    assert {g.command for g in found.targets} == {
        "node --test test/intervals.test.js",
        "npm test",
        "node -e \"import('./lib/index.js').then((m) => console.log('loaded', Object.keys(m).length))\"",
    }
    again = place.command("install", place.root / "intervals", "--out", out)
    assert again.returncode == 0 and "resolved  @tools/expected 1.4.0, checked 0.1.0, digits 2.5.0" in again.stdout

    built = place.command(
        "build",
        place.root / "intervals",
        "--install",
        out,
        "--out",
        tmp_path / "made",
        "--per-source",
        "2",
        "--catalogue",
        place.catalogue,
        *SINGLE,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    tasks = list((tmp_path / "made").glob("*/task.toml"))
    assert len(tasks) == 2 and "has what it was installed with" in "".join(t.read_text() for t in tasks)

    lock = out / "intervals" / "install.toml"
    lock.write_text(lock.read_text().replace("sha512-", "sha1-", 1))
    with pytest.raises(PackageError, match=r"needs an integrity of the form sha512-BASE64; delete its folder"):
        load_install(lock.parent)


def test_needs_and_tasks_of_it(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "installs"
    wrong = place.command("install", place.root / "intervals", "--out", out, "--needs", "file:../x")
    assert wrong.returncode == 1 and "write an npm package as NAME or NAME@RANGE" in wrong.stdout
    said = place.command(
        "install",
        place.root / "intervals",
        "--out",
        out,
        "--needs",
        "digits@^3",
        "--tasks",
        tmp_path / "made",
        "--catalogue",
        place.catalogue,
    )
    assert "digits 3.0.0" in said.stdout and said.returncode == 1, said.stdout + said.stderr
    assert "install tasks are made from Python projects only" in said.stdout
    with pytest.raises(PackageError, match="--needs has no effect beside --install"):
        place.build(str(place.root / "intervals"), out=tmp_path / "x", wishes=Wishes(installs=out, needs=("digits",)))


def goals() -> list[dict[str, Any]]:
    suite = {
        "command": "node --test",
        "expect": "node reports that all tests pass",
        "pattern": "^# pass 1[0-9]$",
        "passing_share": 1.0,
    }
    others = [
        {
            "command": f"node -p \"{n} * require('digits')\"",
            "expect": "prints a number that is right",
            "pattern": f"^{n * 8}$",
            "exit_codes": [0],
        }
        for n in range(9)
    ]
    return [suite, *others]


def play(place: Place, replies: list[str]) -> tuple[Outcome, list[str]]:
    with scripted_policy() as policy:

        async def work(backend: Backend, layers: LayerStore) -> Outcome:
            boxes = Boxes(backend, layers)
            spec = parse_source(str(place.root / "intervals"))
            ground = ground_of(spec, "intervals", (), place.root / "kept")
            try:
                setter, builder = AgentSetter(policy.open, boxes), AgentBuilder(policy.open, boxes, "the-policy")
                return await install(ground, setter, builder, boxes)
            finally:
                await policy.close()

        policy.says(
            *replies,
        )
        return place.boxes(work), policy.prompts


def hand_in(path: str, content: str) -> str:
    return call("write_file", path=path, content=content)


def test_both_roles_by_a_policy(place: Place) -> None:
    outcome, prompts = play(
        place,
        [
            call("run_command", command=TRIED),
            hand_in(".woodshed/goals.json", json.dumps(goals())),
            FINISH,
            hand_in(".woodshed/setup.sh", INSTALL.format("")),
            FINISH,
            hand_in(".woodshed/setup.sh", GOOD),
            call("run_command", command="sh -e .woodshed/setup.sh && npm test"),
            FINISH,
        ],
    )
    found = outcome.install
    assert found is not None and outcome.tries == 2, outcome.error
    assert "npm installs packages of a" in prompts[0] and "runs mocha, tape or node --test" in prompts[0]
    assert "404 Not Found - GET http://127.0.0.1:4873/gone" in prompts[1]  # which package.json states
    assert "\n8\n" in prompts[1] and "node_modules" in prompts[1]
    said = prompts[5]
    assert "NOT reached" in said and "Cannot find module 'late'" in said
    assert "checked\n" in prompts[7] and "# fail 0" in prompts[7]
    assert [m.version for m in found.installed] == ["1.4.0", "0.1.0", "2.5.0", "2.0.1"]
    assert dict(found.added) == {"rates.json": b"{}\n"} and found.builder == "the-policy"


CHEATS = {
    "it changes package.json; the repository must stay": "echo '{}' > package.json\n",
    "it adds test/more.js; the tests are the repository's own": "echo 'x' > test/more.js\n",
    "it adds lib.js, which takes the place of a module": "echo 'module.exports = 1' > lib.js\n",
    "node_modules/late (late 9.0.0) was not fetched": "mkdir -p node_modules/late\n"
    'echo \'{"name": "late", "version": "9.0.0"}\' > node_modules/late/package.json\n',
    "node_modules/mocha (late) takes the place of a test runner": "mkdir node_modules && ln -s ../lib node_modules/a\n"
    "npm install --prefix .woodshed/its mocha@npm:late@2 && mv .woodshed/its/node_modules/mocha node_modules\n",
}


def test_recipes_that_cheat_are_discarded(place: Place) -> None:
    easy = [{**goals()[1], "command": f"echo {n}", "pattern": str(n)} for n in range(10)]  # nothing but cheating fails
    turns = [turn for recipe in CHEATS.values() for turn in (hand_in(".woodshed/setup.sh", recipe), FINISH)]
    outcome, prompts = play(place, [hand_in(".woodshed/goals.json", json.dumps(easy)), FINISH, *turns])
    assert outcome.install is None and outcome.tries == 5
    for said, why in zip(prompts[4::2], CHEATS, strict=False):
        assert why in said
    assert list(CHEATS)[-1] in outcome.error and "node_modules/a is a link" in outcome.error


def test_the_registry_of_a_box(place: Place, registry: LocalRegistry, tmp_path: Path) -> None:
    with Registry(without=["intervals"], cache=tmp_path) as open_one:
        assert open_one.package("intervals") == {} and open_one.archive("intervals", "1.1.0") is None
        assert open_one.package("nothing-like-it") == {} and "no such package" in open_one.problems[0]
        kept = open_one.package("@tools/expected")["versions"]["1.4.0"]
        assert kept["dependencies"] == {"digits": "*"} and kept["dist"]["tarball"].startswith("http://127.0.0.1:4873/")
        assert open_one.archive("digits", "9.9.9") is None and not open_one.served
        data = open_one.archive("digits", "2.5.0")
        assert data == registry.archives["/digits/-/digits-2.5.0.tgz"]
        for path in ("/../etc/passwd", "/@tools", "/-/archives/../digits/2.5.0.tgz", "/-/v1/search", "/a/b/c"):
            assert open_one.answer(path) is None
        served = list(open_one.served.values())
    asked = len(registry.asked)
    with Registry(only=served, cache=tmp_path) as locked:
        said = locked.package("digits")
        assert list(said["versions"]) == ["2.5.0"] and said["dist-tags"] == {"latest": "2.5.0"}
        assert locked.package("late") == {} and locked.archive("digits", "3.0.0") is None
        assert locked.archive("digits", "2.5.0") == data
    with Registry(only=served, cache=tmp_path / "empty") as bare:
        assert bare.archive("digits", "2.5.0") is None and "locked but not in the cache" in bare.problems[0]
    assert len(registry.asked) == asked
    registry.archives["/late/-/late-2.0.1.tgz"] += b"\n"
    try:
        with Registry(cache=tmp_path / "other") as warned:
            assert warned.archive("late", "2.0.1") is None and "serves other bytes" in warned.problems[0]
    finally:
        registry.archives["/late/-/late-2.0.1.tgz"] = registry.archives["/late/-/late-2.0.1.tgz"][:-1]


def test_a_layer_of_packages_stays_where_it_belongs(tmp_path: Path) -> None:
    said = {
        "name": "@a/tool",
        "version": "1.0.0",
        "bin": {"tool": "./run.js", "": "run.js", "..": "run.js", "a/b": "run.js", "up": "../../x", "gone": "no.js"},
    }
    data = archive({"package.json": json.dumps(said), "run.js": "#!/usr/bin/env node\n"})
    pin = integrity_of(data)
    path = archive_path(pin, tmp_path)
    path.parent.mkdir()
    path.write_bytes(data)
    layers = LayerStore(tmp_path / "layers")
    name = unpack(
        [Module("@a/tool", "@a/tool", "1.0.0", pin)], "/w/node_modules", layers, commands=True, cache=tmp_path
    )
    folder = layers.path(name) / "w" / "node_modules"
    (link,) = (folder / ".bin").iterdir()
    assert link.name == "tool" and link.resolve() == folder / "@a/tool/run.js" and os.access(link, os.X_OK)
    odd = archive({"package.json": "{}", "../up.js": "", "lib": "", "lib/a.js": ""})
    archive_path(integrity_of(odd), tmp_path).write_bytes(odd)
    assert set(read_sdist(archive_path(integrity_of(odd), tmp_path))) == {"package.json", "lib", "lib/a.js"}
    with pytest.raises(PackageError, match=r"odd 1.0.0: lib(/a.js)? is a file and a folder at once"):
        unpack([Module("odd", "odd", "1.0.0", integrity_of(odd))], "/w/node_modules", layers, cache=tmp_path)
    for place in ("/etc/tool", "../tool", "a/../../tool", ""):
        with pytest.raises(PackageError, match="a module with the place"):
            unpack([Module(place, "@a/tool", "1.0.0", pin)], "/w/node_modules", layers, cache=tmp_path)


def test_the_folder_one_stands_in_does_not_configure_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".npmrc").write_text("https-proxy=http://127.0.0.1:1/\n@tools:registry=http://127.0.0.1:1/\n")
    (tmp_path / "package.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    found = configuration()
    assert found["registry"] and not found.get("https-proxy") and "@tools:registry" not in found
