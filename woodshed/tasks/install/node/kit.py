"""The kit for Node: npm installs archives into ``node_modules``; mocha, tape or node:test run the tests."""

from __future__ import annotations

import glob
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from woodshed.grading.install.changes import COMPILED, CONFIGURES, OWN_TESTS, TAKES, Refusal, changes
from woodshed.grading.install.goal import Goal
from woodshed.sandbox.guest.template import command_path
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Sandbox
from woodshed.tasks.install.kit import TOOLS, Archive, Left, Pinned, Served
from woodshed.tasks.install.space import Boxes, Ground
from woodshed.tasks.install.use import only_modules
from woodshed.tasks.languages.node.modules import unpack, wished_modules
from woodshed.tasks.languages.node.npm import archive_path
from woodshed.tasks.languages.node.project import RUNNERS
from woodshed.tasks.packages.catalogue import Module
from woodshed.tasks.packages.dependencies import remembered
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import WORKDIR
from woodshed.tasks.packages.source import read_sdist
from woodshed.tasks.packages.workspace import below

from .registry import Registry
from .rules import NodeRuleBuilder, node_goals

PASSING = frozenset([".nyc_output", "coverage", "package-lock.json", ".package-lock.json"])
"""Names of files that tools leave behind and that are ignored, besides those of ``changes``."""

_CONFIGURATION = re.compile(
    r"package\.json|npm-shrinkwrap\.json|\.npmrc|\.mocharc(\..*)?|\.taprc|\.c8rc.*|\.nycrc.*|\.babelrc.*"
)
_SUFFIXES = (".js", ".cjs", ".mjs", ".json", ".node")
_TEST = re.compile(r"(?:.*[._-])?(?:tests?|spec)|test[-_].*")


def node_refusal(before: Mapping[str, bytes], tests: Sequence[str]) -> Refusal:
    """Return a function that says why a recipe may not add a file. ``before``: the repository; ``tests``: its tests."""
    folders = {str(parent) for name in before for parent in PurePosixPath(name).parents}
    stems = {str(PurePosixPath(name).with_suffix("")) for name in before if name.endswith(_SUFFIXES)}

    def why(path: PurePosixPath) -> str:
        if _CONFIGURATION.fullmatch(path.name):
            return f", which {CONFIGURES}"
        if "node_modules" in path.parts:
            return ", a package that is not in node_modules of the working directory"
        if path.suffix == ".node":
            return f", {COMPILED}"
        if path.suffix not in _SUFFIXES:
            return ""
        stem = str(path.with_suffix(""))
        if path.suffix != ".json" and (any(below(str(path), t) for t in tests) or _TEST.fullmatch(path.stem)):
            return OWN_TESTS
        shadows = stem in folders or stem in stems or (path.stem == "index" and str(path.parent) in stems)
        return f", which {TAKES}" if shadows else ""

    return why


_LIST = """
import json, os

def walk(folder, place):
    for name in sorted(os.listdir(folder)):
        path, at = os.path.join(folder, name), place + name
        if name.startswith("."):
            continue
        if os.path.islink(path):
            links.append(at)
        elif name.startswith("@") and os.path.isdir(path):
            walk(path, at + "/")
        elif os.path.isdir(path):
            try:
                with open(os.path.join(path, "package.json"), encoding="utf-8-sig") as file:
                    said = json.load(file)
                found.append([at, str(said["name"]), str(said["version"])])
            except (OSError, ValueError, KeyError, TypeError):
                found.append([at, "", ""])
            if os.path.isdir(os.path.join(path, "node_modules")):
                walk(os.path.join(path, "node_modules"), at + "/node_modules/")

found, links = [], []
if os.path.islink("node_modules"):
    links.append("node_modules")
elif os.path.isdir("node_modules"):
    walk("node_modules", "")
top = [name for name in os.listdir(".") if name != "node_modules"]
print(json.dumps({"found": found[:20000], "links": links[:10], "top": top}))
"""


