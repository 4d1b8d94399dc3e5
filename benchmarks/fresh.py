"""Test setup and run on fresh machines: ``python benchmarks/fresh.py [--tests all|quick|none] [--recipe small]``.

For every Python from 3.11 to 3.13 of the distribution and of pyenv, as root and as an ordinary user, set up a clean
clone of the commit and run the recipe, each with a new home folder:

- ``no compiler``: ``make run`` in a new clone, with a PATH that has no C or C++ compiler; this does the setup.
- ``compiler``: ``make run`` in the same clone, with an empty cache.
- ``tests``: ``make test`` (``all``), or the tests that depend most on the interpreter (``quick``).
- ``wheel``: a wheel of the clone in an empty environment, run in an empty folder.
- ``umask 077, spaces, home missing`` and ``home read-only``: with the first of the Pythons, in a clone of their own.

``small`` is the smoke recipe with all sizes reduced; it stands in for the main job, whose setup is the same. pip's
cache is shared by all combinations of a user, and pip compiles no bytecode (the first run does). If an ordinary user
cannot reach an interpreter because of a folder's permissions, a private mount makes it accessible. A combination that
passed is not run again for the same commit; the result is written after every combination.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result import write_result

from woodshed.recipe.load import dump_recipe, load_recipe

ROOT = Path(__file__).resolve().parent.parent
USER = 54322
"""User id of the ordinary user; it needs no entry in /etc/passwd."""

QUICK = [
    "tests/recipe",
    "tests/record",
    "tests/cluster/test_supervisor.py",
    "tests/sandbox/test_interpreter.py",
    "tests/sandbox/test_boxes.py",
    "tests/grading/test_verify.py",
    "tests/tasks/packages/test_source.py",
    "tests/tasks/install/test_rules.py",
]
SMALL = (
    "learn.corpus.functions=20", "learn.corpus.tokens=4000", "learn.demonstrations.episodes=16", "learn.mtp.steps=2",
    "tasks.synthetic={train=4,sft=6,heldout=2,checked=4}", "rl.steps=1", "rl.concurrency=4", "evaluate.tasks=2",
    "evaluate.samples=1",
)  # fmt: skip
_PLACES = ("/usr/local/bin", "/usr/bin", "/bin")
_COMPILER = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|c89|c99|tcc)(-[\d.]+)?")
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.implementation.name, sys.prefix)"
_REACH = (
    'mount --bind "$1" "$2" && mount -t tmpfs -o mode=755 none "$3" && mkdir -p "$1" && mount --bind "$2" "$1" '
    '&& shift 3 && exec "$@"'
)
_READ_ONLY = 'mount --bind "$HOME" "$HOME" && mount -o remount,bind,ro "$HOME" && exec "$@"'


@dataclass(frozen=True)
class Interpreter:
    name: str
    version: str
    path: Path
    prefix: Path


@dataclass(frozen=True)
class Combination:
    """One combination. ``kind``: one of those in the module's docstring. ``group``: name of the clone that it uses."""

    interpreter: Interpreter
    root: bool
    kind: str

    @property
    def name(self) -> str:
        user = "root" if self.root else "ordinary user"
        return f"{self.interpreter.name} {self.interpreter.version}, {user}, {self.kind}"

    @property
    def special(self) -> bool:
        return self.kind.endswith(("home missing", "home read-only"))

    @property
    def group(self) -> str:
        user = "root" if self.root else "user"
        end = " with spaces" if self.special else ""
        return f"{self.interpreter.name}-{self.interpreter.version}-{user}{end}"


def interpreters() -> list[Interpreter]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places = [("distribution", path) for path in sorted(Path("/usr/bin").glob("python3*"))]
    places += [("pyenv", path) for path in sorted(pyenv.glob("versions/*/bin/python3"))]
    found: dict[Path, Interpreter] = {}
    for name, path in places:
        done = subprocess.run([path, "-I", "-c", _VERSION], capture_output=True, text=True, check=False)
        version, _, rest = done.stdout.partition(" ")
        kind, _, prefix = rest.strip().partition(" ")
        if kind == "cpython" and (3, 11) <= tuple(map(int, version.split(".")))[:2] <= (3, 13):
            real = path.resolve()
            found.setdefault(real, Interpreter(name, version, real, Path(prefix)))
    return list(found.values())


