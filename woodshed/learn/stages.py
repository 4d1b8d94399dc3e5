"""Which stages a recipe has, what each needs, and which programs it consists of. The order of the file is the order."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..cluster.supervisor import Program
from ..gateway.settings import GatewaySettings
from ..recipe.recipe import Recipe
from ..train.worker_config import WorkerConfig
from .directory import RunDirectory, write_json


@dataclass(frozen=True)
class Stage:
    """``programs()`` makes the processes; the stage is over when those in ``until`` have ended well.

    ``heavy`` stages use both cores and run alone; others may run two at a time.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    programs: Callable[[], list[Program]]
    until: tuple[str, ...]
    heavy: bool = False


def plan(recipe: Recipe, run: RunDirectory) -> list[Stage]:
    """In order of priority: two of the stages that need nothing unfinished run at a time."""
    scratch = recipe.policy.source == "scratch"
    main = "packages" if recipe.tasks.main == "packages" else "tasks"
    start = "corpus" if scratch else "convert"
    stages = []
    if scratch:
        stages.append(_simple(run, "corpus", "train tokenizer, write corpus", ()))
    else:
        stages.append(_simple(run, "convert", "prepare the pretrained policy", ()))
    if main == "tasks":
        stages.append(_simple(run, "tasks", "make and check tasks", ()))
    demos = [_simple(run, "demos", "run demonstrations in sandboxes", (main, start))]
    if not recipe.learn.demonstrations.episodes:
        demos = []
    needs = ("pretrain" if scratch else "convert", *(stage.name for stage in demos))
    cores = os.cpu_count() or 1
    sft = _simple(run, "sft", "fine-tune on demonstrations", needs, min(cores, 4) if scratch else cores)
    packages = [_simple(run, "packages", "turn real packages into tasks", ())] if recipe.tasks.packages else []
    stages += [*packages, *demos] if main == "packages" else [*demos, *packages]
    if scratch:
        stages.append(_simple(run, "pretrain", "pretrain", ("corpus",), min(cores, 4)))
    stages.append(sft)
    before = ("sft", main, *(("packages",) if recipe.tasks.packages else ()))
    stages.append(_served(recipe, run, "before", "evaluate before RL", before, "sft"))
    stages.append(_rl(recipe, run))
    stages.append(_served(recipe, run, "after", "evaluate after RL", ("rl", "before"), "final"))
    return stages


def _simple(run: RunDirectory, name: str, title: str, needs: tuple[str, ...], threads: int = 1) -> Stage:
    return Stage(name, title, needs, lambda: [_stage_program(run, name, threads)], (name,), heavy=threads > 1)


def _served(recipe: Recipe, run: RunDirectory, name: str, title: str, needs: tuple[str, ...], policy: str) -> Stage:
    def programs() -> list[Program]:
        return [server_program(recipe, run, run.policy(policy), weights=False), _stage_program(run, name)]

    return Stage(name, title, needs, programs, (name,), heavy=True)


def _rl(recipe: Recipe, run: RunDirectory) -> Stage:
    def programs() -> list[Program]:
        server = server_program(recipe, run, run.policy("sft"), weights=True)
        argv = ["-m", "woodshed.train.worker", str(trainer_config(recipe, run))]
        trainer = Program("trainer", argv, run.log("trainer"), env=_threads(trainer_threads(recipe)))
        return [server, trainer, _stage_program(run, "rollouts")]

    return Stage("rl", "asynchronous RL", ("before",), programs, ("rollouts", "trainer"), heavy=True)


def _stage_program(run: RunDirectory, name: str, threads: int = 1) -> Program:
    return Program(
        name, ["-m", "woodshed.learn", name, str(run.root)], run.log(name), env=_threads(threads, alone=threads > 1)
    )


def server_program(recipe: Recipe, run: RunDirectory, policy: Path, *, weights: bool) -> Program:
    """The policy server on a free port that restarts keep; where it listens is in ``server.json``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    admin = run.root / "server" / "admin.key"
    admin.parent.mkdir(parents=True, exist_ok=True)
    if not admin.exists():
        admin.touch(mode=0o600)
        admin.write_text(secrets.token_urlsafe(32))
    ready = run.root / "server" / "ready.json"
    ready.unlink(missing_ok=True)
    threads = recipe.engine.threads or server_threads(recipe, training=weights)
    settings = GatewaySettings(
        policy=policy,
        weights=run.weights if weights else None,
        model=recipe.name,
        port=port,
        admin_key_file=admin,
        ready_file=ready,
        device=recipe.policy.device,
        engine=recipe.engine.model_copy(update={"threads": threads}),
    )
    path = run.root / "server" / "settings.json"
    write_json(path, settings.model_dump(mode="json"))
    write_json(run.root / "server" / "address.json", {"url": f"http://127.0.0.1:{port}", "admin_key_file": str(admin)})
    argv = ["-m", "woodshed.gateway.serve", "--settings", str(path)]
    env = _threads(threads, alone=threads > 1 and not weights)
    return Program("server", argv, run.log("server"), env=env, max_restarts=20)


def trainer_config(recipe: Recipe, run: RunDirectory) -> Path:
    path = run.root / "server" / "trainer.json"
    config = WorkerConfig(
        policy=run.policy("sft"),
        batches=run.batches,
        weights=run.weights,
        checkpoints=run.checkpoints,
        metrics=run.stage_metrics("trainer"),
        train=recipe.train,
        chain=recipe.weights,
        steps=recipe.rl.steps,
        threads=trainer_threads(recipe),
        device=recipe.policy.device,
        delete_batches=True,
    )
    write_json(path, config.model_dump(mode="json"))
    return path


def server_threads(recipe: Recipe, *, training: bool) -> int:
    """A tiny network gains little from a second thread, and leaves that core to the sandboxes. A larger one gets every
    core, or half of them where the trainer runs beside it."""
    cores = os.cpu_count() or 1
    return 1 if recipe.policy.source == "scratch" else max(1, cores // 2) if training else cores


def trainer_threads(recipe: Recipe) -> int:
    """One core beside the server for a tiny network. With a larger one training takes several times as long as
    sampling and the server often waits: the trainer gets every core, and shares them while both work."""
    return 1 if recipe.policy.source == "scratch" else os.cpu_count() or 1


def _threads(number: int, *, alone: bool = False) -> dict[str, str]:
    """Threads of one process. Two torch processes that spin on the same cores slow each other to a crawl, so only one
    that runs ``alone`` waits actively, for a moment (1.65 times as fast on two cores; passively 1.2 times)."""
    threads = {"OMP_NUM_THREADS": str(number), "MKL_NUM_THREADS": str(number)}
    return threads | ({"GOMP_SPINCOUNT": "300000"} if alone else {"OMP_WAIT_POLICY": "passive"})
