"""The policies that ``woodshed evaluate`` compares: checkpoint folders, policies of runs, models behind URLs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.overrides import validated
from woodshed.record.run_directory import RunDirectory
from woodshed.run.rate import checkpoint_digest
from woodshed.sandbox.settings import RAY, SandboxSettings

PROGRAM = "program:"
"""``--agent program:COMMAND`` runs an external program instead of the built-in agent."""
_DEFAULTS = "evaluation"


class EvaluationError(Exception):
    """The evaluation cannot start or go on; the message names the option and says what to do."""


@dataclass(frozen=True)
class Contestant:
    """One policy to evaluate, in the harness and boxes of ``recipe``.

    ``folder``: its checkpoint; None for a model behind ``url``, whose name there is ``model``. ``digest``: digest of
    everything that determines its samples, as far as that is known (for a URL, only the address and the model name).
    ``strict``: for a contestant whose boxes have a network, name of the same policy in boxes without one; the reachable
    hosts are in ``recipe``.
    """

    name: str
    source: str
    recipe: Recipe
    digest: str
    folder: Path | None = None
    url: str = ""
    model: str = ""
    key: str = ""
    strict: str = ""


def resolve_policies(
    sources: Sequence[str],
    *,
    agents: Sequence[str] = (),
    overrides: Sequence[str] = (),
    key_env: str = "",
    opened: Sequence[str] = (),
) -> list[Contestant]:
    """Resolve each ``[NAME=]SOURCE``. A source is a Hugging Face folder, a run directory (``RUN`` for its final policy,
    ``RUN:sft`` for that of a stage) or ``http(s)://HOST[/v1][#MODEL]``. Raises EvaluationError.

    ``agents``: ``[NAME=]AGENT``, where AGENT is a recipe whose harness and boxes are used for the policy NAME (without
    NAME: for all policies not named), or ``program:COMMAND``. Without an agent, a checkpoint in a run directory gets
    harness and boxes of that run, and a URL gets the defaults. ``key_env``: environment variable with the key of the
    URLs. Boxes have no network, whatever the recipe allows. ``opened``: hosts; if given, every policy is added a second
    time, as ``NAME:open``, in boxes that can reach these hosts.
    """
    recipes: dict[str, Recipe] = {}
    for given in agents:
        name, agent = ("", given) if given.startswith(PROGRAM) else _named(given)
        if name in recipes:
            raise EvaluationError(f"--agent {given}: there is another one for {name or 'all policies'}")
        recipes[name] = _agent_recipe(agent, overrides)
    named = {_named(given)[0] for given in sources}
    if unknown := sorted(recipes.keys() - named - {""}):
        raise EvaluationError(f"--agent {unknown[0]}=...: no policy is given as {unknown[0]}=POLICY")
    found: list[Contestant] = []
    for given in sources:
        name, source = _named(given)
        recipe = recipes.get(name, recipes.get(""))
        if source.startswith(("http://", "https://")):
            made = _endpoint(name, source, recipe, overrides, key_env)
        else:
            made = _checkpoint(name, source, recipe, overrides)
        for taken in (made.name, *([f"{made.name}:open"] if opened else [])):
            if taken in {other.name for other in found}:
                raise EvaluationError(f"{given}: another policy is called {taken!r} too; write NAME={source}")
        if RAY in made.recipe.sandbox.hosts:
            raise EvaluationError("sandbox.hosts: only a run places boxes on a Ray cluster; add --set sandbox.hosts=[]")
        found.append(replace(made, recipe=_with_network(made.recipe, ())))
        if opened:
            open_recipe = _with_network(made.recipe, opened)
            found.append(replace(made, name=f"{made.name}:open", recipe=open_recipe, strict=made.name))
    return found


def _with_network(recipe: Recipe, hosts: Sequence[str]) -> Recipe:
    try:
        sandbox = SandboxSettings.model_validate({**recipe.sandbox.model_dump(), "allow": tuple(hosts)})
    except ValueError as error:
        raise EvaluationError(f"--open {' '.join(hosts)}: {error}") from None
    return recipe.model_copy(update={"sandbox": sandbox})


def _named(given: str) -> tuple[str, str]:
    name, equals, source = given.partition("=")
    if equals and re.fullmatch(r"[\w.:@-]+", name) and not Path(given).exists():
        return name, source
    return "", given


def _agent_recipe(agent: str, overrides: Sequence[str]) -> Recipe:
    try:
        if agent.startswith(PROGRAM):
            command = agent.removeprefix(PROGRAM).strip()
            if not command:
                raise EvaluationError("--agent program: gives no command; write --agent 'program:COMMAND'")
            recipe = _default_recipe([f"harness.program.command={json.dumps(command)}", *overrides])
            if recipe.harness.program is None:
                raise EvaluationError(f"--agent {agent}: --set takes the program away again")
            return recipe
        return load_recipe(Path(agent), overrides)
    except RecipeError as error:
        raise EvaluationError(f"--agent {agent}: {error}") from None


def _default_recipe(overrides: Sequence[str]) -> Recipe:
    # No demonstrations: a recipe with them does not accept a program as agent. Not the format compact: it is only for
    # our own tiny policies.
    table: dict[str, Any] = {
        "name": _DEFAULTS,
        "policy": {"format": "hermes"},
        "learn": {"demonstrations": {"episodes": 0}},
    }
    try:
        return validated(Recipe, table, overrides)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _endpoint(name: str, source: str, shared: Recipe | None, overrides: Sequence[str], key_env: str) -> Contestant:
    address, _, model = source.partition("#")
    if not urlsplit(address).hostname:
        raise EvaluationError(f"{source}: no address in it; write http://HOST:PORT/v1#MODEL")
    recipe = shared or _default_recipe(overrides)
    if recipe.harness.program is not None:
        raise EvaluationError(
            f"{source}: a program in a box reaches only a gateway of ours, and this model is behind a server of "
            "others; evaluate it with the built-in agent (--agent RECIPE without harness.program)"
        )
    key = os.environ.get(key_env, "") if key_env else ""
    if key_env and not key:
        raise EvaluationError(f"--key-env {key_env}: this environment variable is not set; put the server's key there")
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    short = name or model or urlsplit(address).netloc
    return Contestant(short, source, recipe, digest, url=address, model=model or "default", key=key or "none")


def _checkpoint(name: str, source: str, shared: Recipe | None, overrides: Sequence[str]) -> Contestant:
    folder, short = _folder(source)
    own = folder.absolute().parent.parent / "recipe.toml"  # RUN/policy/STAGE
    recipe = shared
    try:
        if own.exists():
            of_run = load_recipe(own, overrides if shared is None else ())
            # The policy is served as in its run; harness, boxes and grading come from the agent's recipe.
            kept = {"policy": of_run.policy, "engine": of_run.engine}
            recipe = of_run if shared is None else shared.model_copy(update=kept)
    except RecipeError as error:
        raise EvaluationError(f"{source}: {error}") from None
    if recipe is None:
        raise EvaluationError(
            f"{source} does not lie in a run directory: say with --agent RECIPE in which harness, with which limits "
            "and in which boxes it works"
        )
    return Contestant(name or short, source, recipe, checkpoint_digest(folder), folder=folder)


def _folder(source: str) -> tuple[Path, str]:
    """Return (checkpoint folder, short name). Raises EvaluationError."""
    path, stage = Path(source).expanduser(), "final"
    if not path.exists() and ":" in source:
        head, _, stage = source.rpartition(":")
        path = Path(head).expanduser()
    if (path / "config.json").is_file() and not (path / "recipe.toml").is_file():
        inside = (path.absolute().parent.parent / "recipe.toml").exists()
        return path, f"{path.absolute().parent.parent.name}:{path.name}" if inside else path.absolute().name
    if not (path / "recipe.toml").is_file():
        raise EvaluationError(
            f"{source}: neither a checkpoint folder (config.json), nor a run directory (recipe.toml), nor a URL"
        )
    run = RunDirectory(path.absolute())
    if not (run.policy(stage) / "config.json").is_file():
        there = sorted(p.name for p in (run.root / "policy").glob("*") if (p / "config.json").is_file())
        raise EvaluationError(
            f"{source}: this run has no policy {stage!r} yet; there are: {', '.join(there) or 'none'} (RUN:STAGE)"
        )
    return run.policy(stage), f"{run.root.name}:{stage}"
