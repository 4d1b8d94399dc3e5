"""``python -m woodshed.stages STAGE RUN``: run one stage of a run as a process of its own.

STAGE of an RL round carries the round's number, except in the last or only round."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from woodshed.cluster.supervisor import FATAL
from woodshed.evaluate.arms import split_round
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory

from .failures import HOPELESS

STAGES = {
    "tasks": ("make_tasks", "make_tasks"),
    "packages": ("make_tasks", "make_packages"),
    "corpus": ("corpus", "make_corpus"),
    "pretrain": ("policy", "pretrain"),
    "convert": ("policy", "convert"),
    "demos": ("demonstrations", "demonstrate"),
    "sft": ("policy", "fine_tune"),
    "adopt": ("adopt", "take_over"),
    "mtp": ("mtp", "distill_head"),
    "before": ("evaluate", "evaluate_before"),
    "rollouts": ("rl", "reinforce"),
    "after": ("evaluate", "evaluate_after"),
    "solved": ("solved", "fine_tune_on_rl"),
    "rl-evaluation": ("evaluate", "evaluate_rl"),
    "other-sft": ("baselines", "fine_tune_other"),
    "other-sft-evaluation": ("evaluate", "evaluate_other_sft"),
    "sample": ("baselines", "sample"),
    "rejection": ("solved", "fine_tune_on_samples"),
    "rejection-evaluation": ("evaluate", "evaluate_rejection"),
}


def main(stage: str, root: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per request otherwise
    run = RunDirectory(Path(root))
    name, number = split_round(stage)
    module, function = STAGES[name]
    work: Callable[..., None] = getattr(import_module(f"woodshed.stages.{module}"), function)
    try:
        work(load_recipe(run.recipe), run, *(() if number is None else (number,)))
    except HOPELESS as error:
        if error.__cause__ is not None:  # the message says what a user's own code raised, and not where
            traceback.print_exception(error.__cause__)
        print(f"{FATAL}{error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as error:  # with status 0 the stage would count as finished
        traceback.print_exception(error)
        print(f"{FATAL}the stage {stage} was ended by a call of sys.exit({error.code!r}); see the log", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
