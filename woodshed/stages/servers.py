"""The programs that sample: the policy server, and its engines if there are several."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from woodshed.cluster.supervisor import Program, free_ports
from woodshed.engine.settings import EngineServerSettings
from woodshed.gateway.settings import GatewaySettings
from woodshed.recipe.load import first_source
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory, key_file, write_json
from woodshed.record.settings import is_reference

RESTARTS = 20


def server_programs(recipe: Recipe, run: RunDirectory, policy: Path, *, weights: str | None = None) -> list[Program]:
    """Return the programs to start: the engines, if there are several, then the policy server.

    ``weights``: in RL, address of the weight chain that the server follows. The server gets a free port, which stays
    the same across its restarts; its address is written to ``server/address.json``. In RL its journal is kept, since
    rollouts resume from it; otherwise it is deleted, and episodes of an earlier start are run again.
    """
    folder = run.root / "server"
    admin = key_file(folder / "admin.key")
    ready, journal = folder / "ready.json", folder / "journal"
    ready.unlink(missing_ok=True)
    if not weights:
        shutil.rmtree(journal, ignore_errors=True)
    replicas = recipe.engine.replicas
    threads = recipe.engine.threads or max(1, server_threads(recipe, training=bool(weights)) // replicas)
    lent = max(1, server_threads(recipe, training=False) // replicas)
    shared = {
        "policy": policy,
        # The policy's directory names its format, but a server imports the user's code only when its settings name it.
        "format": recipe.policy.format if is_reference(recipe.policy.format) else None,
        "weights": weights,
        "admin_key_file": admin,
        "device": recipe.policy.device,
        "engine": recipe.engine.model_copy(update={"threads": threads}),
        "lender": run.trainer_lock if weights and not recipe.engine.threads else None,
        "lent_threads": lent,
    }
    ports = free_ports(1 if replicas == 1 else 1 + replicas)
    engines = []
    for number, port in enumerate(ports[1:]):
        settings = EngineServerSettings(**shared, port=port, gpu=number)
        engines.append(
            _program(run, f"engine-{number}", "woodshed.engine.remote.service", settings, threads, bool(weights))
        )
    server = GatewaySettings(
        **shared,
        port=ports[0],
        model=recipe.name,
        ready_file=ready,
        journal=journal,
        engines=tuple(f"http://127.0.0.1:{port}" for port in ports[1:]),
    )
    address = {"url": f"http://127.0.0.1:{ports[0]}", "admin_key_file": str(admin)}
    write_json(folder / "address.json", address)
    return [*engines, _program(run, "server", "woodshed.gateway.serve", server, threads, bool(weights))]


def address_of(run: RunDirectory) -> tuple[str, str]:
    """Return URL and admin key of the policy server of ``run``."""
    address = json.loads((run.root / "server" / "address.json").read_text())
    return address["url"], Path(address["admin_key_file"]).read_text().strip()


def cores() -> int:
    """Return the number of processors that this process may use, at most ``OMP_NUM_THREADS`` if that is set: on a
    machine with other work, threads that spin while waiting for each other cost far more than they gain."""
    available = len(os.sched_getaffinity(0))
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(given))) if given.isdigit() else available


def server_threads(recipe: Recipe, *, training: bool) -> int:
    """Return the number of threads of the server. A tiny network gains little from a second thread, so it gets one and
    leaves the cores to the sandboxes. A larger one gets every core, or half of them if the trainer runs too."""
    return 1 if first_source(recipe) == "scratch" else max(1, cores() // 2) if training else cores()


def _program(
    run: RunDirectory,
    name: str,
    module: str,
    settings: EngineServerSettings | GatewaySettings,
    threads: int,
    training: bool,
) -> Program:
    path = run.root / "server" / f"{name}.json"
    write_json(path, settings.model_dump(mode="json"))
    env = threads_of(threads, alone=threads > 1 and not training)
    return Program(name, ["-m", module, "--settings", str(path)], run.log(name), env=env, max_restarts=RESTARTS)


def threads_of(number: int, *, alone: bool = False) -> dict[str, str]:
    """Return the environment variables that set the number of threads of one process.

    Torch processes that spin on the same cores slow each other to a crawl, so only a process that runs ``alone`` spins,
    and for microseconds: libgomp's default, a hundred times as long, is no faster on an idle machine and half as fast
    on a busy one (benchmarks/threads.py).
    """
    threads = {"OMP_NUM_THREADS": str(number), "MKL_NUM_THREADS": str(number)}
    return threads | ({"GOMP_SPINCOUNT": "3000"} if alone else {"OMP_WAIT_POLICY": "passive"})
