"""Run our tasks in our boxes with the real Harbor, with the oracle and an agent that does nothing. Needs root and
Debian's mirror.

The tasks are synthetic ones, and tasks of packages whose Dockerfiles install from the package index that pip is
configured with: only its address and certificates are added to them, so that pip finds it from inside a box.

Harbor needs Python 3.12 or newer. Python comes from a root filesystem of Debian 13 that is unpacked here (nothing is
installed on this machine), Harbor goes into a virtual environment on it, and both run in a mount namespace with this
root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copyfile
from statistics import median
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from result import write_result
from rich.progress import track

from woodshed.record.cache import cache_directory
from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.images.debian import build_debian
from woodshed.sandbox.images.harbor import build_harbor
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Egress
from woodshed.tasks.generators.packages.build import build_package_tasks
from woodshed.tasks.generators.synthetic.spec import draw_synthetic
from woodshed.tasks.generators.synthetic.write import write_synthetic
from woodshed.tasks.packages.index import Index, pip_settings
from woodshed.tasks.settings import PackageTaskSettings

_REPOSITORY = Path(__file__).resolve().parent.parent
_CLASS = "woodshed.evaluate.harbor.environment:WoodshedEnvironment"
_HARBOR = "harbor==0.24.0"
_ENTER = r"""
set -e
mount --make-rprivate /
mount -t overlay root -o lowerdir="$ROOT",upperdir="$WORK/upper",workdir="$WORK/work" "$WORK/new"
for place in proc dev sys tmp root "$CACHE" "$REPOSITORY" "$WORK"; do
  mkdir -p "$WORK/new/$place"; mount --rbind "/${place#/}" "$WORK/new/$place"
done
for file in resolv.conf hosts nsswitch.conf pip.conf ssl/certs/ca-certificates.crt; do
  [ ! -e "/etc/$file" ] || { mkdir -p "$(dirname "$WORK/new/etc/$file")"; cat "/etc/$file" > "$WORK/new/etc/$file"; }
done
mkdir -p "$WORK/new/opt"; [ ! -d /opt ] || mount --rbind /opt "$WORK/new/opt"
cd "$WORK/new"; mkdir -p .old; pivot_root . .old; umount -l /.old
exec "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2, help="synthetic")
    parser.add_argument("--package", action="append", help="of the catalogue, again for more; default: two")
    parser.add_argument("--out", type=Path, help="where the result goes; default: benchmarks/results/harbor.json")
    options = parser.parse_args()
    store = RootStore()
    packages = ["python3", "python3-venv", "python3-pip", "ca-certificates", "mount", "util-linux"]
    root = build_debian(store, packages, suite="trixie", say=print)
    with tempfile.TemporaryDirectory(prefix="woodshed-harbor-") as place:
        work = Path(place)
        for name in ("upper", "work", "new"):
            (work / name).mkdir()
        tasks = [
            write_synthetic(spec, work / "tasks" / spec.name.split("/")[-1])
            for spec in draw_synthetic(options.tasks, split="heldout", seed=0, workers=1)
        ]
        made = _package_tasks(tuple(options.package or ("inflection", "tabulate")), work / "tasks")
        tasks += made
        reach = dict.fromkeys((task.path for task in made), _index()) if made else {}
        for path in reach:
            _name_index(path / "environment" / "Dockerfile")
        for task in tasks:  # built here, where apt's sources are known; Harbor's trials reuse the roots
            _make_root(store, task.path / "environment", reach.get(task.path))
        venv = cache_directory() / "harbor-python3.13"
        if not (venv / "bin/harbor").exists():
            # Each command has its own mount namespace; all see the same virtual environment.
            _enter(store, root, work, "python3", "-m", "venv", str(venv))
            _enter(store, root, work, str(venv / "bin/pip"), "install", "-q", _HARBOR, "zstandard", "xxhash")
        trials = [
            (agent, _trial(store, root, work, venv, task.path, agent, reach.get(task.path)))
            for task in track(tasks, "trials")
            for agent in ("oracle", "nop")
        ]
    rewards = {agent: [t["reward"] for a, t in trials if a == agent] for agent in ("oracle", "nop")}
    seconds = [t["setup_seconds"] for _, t in trials]
    figures = {
        "tasks": len(tasks),
        "package_tasks": len(made),
        "oracle_rewarded": sum(r == 1 for r in rewards["oracle"]),
        "nop_rewarded": sum(r != 0 for r in rewards["nop"]),
        "environment_setup_s": round(median(seconds), 3),
    }
    write_result("harbor", figures, {"harbor": _HARBOR, "trials": [{"agent": a, **t} for a, t in trials]}, options.out)


