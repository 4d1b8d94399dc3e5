"""A real controller over real rollouts: gateway, boxes, grading, ledger and store; only sampling and training are
played. The trainer takes every batch as soon as its file is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gateway.parts import ADMIN, HERMES, ScriptedEngine

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rl.batching import History, build_batch, is_flat
from woodshed.rl.conservation import Conservation, check_conservation
from woodshed.rl.controller import Controller
from woodshed.rl.growth.growth import Growth
from woodshed.rl.growth.record import GrowthRecord
from woodshed.rl.health.measure import measure
from woodshed.rl.health.watch import HealthWatch
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, Limits
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic
from woodshed.train.batch import TrainBatch

DONE = HERMES.encode('<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call><|im_end|>', allow_special=True)
FINISHED = '{"step": %d, "time": 0, "rollouts": %d}\n'


def by_number(flat: set[int]) -> Callable[[Task, Trajectory, Outcome], dict[str, float]]:
    """Rewards by id: members of a group are paid in turn 0 and 1; in the groups ``flat`` all are paid 1."""

    def reward(_: Task, trajectory: Trajectory, __: Outcome) -> dict[str, float]:
        group, member = trajectory.id.split("-")
        return {"played": 1.0 if int(group[1:]) in flat else float(int(member.split(".")[0]) % 2)}

    return reward


@dataclass
class Trained:
    """A folder in which controllers run, one after the other, as after kills."""

    folder: Path
    arena: Arena
    tasks: list[Task]
    trained: list[int] = field(default_factory=list)

    def head(self) -> int:
        """Train what is there: the number of batches without a gap; the metrics line before the version is seen."""
        while (path := self.folder / "batches" / f"step-{len(self.trained) + 1:06d}.safetensors").exists():
            step, rollouts = len(self.trained) + 1, len(set(TrainBatch.load(path).trajectories))
            (self.folder / "metrics").mkdir(exist_ok=True)
            with (self.folder / "metrics" / "trainer.jsonl").open("a") as file:
                file.write(FINISHED % (step, rollouts))
            self.trained.append(rollouts)
        return len(self.trained)

    async def run(self, settings: RLSettings, *, health: HealthWatch | None = None) -> Controller:
        """A controller to its end, or to what it raises; its ledger and store are closed then."""
        ledger, store = Ledger(self.folder / "state.sqlite"), TrajectoryStore(self.folder / "store")
        algorithm = settings.make_algorithm()

        def groups_of(step: int) -> list[list[Trajectory]]:
            return [store.group(group) for group in ledger.batches().get(step, [])]

        history = History(algorithm, groups_of, lambda _: False)

        def build(groups: list[list[Trajectory]], step: int) -> tuple[TrainBatch, dict[str, Any]]:
            history.until(step)
            batch, stats = build_batch(
                groups, algorithm, step=step, batch_id=f"step-{step}", generation_budget=settings.generation_budget
            )
            return batch, {**asdict(stats), **measure(groups, step)}

        growth = None
        if settings.growth.make or settings.growth.check:
            growth = Growth(
                settings.growth,
                {task.name: task for task in self.tasks},
                ledger,
                GrowthRecord(self.folder / "state.sqlite"),
                store,
                folder=self.folder / "grown",
                seed=0,
                backend=self.arena.backend,
                layers=self.arena.layers,
                grading=self.arena.grading,
            )
        controller = Controller(
            self.arena,
            self.tasks,
            ledger,
            store,
            settings,
            batches=self.folder / "batches",
            metrics=self.folder / "metrics" / "rollouts.jsonl",
            head=self.head,
            build=build,
            seed=0,
            least=algorithm.least,
            flat=lambda group: is_flat(group, algorithm, lambda _: False),
            growth=growth,
            health=health,
        )
        try:
            await controller.run()
        finally:
            if growth is not None:
                growth.record.close()
            ledger.close()
            store.close()
        return controller

    def conserved(self, *, finished: bool = True) -> Conservation:
        store = TrajectoryStore(self.folder / "store")
        stored = [row["id"] for row in store.rows()]
        store.close()
        lines = [read_jsonl(self.folder / "metrics" / f"{name}.jsonl") for name in ("rollouts", "trainer")]
        return check_conservation(self.folder / "state.sqlite", stored, *lines, finished=finished)


@asynccontextmanager
async def trained(
    folder: Path,
    count: int,
    *,
    around: Callable[[Backend], Any] = lambda backend: backend,
    say: Callable[[list[int]], list[int]] = lambda _: list(DONE),
    engine: Any = None,
    harness: HarnessSettings | None = None,
    **options: Any,
) -> AsyncIterator[Trained]:
    """``count`` tasks; ``around`` wraps the backend; ``say`` plays the policy, unless there is an ``engine``;
    ``options`` are of the arena."""
    engine = engine or ScriptedEngine(say, context=1 << 20)
    engine.version = 0

    async def follow(version: int) -> int:
        engine.version = version
        return version

    app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN, follow=follow)
    layers, backend = LayerStore(folder / "layers"), NamespaceBackend(folder / "boxes")
    (spec,) = draw_synthetic(1, split="train", seed=5, workers=1)
    task = write_synthetic(spec, folder / "synthetic")
    tasks = [Task(task.path, f"t/{n:02d}", task.instruction, task.info, task.config) for n in range(count)]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        arena = Arena(
            backend=around(backend),
            layers=layers,
            admin=GatewayAdmin("http://gateway", ADMIN, client=client),
            base_url="http://gateway",
            agent=BuiltinAgent(harness or HarnessSettings(), client),
            policy="scripted",
            patience=5.0,
            attempts=1,
            limits=Limits(memory=512 << 20, disk=128 << 20),
            **options,
        )
        try:
            yield Trained(folder, arena, tasks)
        finally:
            await backend.close()
