"""Which harder tasks are made, given pass rates."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from woodshed.harness.settings import HarnessSettings
from woodshed.recipe.recipe import Recipe, TaskMix
from woodshed.rl.growth.choose import GrowthSettings, SeenGroup, kinds_to_make
from woodshed.rl.settings import RLSettings
from woodshed.tasks.settings import PackageTaskSettings

SETTINGS = GrowthSettings(make=4, least=2, easy=0.75)


def groups(bugs: str, *solved: int, size: int = 4) -> list[SeenGroup]:
    return [SeenGroup(tuple(bugs.split("+")), count, size) for count in solved]


def test_only_easy_kinds_go_into_harder_tasks() -> None:
    seen = [*groups("compare", 4, 3), *groups("binop", 3, 3), *groups("swap", 4, 1), *groups("call", 0, 0)]
    made = [bugs for step in range(20) for bugs in kinds_to_make(seen, SETTINGS, 0, step)]
    assert len(made) == 80 and {len(bugs) for bugs in made} == {2}
    assert set(Counter(kind for bugs in made for kind in bugs)) == {"compare", "binop"}
    assert set(made) == {("binop", "binop"), ("binop", "compare"), ("compare", "compare")}


def test_nothing_is_made_of_what_is_hardly_known() -> None:
    assert kinds_to_make(groups("compare", 4), SETTINGS, 0, 1) == []
    assert kinds_to_make(groups("compare", 0, 0, size=0), SETTINGS, 0, 1) == []
    assert kinds_to_make([], SETTINGS, 0, 1) == []


def test_one_bug_more_than_what_is_easy() -> None:
    easy = groups("compare", 4, 4)
    assert kinds_to_make([*easy, *groups("compare+swap", 4, 1)], SETTINGS, 0, 1) == [("compare", "compare")] * 4
    assert kinds_to_make([*easy, *groups("compare+compare", 4, 4)], SETTINGS, 0, 1) == [("compare",) * 3] * 4
    hardest = [*easy, *groups("compare+compare", 4, 4), *groups("compare+compare+compare", 4, 4)]
    assert kinds_to_make(hardest, SETTINGS, 0, 1) == []
    assert kinds_to_make([*groups("compare+compare", 4, 4), *easy], SETTINGS, 0, 1) == [("compare",) * 3] * 4
    mixed = [*easy, *groups("compare+compare", 4, 4), *groups("swap", 4, 4)]
    made = {bugs for step in range(20) for bugs in kinds_to_make(mixed, SETTINGS, 0, step)}
    assert made == {("compare",) * 3, ("swap",) * 2}, "a kind goes only with kinds that are easy with as many bugs"
    more = SETTINGS.model_copy(update={"max_bugs": 4})
    assert kinds_to_make(hardest, more, 0, 1) == [("compare",) * 4] * 4


def test_what_nobody_solves_is_not_made_until_it_left_the_window() -> None:
    easy, unsolved = groups("compare", 4, 4), groups("compare+compare", 0, 0)
    assert kinds_to_make([*easy, *unsolved], SETTINGS, 0, 1) == []
    assert kinds_to_make([*easy, *unsolved[:1]], SETTINGS, 0, 1) == [("compare", "compare")] * 4
    assert kinds_to_make([*easy, *groups("compare+compare", 0, 1)], SETTINGS, 0, 1) == [("compare", "compare")] * 4


def test_the_order_of_groups_changes_nothing_and_the_seed_does() -> None:
    seen = [*groups("compare", 4, 4), *groups("binop", 4, 4), *groups("swap", 4, 4)]
    first = [kinds_to_make(seen, SETTINGS, 0, step) for step in range(6)]
    assert first == [kinds_to_make(seen[::-1], SETTINGS, 0, step) for step in range(6)]
    assert first != [kinds_to_make(seen, SETTINGS, 1, step) for step in range(6)]


@pytest.mark.parametrize(
    ("growth", "message"),
    [
        ({"make": 13}, r"growth\.make is 13 and groups_per_step is 12: .*lower rl\.growth\.make"),
        ({"make": 1, "least": 25, "window": 2}, r"growth\.least is 25, .*2 steps has only 24 groups"),
        ({"make": -1}, "greater than or equal to 0"),
        ({"easy": 1.5}, "less than or equal to 1"),
        ({"max_bugs": 1}, "greater than or equal to 2"),
        ({"hard": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(growth: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RLSettings.model_validate({"growth": growth})


def test_only_synthetic_tasks_can_be_made() -> None:
    tasks = TaskMix(main="packages", packages=PackageTaskSettings(kinds=("delete_function",)))
    harness = HarnessSettings.model_validate({"output": {"separator": ""}})

    def recipe(**growth: int) -> Recipe:
        rl = RLSettings(growth=GrowthSettings.model_validate(growth))
        return Recipe(name="x", tasks=tasks, harness=harness, rl=rl)

    with pytest.raises(ValidationError, match=r"rl\.growth\.make is 1, and only synthetic tasks .*'packages'"):
        recipe(make=1)
    assert recipe(check=1).rl.growth.check == 1
    assert RLSettings().growth == GrowthSettings(make=0, check=0)
