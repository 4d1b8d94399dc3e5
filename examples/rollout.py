"""One rollout from Python: a policy behind a gateway in this process, the agent in a box, a grade from a fresh box.

`python examples/rollout.py RUN` lets the trained policy of a run work on one of its held-out tasks.
"""

import asyncio
import sys
from pathlib import Path

import httpx

from woodshed import (
    Arena,
    BuiltinAgent,
    GatewayAdmin,
    HarnessSettings,
    LayerStore,
    LocalEngine,
    Policy,
    RunDirectory,
    Task,
    Trajectory,
    build_app,
    load_policy,
    load_recipe,
    open_backend,
)
from woodshed.rollout.rollout import rollout
from woodshed.stages.boxes import layer_store
from woodshed.stages.tasks import load_split

URL, ADMIN_KEY = "http://gateway", "the-admin-key-of-this-process"


async def one_rollout(task: Task, policy: Policy, harness: HarnessSettings, layers: LayerStore) -> Trajectory:
    """`layers` holds what a task's box is made of beside its workspace, such as installed packages."""
    backend = open_backend()
    engine = LocalEngine(policy.decoder, version=policy.version)
    app = build_app(engine, policy.format, policy.tokenizer, admin_key=ADMIN_KEY)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:  # no port: requests stay in here
        admin, agent = GatewayAdmin(URL, ADMIN_KEY, client=client), BuiltinAgent(harness, client)
        arena = Arena(backend=backend, layers=layers, admin=admin, base_url=URL, agent=agent, policy="example")
        try:
            return await rollout(arena, task, id="first", group="first", source="eval")
        finally:
            await backend.close()
            await engine.close()


if __name__ == "__main__":
    run = RunDirectory(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/laptop"))
    if not (run.policy("final") / "config.json").is_file():
        sys.exit(f"{run.root} is not a finished run; give the folder that `woodshed run` wrote to")
    recipe, policy = load_recipe(run.recipe), load_policy(run.policy("final"))
    task = load_split(run, recipe.tasks.family, "heldout")[0]
    done = asyncio.run(one_rollout(task, policy, recipe.harness, layer_store()))
    for event in done.events:
        print(f"{event.turn:3}  {event.name} {event.arguments}  ->  {event.result[:60]!r}")
    print(f"{done.status}, {done.sampled_tokens} tokens sampled, rewards {done.rewards}")
