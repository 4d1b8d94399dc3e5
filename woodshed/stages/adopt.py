"""Start a run from a finished one: take over its result, its training examples, and the rollouts that it solved."""

from __future__ import annotations

import json
from typing import Any

from woodshed.evaluate.arms import ADOPT, AFTER
from woodshed.harness.registry import ToolRegistry
from woodshed.recipe.load import RecipeError, earlier_run, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory

from .failures import StageFailed


def take_over(recipe: Recipe, run: RunDirectory) -> None:
    """Copy the result of the earlier run to ``policy/sft``, from which RL starts, and its policy before SFT to
    ``policy/pretrain``. Add what it solved to the verified demonstrations. Raises StageFailed."""
    from woodshed.policy.hf import load_policy, save_policy  # imports torch, which ``refusal`` does without

    from .examples import save_examples
    from .solved import examples_of, solved_in_rl

    earlier = earlier_run(recipe)
    assert earlier is not None  # the plan has this stage for such a run only
    try:
        before = load_recipe(earlier.recipe)
    except RecipeError as error:
        raise StageFailed(str(error)) from None
    if problem := refusal(recipe, earlier):
        raise StageFailed(problem)
    for theirs, ours in (("pretrain", "pretrain"), ("final", "sft")):
        policy = load_policy(earlier.policy(theirs))
        policy.version = 0  # a new weight chain begins
        save_policy(policy, run.policy(ours))
    run.demonstrations.mkdir(exist_ok=True)
    kept, solved = examples_of(earlier, verified=True), solved_in_rl(before, earlier)
    save_examples(run.examples(verified=True), [*kept, *solved])
    # These are searched for held-out code.
    save_examples(run.examples(), [*examples_of(earlier, verified=False), *solved])
    note = f"{len(kept)} verified examples and {len(solved)} different rollouts that {earlier.root.name} solved"
    run.write_result_of(ADOPT, {"note": note, "seeds": sorted(_seeds(before, earlier))})


def refusal(recipe: Recipe, earlier: RunDirectory) -> str:
    """Return why ``recipe`` cannot go on from the run ``earlier``, and what to do; '' if it can. Raises RecipeError if
    that run's recipe cannot be read, and DirectoryError."""
    if earlier.stage_result(AFTER) is None or not (earlier.policy("final") / "config.json").exists():
        return f"policy.source: {earlier.root} is not finished; finish it with `woodshed run {earlier.root}`"
    if recipe.tasks.main == "packages":
        return (
            f'policy.source: {earlier.root} is a run, and tasks.main is "packages": its prompts would be trained '
            "twice; use tasks that are drawn by seed"
        )
    before = load_recipe(earlier.recipe)
    theirs = before.learn.demonstrations.conversations
    if more := [path for path in recipe.learn.demonstrations.conversations if path not in theirs]:
        return (
            f"learn.demonstrations.conversations: {more[0]} would not be learned from: a run that goes on from "
            f"{earlier.root} does no SFT before RL; leave it out, or start from {earlier.policy('final')}"
        )
    kept = json.loads((earlier.policy("final") / "woodshed.json").read_text("utf-8"))["format"]
    if recipe.policy.format not in ("auto", kept):
        return (
            f"policy.format: {earlier.root} has learned the chat format {kept!r}, and its examples have it; leave out "
            f"{recipe.policy.format!r}, or start from {earlier.policy('final')}"
        )
    if problem := _other_tools(recipe, before):
        return f"{problem}; what {earlier.root} solved calls these. Start from {earlier.policy('final')} instead"
    used, own = _seeds(before, earlier), _seed_of_tasks(recipe)
    if own in used:
        return (
            f"seed {recipe.seed} drew the tasks of {earlier.root} or of a run before it, and a prompt is never trained "
            f"twice: --set seed={recipe.seed + max(used) + 1 - own}"
        )
    return ""


def _seeds(recipe: Recipe, run: RunDirectory) -> set[int]:
    """Return the seeds that drew the training tasks of a run and of all runs that it goes on from."""
    return {_seed_of_tasks(recipe), *run.read_result_of(ADOPT).get("seeds", ())}


def _other_tools(recipe: Recipe, before: Recipe) -> str:
    """Return why calls of the agent of the recipe ``before`` are not those of ``recipe``'s; '' if they are. The tools
    of agent programs are unknown, and more tools do no harm."""
    if (recipe.harness.program is None) != (before.harness.program is None):
        return "harness.program: only one of the two runs has an agent program, so their tools differ"
    try:
        ours, theirs = _parameters(recipe), _parameters(before)
    except ValueError as error:
        return f"{error} (named by this recipe or by the earlier run)"
    lost = [name for name, parameters in theirs.items() if ours.get(name) != parameters]
    return f"harness.tools: {', '.join(lost)} of the earlier run is missing or takes other arguments" if lost else ""


def _parameters(recipe: Recipe) -> dict[str, Any]:
    """Map each tool of the built-in agent to the schema of its arguments. Raises ValueError if one cannot be loaded."""
    if recipe.harness.program is not None:
        return {}
    functions = (each["function"] for each in ToolRegistry(recipe.harness.tools, recipe.harness).schemas())
    return {function["name"]: function["parameters"] for function in functions}


def _seed_of_tasks(recipe: Recipe) -> int:
    return recipe.seed + (recipe.tasks.custom if recipe.tasks.family == "custom" else recipe.tasks.synthetic).seed