class NodeKit:
    """The ``Kit`` for Node."""

    box = """\
The repository lies in the working directory: leave its files as they are, package.json too. npm installs packages of a
registry, without running their scripts and without saving them in package.json; beside that file it installs everything
that the file states, elsewhere (--prefix) what is named. What counts is node_modules of the working directory. The
project itself is not on that registry, and there is no other network. Node and npm are there; a test runner is not."""
    runner = "mocha, tape or node --test"
    absent = "npm could not install it"

    def index(self, ground: Ground, only: Sequence[Served] | None) -> Registry:
        archives = None if only is None else [one for one in only if isinstance(one, Archive)]
        return Registry(without=ground.names, only=archives, cache=ground.cache)

    def base_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        return [_npm_layer(layers)]  # goals may run `npm test` and `npx`

    def tool_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        return []

    def package_layers(self, ground: Ground, installed: Sequence[Pinned], layers: LayerStore) -> list[str]:
        modules = only_modules(installed)
        if not modules:
            return []
        return [unpack(modules, f"{WORKDIR}/node_modules", layers, commands=True, cache=ground.cache)]

    def environment(self, ground: Ground) -> dict[str, str]:
        quiet = {
            "audit": "false",
            "fund": "false",
            "update_notifier": "false",
            "offline": "true",
            "cache": "/tmp/npm",
            "loglevel": "warn",
            "ignore_scripts": "true",
        }
        path = {"PATH": f"{TOOLS}/bin:{command_path()}"}
        return path | {f"npm_config_{key}": value for key, value in quiet.items()}

    def tool_environment(self, ground: Ground, index: str) -> dict[str, str]:
        installing = {
            "registry": f"{index}/",
            "offline": "false",
            "save": "false",
            "package_lock": "false",
            "fetch_retries": "1",
            "maxsockets": "8",
        }
        return self.environment(ground) | {f"npm_config_{key}": value for key, value in installing.items()}

    async def compiled(self, ground: Ground, boxes: Boxes) -> tuple[Ground, str]:
        return ground, ""

    async def left(self, box: Sandbox, ground: Ground, served: Iterable[Served]) -> Left:
        done = await box.exec_python(_LIST, timeout=60.0)
        try:
            said = json.loads(done.stdout)
            listed = [(str(place), str(name), str(version)) for place, name, version in said["found"]]
            links, top = [str(link) for link in said["links"]], [str(name) for name in said["top"]]
        except (ValueError, TypeError, KeyError):
            raise OSError("node_modules cannot be listed") from None
        modules, problems = _locked(listed, served, ground)
        problems += [f"node_modules/{link} is a link, which cannot be locked" for link in links]
        patterns = [p for name in map(glob.escape, top) for p in (name, f"{name}/**/*")]
        files = await box.get(patterns, max_bytes=512 << 20) if patterns else {}
        refusal = node_refusal(ground.files, ground.package.tests)
        added, wrong = changes(ground.files, files, refusal, PASSING)
        return Left(modules, added, (*problems[:10], *wrong))

    def plugins(self, installed: Sequence[Pinned], cache: Path | None) -> tuple[str, ...]:
        return ()

    def goals(self, ground: Ground) -> list[Goal]:
        return node_goals(ground)

    def builder(self, needs: Sequence[str]) -> NodeRuleBuilder:
        return NodeRuleBuilder(wished_modules(needs))


def _locked(
    listed: Sequence[tuple[str, str, str]], served: Iterable[Served], ground: Ground
) -> tuple[tuple[Module, ...], list[str]]:
    """Return (modules of ``listed`` (place, package, version) that were served, why others cannot be locked)."""
    known = {(a.package, a.version): a for a in served if isinstance(a, Archive)}
    modules: dict[str, Module] = {}
    problems = []
    for place, package, version in sorted(listed):
        archive = known.get((package, version))
        outer, _, inner = place.rpartition("/node_modules/")
        if inner in RUNNERS and package != inner:
            problems.append(f"node_modules/{place} ({package}) takes the place of a test runner")
        elif archive is not None:
            modules[place] = Module(place, package, version, archive.integrity)
        elif not (outer and _brings(modules.get(outer), inner, ground.cache)):
            what = f"{package} {version}".strip() or "no package"
            problems.append(f"node_modules/{place} ({what}) was not fetched from the registry, so it cannot be locked")
    return tuple(modules.values()), problems


def _brings(outer: Module | None, inner: str, cache: Path | None) -> bool:
    """Return whether the archive of a module bundles the package ``inner``."""
    if outer is None:
        return False
    return f"node_modules/{inner}/package.json" in read_sdist(archive_path(outer.integrity, cache))


def _npm_layer(layers: LayerStore) -> str:
    """Name of the layer with npm as it is installed here; boxes do not see the host's own."""
    command = shutil.which("npm")
    origin = next((p for p in Path(command or "/").resolve().parents if (p / "bin" / "npm-cli.js").is_file()), None)
    if origin is None:
        raise PackageError("npm is not installed, but boxes need it; install Node.js with npm")
    version = json.loads((origin / "package.json").read_text("utf-8"))["version"]

    def fill(root: Path) -> None:
        place, commands = root / TOOLS[1:] / "npm", root / TOOLS[1:] / "bin"
        shutil.copytree(origin, place, ignore=shutil.ignore_patterns("docs", "man"))
        commands.mkdir(parents=True)
        for name in ("npm", "npx"):
            (commands / name).write_text(f'#!/bin/sh\nexec node {TOOLS}/npm/bin/{name}-cli.js "$@"\n')
            (commands / name).chmod(0o755)

    return remembered(layers, f"npm-{version}", "install-npm", fill)
