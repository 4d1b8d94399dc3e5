"""Both roles as agents, end to end: a scripted policy behind the real gateway, real boxes, the real pip and pytest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tasks.sources.place import Place
from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import judge_by
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.install.roles import AgentBuilder, AgentSetter
from woodshed.tasks.install.run import Outcome, ground_of, install
from woodshed.tasks.install.space import Boxes, Ground
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.spec import parse_source

from .policy import FINISH, ScriptedPolicy, call, scripted_policy

SUITE = {
    "command": "python3 -m pytest -q", "expect": "pytest reports that tests have passed", "pattern": r"\d+ passed",
    "passing_share": 1.0,
}  # fmt: skip
GOOD = "pip install -q fast money-fixture==2.0 pytest-mock\necho '{}' > rates.json\n"


def goals(count: int = 10, **changes: Any) -> list[dict[str, Any]]:
    others = [
        {
            "command": f"python3 -c 'import fast; print({n} * fast.parity)'",
            "expect": "prints a number that is right",
            "pattern": f"^{n}$",
            "exit_codes": [0],
        }
        for n in range(count - 1)
    ]
    return [{**SUITE, **changes}, *others]


def hand_in(path: str, content: str) -> str:
    return call("write_file", path=path, content=content)


@pytest.fixture
def policy() -> Iterator[ScriptedPolicy]:
    with scripted_policy() as found:
        yield found


def ground(market: Place) -> Ground:
    spec = parse_source(str(market.root / "repository"))
    return ground_of(spec, "repository", load_catalogue(market.catalogue).wheels["pytest"], market.root / "kept")


def play(market: Place, policy: ScriptedPolicy, *, judged: bool = False) -> Outcome:
    async def work(backend: Backend, layers: LayerStore) -> Outcome:
        boxes = Boxes(backend, layers)
        setter, builder = AgentSetter(policy.open, boxes), AgentBuilder(policy.open, boxes, "the-policy")
        judge = judge_by(await policy.open("judge")) if judged else None
        try:
            return await install(ground(market), setter, builder, boxes, judge=judge)
        finally:
            await policy.close()

    return market.boxes(work)


def test_goals_a_failed_try_and_one_that_is_proved(market: Place, policy: ScriptedPolicy) -> None:
    policy.says(
        call("run_command", command="ls; pip install -q fast && python3 -c 'import fast; print(fast.parity)'"),
        hand_in(".woodshed/goals.json", json.dumps(goals(9))),
        FINISH,
        hand_in(".woodshed/goals.json", json.dumps(goals())),
        FINISH,
        hand_in(".woodshed/setup.sh", "pip install -q fast\n"),
        FINISH,
        hand_in(".woodshed/setup.sh", GOOD),
        call("run_command", command="sh -e .woodshed/setup.sh && python3 -m pytest -q"),
        FINISH,
    )
    outcome = play(market, policy)
    found = outcome.install
    assert found is not None and outcome.tries == 2, outcome.error
    assert policy.roles == ["goals", "build-1", "build-2"]
    said = policy.prompts
    assert "src" in said[1] and "\n1\n" in said[1]  # what ls and pip did in the setter's box
    assert "must be a list of exactly 10 goals, got 9" in said[3]
    assert "`sh -e`" in said[5] and "python3 -m pytest -q\n" in said[5] and "wrong_discount" not in said[5]
    assert "NOT reached" in said[7] and "No module named 'money_fixture'" in said[7]
    assert "7 passed" in said[9]
    assert found.targets[0].command == SUITE["command"] and len(found.targets) == 3 and len(found.goals) == 10
    assert [w.name for w in found.installed] == ["fast", "money_fixture", "pytest_mock"]
    assert dict(found.added) == {"rates.json": b"{}\n"} and found.builder == "the-policy"


CHEATS = {
    "it changes tests/test_prices.py": "echo 'def test_a(): pass' > tests/test_prices.py\n",
    "it adds conftest.py, which configures": "echo 'collect_ignore = [\"tests\"]' > conftest.py\n",
    "it adds tests/test_more.py; the tests are": "echo 'def test_a(): pass' > tests/test_more.py\n",
    "it adds pytest.py, which takes the place": "echo 'print(\"9 passed\")' > pytest.py\n",
    "was not fetched as a wheel": "p=$(python3 -m site --user-site); mkdir -p $p/money-1.dist-info\n",
}


def test_recipes_that_cheat_are_discarded(market: Place, policy: ScriptedPolicy) -> None:
    turns = [turn for recipe in CHEATS.values() for turn in (hand_in(".woodshed/setup.sh", recipe), FINISH)]
    easy = [{**goals()[1], "command": f"echo {n}", "pattern": str(n)} for n in range(10)]  # nothing but cheating fails
    policy.says(hand_in(".woodshed/goals.json", json.dumps(easy)), FINISH, *turns)
    outcome = play(market, policy)
    assert outcome.install is None and outcome.tries == 5
    feedback = policy.prompts[4::2]
    for said, why in zip(feedback, CHEATS, strict=False):
        assert why in said
    assert list(CHEATS)[-1] in outcome.error


def test_a_setter_without_goals_and_a_judge(market: Place, policy: ScriptedPolicy) -> None:
    policy.says(*[FINISH] * 5)
    with pytest.raises(PackageError, match=r"goal-setter ended \(submitted\) without usable goals: cannot be read"):
        play(market, policy)
    assert policy.prompts[-1].count("Correct the file, then call finish") == 3

    async def judge(backend: Backend, layers: LayerStore) -> list[str]:
        ask = judge_by(await policy.open("judge"))
        goal = Goal("true", "prints nothing at all", "x")
        try:
            return [await ask(goal, "out"), await ask(goal, "out")]
        finally:
            await policy.close()

    policy.says("Yes, it does.<|im_end|>", "No: it is empty.<|im_end|>")
    assert market.boxes(judge) == ["", "the judge says: No: it is empty."]
