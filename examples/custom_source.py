"""A task source of your own: a small function with one wrong operator. Put this file into the folder you start from:

    woodshed tasks build custom_source:wrong_operator --out my-tasks --per-source 20

makes tasks to look at, and a recipe trains on such tasks:

    [tasks]
    main = "custom_source:wrong_operator"
    custom = { train = 60, heldout = 16 }

Every task goes through the gates of `woodshed tasks check` before it is used. docs/tasks.md has the rest.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from woodshed import Task, TaskInfo
from woodshed.record.task import save_task

TEST_SH = b'#!/bin/sh\necho "graded by tests/cases.json"; exit 1\n'  # what other Harbor tools run


def wrong_operator(folder: Path, split: str, count: int, seed: int) -> Iterator[Task]:
    """Write ``count`` tasks of ``split`` below ``folder``. The same arguments always give the same tasks."""
    for number in range(count):
        rng = random.Random(f"{split}-{seed}-{number}")  # with the split, or held-out tasks would be those trained on
        low, factor, offset = rng.sample(range(10, 1000), 3)
        good = f"def score(x):\n    if x > {low}:\n        return x * {factor} + {offset}\n    return x - {offset}\n"
        inputs = [rng.randrange(low + 1, 2000) for _ in range(6)] + [rng.randrange(low + 1) for _ in range(6)]
        # What the grader compares: [arguments, result]. The first six show the bug, the others must keep working.
        cases = [[[x], x * factor + offset if x > low else x - offset] for x in inputs]
        yield save_task(
            folder / f"{split}-{number}",
            name=f"example/score-{split}-{seed}-{number}",  # no two tasks have the same name
            instruction="`score` in `score.py` returns wrong numbers. One operator is wrong: find it and fix it.",
            info=TaskInfo(
                split=split,
                grader="cases",  # calls the function in a fresh box; "pytest" and "node" run tests
                kind="operator",
                submission=("score.py",),  # the only file of the agent that grading sees
                fail_to_pass=tuple(f"score::{n}" for n in range(6)),
                pass_to_pass=tuple(f"score::{n}" for n in range(6, 12)),
            ),
            workspace={"score.py": good.replace(" + ", " - ").encode()},  # what the agent starts from
            tests={
                "test.sh": TEST_SH,
                "cases.json": json.dumps({"score": {"function": "score", "cases": cases}}).encode(),
            },
            solution={"score.py": good.encode()},
        )