def _make_root(store: RootStore, folder: Path, egress: Egress | None) -> None:
    async def build() -> None:
        backend = open_backend("namespace")
        try:
            await build_harbor(store, folder, backend, egress=egress, say=print)
        finally:
            await backend.close()

    asyncio.run(build())


def _package_tasks(names: tuple[str, ...], out: Path) -> list[Task]:
    """Make one task of each package."""
    settings = PackageTaskSettings(packages=names, tasks_per_package=1)

    async def build() -> list[Task]:
        backend = open_backend("namespace")
        try:
            return await build_package_tasks(settings, backend, LayerStore(cache_directory() / "layers"), out)
        finally:
            await backend.close()

    return asyncio.run(build())


def _index() -> Egress:
    """Return the hosts of the pages and files of the package index."""
    index = Index()
    try:
        urls = [*index.settings.urls, *(file.url for file in index.files("pytest"))]
    finally:
        index.close()
    return Egress(tuple(sorted({urlsplit(url).netloc for url in urls if url.startswith("http")})), private=True)


def _name_index(dockerfile: Path) -> None:
    settings = pip_settings()
    lines = [f'ARG PIP_INDEX_URL="{settings.urls[0]}"']
    if settings.cert:
        copyfile(settings.cert, dockerfile.with_name("certificates.pem"))
        lines += ["COPY certificates.pem /opt/certificates.pem", "ARG PIP_CERT=/opt/certificates.pem"]
    first, _, rest = dockerfile.read_text().partition("\n")
    dockerfile.write_text("\n".join([first, *lines, rest]))


def _enter(store: RootStore, root: str, work: Path, *command: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy")}
    environment |= {
        "ROOT": str(store.path(root)),
        "WORK": str(work),
        "CACHE": str(cache_directory()),
        "HOME": str(Path.home()),
        "REPOSITORY": str(_REPOSITORY),
        "PYTHONPATH": str(_REPOSITORY),
        "WOODSHED_CACHE": str(cache_directory()),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
    }
    subprocess.run(["unshare", "-m", "sh", "-c", _ENTER, "enter", *command], env=environment, check=True)


def _trial(
    store: RootStore, root: str, work: Path, venv: Path, task: Path, agent: str, reach: Egress | None
) -> dict[str, object]:
    jobs = work / "jobs" / f"{task.name}-{agent}"
    arguments = ["run", "-p", str(task), "-a", agent, "-e", _CLASS, "--jobs-dir", str(jobs), "-n", "1", "-q"]
    if reach is not None:
        arguments += ["--ek", f"build_allow={','.join(reach.allow)}", "--ek", "private=true"]
    _enter(store, root, work, str(venv / "bin/harbor"), *arguments)
    [path] = jobs.glob("*/*/result.json")
    result = json.loads(path.read_text())
    if result["exception_info"]:
        raise SystemExit(f"{task.name}, {agent}: {result['exception_info']}")
    setup = result["environment_setup"]
    return {
        "task": task.name,
        "reward": result["verifier_result"]["rewards"]["reward"],
        "setup_seconds": _seconds(setup["started_at"], setup["finished_at"]),
    }


def _seconds(start: str, end: str) -> float:
    from datetime import datetime

    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


if __name__ == "__main__":
    main()