def combinations(tests: str) -> list[Combination]:
    """Return all combinations to run, the most informative first."""
    users = (True, False) if os.geteuid() == 0 else (False,)
    all_of = interpreters()
    kinds = ["no compiler", "wheel", "umask 077, spaces, home missing", "home read-only"]
    kinds += ["compiler", *([f"tests {tests}"] if tests != "none" else [])]
    return [
        Combination(interpreter, user, kind)
        for kind in kinds
        for interpreter in all_of
        for user in users
        if "home" not in kind or interpreter is all_of[0]
    ]


class Bench:
    """Runs combinations below ``work``; each has a folder of its own, clones are shared by group."""

    def __init__(self, work: Path, commit: str, recipe: str, minutes: float) -> None:
        self.work, self.commit, self.recipe, self.minutes = work, commit, recipe, minutes
        work.mkdir(parents=True, exist_ok=True)
        work.chmod(0o755)
        if recipe == "small":
            self.recipe = str(work / "small.toml")
            Path(self.recipe).write_text(dump_recipe(load_recipe("smoke", SMALL)))
        self.without = work / "no-compiler"
        _link_programs(self.without)

    def run(self, combination: Combination) -> dict[str, Any]:
        """Run a combination; return its row: ``ok``, ``seconds``, and the last lines of output if it failed."""
        folder = self.work / "runs" / re.sub(r"\W+", "-", combination.name)
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("home", "tmp", "out"):
            (folder / name).mkdir(parents=True)
        _own(combination.root, folder)
        clone = self._clone(combination)
        log = folder / "log"
        started = time.monotonic()
        code = 0
        with log.open("wb") as out:
            for command, where in self._commands(combination, clone, folder):
                out.write(f"$ {command}\n".encode())
                out.flush()
                if code := self._shell(combination, command, where, folder, out):
                    break
        row: dict[str, Any] = {"ok": code == 0, "seconds": round(time.monotonic() - started, 1)}
        if code:
            said = log.read_text(errors="replace").replace(str(self.work), "WORK").replace(str(Path.home()), "~")
            row |= {"exit_code": code, "last_lines": said.splitlines()[-25:]}
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return row

    def _clone(self, combination: Combination) -> Path:
        clone = self.work / "clones" / combination.group
        if not (clone / ".git").is_dir():
            clone.parent.mkdir(exist_ok=True)
            subprocess.run(["git", "clone", "-q", f"file://{ROOT}", str(clone)], check=True)
            subprocess.run(["git", "-C", str(clone), "checkout", "-q", "--detach", self.commit], check=True)
            if "umask" in combination.kind:
                subprocess.run(["chmod", "-R", "go-rwx", str(clone)], check=True)
            _own(combination.root, clone)
        return clone

    def _commands(self, combination: Combination, clone: Path, folder: Path) -> Iterator[tuple[str, Path]]:
        """Yield (shell command, folder in which it runs)."""
        python = combination.interpreter.path
        kind = combination.kind
        if kind == "wheel":
            pin = next(
                line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=")
            )
            pip = f"{folder}/environment/bin/python -m pip install -q -c '{clone}/constraints.txt'"
            yield f"PYTHON='{python}' scripts/setup", clone
            yield f".venv/bin/python -m pip wheel -q --no-deps --no-build-isolation -w {folder}/out .", clone
            yield f"'{python}' -m venv {folder}/environment", folder
            yield f"{folder}/environment/bin/python -m pip install -q '{pin}+cpu' || {pip} torch", folder
            yield f"{pip} {folder}/out/woodshed-*.whl", folder
            yield f"{folder}/environment/bin/woodshed run {self.recipe} --out {folder}/out/run", folder / "out"
        elif kind == "tests all":
            yield f"make test PYTHON='{python}'", clone
        elif kind.startswith("tests"):
            yield f"PYTHON='{python}' scripts/setup", clone
            yield f".venv/bin/python -m pytest -n 0 {' '.join(QUICK)}", clone
        else:
            yield f"rm -rf runs && PYTHON='{python}' make run RECIPE={self.recipe}", clone

    def _reach(self, interpreter: Interpreter) -> list[str]:
        """Return the prefix of a command that makes the interpreter reachable in a private mount, if its user has no
        access to a folder above it; else []."""
        above = [*reversed(interpreter.prefix.parents), interpreter.prefix]
        closed = [str(place) for place in above if not place.stat().st_mode & 0o001]
        if not closed:
            return []
        hold = self.work / "interpreter"
        hold.mkdir(exist_ok=True)
        return ["unshare", "--mount", "sh", "-c", _REACH, "sh", str(interpreter.prefix), str(hold), closed[0]]

    def _shell(self, combination: Combination, command: str, where: Path, folder: Path, out: Any) -> int:
        home = folder / "home"
        bare = combination.kind == "no compiler"
        pip_cache = self.work / f"pip-{'root' if combination.root else 'user'}"
        pip_cache.mkdir(exist_ok=True)
        _own(combination.root, pip_cache)
        kept = {
            k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "REQUESTS_")) or "proxy" in k.lower()
        }
        environment = {
            **kept,
            "PATH": str(self.without) if bare else ":".join(_PLACES),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder / "tmp"),
            "PIP_CACHE_DIR": str(pip_cache),
            "PIP_NO_COMPILE": "1",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        prefix: list[str] = []
        if combination.kind.endswith("home missing"):
            environment["HOME"] = str(folder / "no" / "such" / "home")
            command = f"umask 077; {command}"
        if combination.kind.endswith("home read-only"):
            home.chmod(0o555)
            if combination.root:  # file modes do not restrict root
                prefix = ["unshare", "--mount", "sh", "-c", _READ_ONLY, "sh"]
        if not combination.root and os.geteuid() == 0:
            prefix = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            prefix = [*self._reach(combination.interpreter), *prefix]
        done = subprocess.Popen(
            [*prefix, "sh", "-c", command],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return done.wait(60 * self.minutes)
        except subprocess.TimeoutExpired:
            out.write(f"\nno end after {self.minutes:g} minutes\n".encode())
            return 124
        finally:
            if done.poll() is None:
                os.killpg(done.pid, 9)
                done.wait()


def _link_programs(folder: Path) -> None:
    """Make links to every program of the system except compilers."""
    folder.mkdir(exist_ok=True)
    for place in _PLACES:
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not _COMPILER.fullmatch(program.name) and not os.path.lexists(folder / program.name):
                (folder / program.name).symlink_to(program)


def _own(root: bool, place: Path) -> None:
    if not root and os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{USER}:{USER}", str(place)], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", choices=["all", "quick", "none"], default="quick")
    parser.add_argument("--recipe", default="small", help="what `make run` runs; laptop is the main job")
    parser.add_argument("--only", default="", help="combinations whose name matches this regular expression")
    parser.add_argument("--commit", default="HEAD", help="what is cloned")
    parser.add_argument("--minutes", type=float, default=60.0, help="limit of one command")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp/woodshed-fresh"))
    args = parser.parse_args(arguments)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", args.commit], capture_output=True, text=True, check=True
    ).stdout.strip()
    kept = args.work / "rows.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("commit") != commit or known.get("recipe") != args.recipe:
        known = {"commit": commit, "recipe": args.recipe, "rows": {}}
        for folder in ("clones", "runs"):
            shutil.rmtree(args.work / folder, ignore_errors=True)
    bench, rows = Bench(args.work, commit, args.recipe, args.minutes), known["rows"]
    chosen = [c for c in combinations(args.tests) if re.search(args.only, c.name)]
    for number, combination in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}: {combination.name}", end=" ", flush=True)
        if rows.get(combination.name, {}).get("ok"):
            print("passed before", flush=True)
            continue
        row = rows[combination.name] = bench.run(combination)
        print(f"{'ok' if row['ok'] else 'FAILED'} {row['seconds']:.0f} s", flush=True)
        kept.write_text(json.dumps(known))
        write(known, args.tests)


def write(known: dict[str, Any], tests: str) -> None:
    rows = known["rows"]
    detail = {
        "cloned": known["commit"][:7],
        "recipe": known["recipe"],
        "quick_tests": QUICK if any(r.endswith("tests quick") for r in rows) else [],
        "not_run": [c.name for c in combinations(tests) if c.name not in rows],
        "combinations": rows,
    }
    failed = sum(not row["ok"] for row in rows.values())
    write_result("fresh", {"combinations": len(rows), "failed": failed}, detail)


if __name__ == "__main__":
    main()
