"""pass@1 while an evaluation runs is not the share of solved among what ended first."""

from types import SimpleNamespace

from woodshed.evaluate.run import _Tally

TASKS = [SimpleNamespace(name=f"t{n}") for n in range(3)]
WANTED = [(task, f"{task.name}:{k}") for task in TASKS for k in range(4)]
SOLVED = {"t0": 1, "t1": 4, "t2": 0}
"""Four samples of each task; the solved ones end first."""


def test_the_rate_is_over_tasks_whose_samples_are_all_in() -> None:
    everything = {id: int(id[-1]) < SOLVED[task.name] for task, id in WANTED}
    first = {id: True for id, solved in everything.items() if solved}
    sofar = _Tally(WANTED, first).sofar()
    assert sofar.done == 5 and sofar.complete == 1 and sofar.rate == 1.0, "t1 alone is complete"
    assert str(sofar) == "pass@1 1.000 over the 1 of 3 tasks whose samples are all in"
    sofar = _Tally(WANTED, {id: everything[id] for _, id in WANTED[:8]} | {"t2:0": False}).sofar()
    assert (sofar.complete, sofar.rate, sofar.done, sofar.total) == (2, 0.625, 9, 12)
    assert _Tally(WANTED, everything).sofar().rate == 5 / 12


def test_nothing_is_claimed_before_a_task_is_complete() -> None:
    sofar = _Tally(WANTED, {"t0:0": True, "t1:0": True, "t2:3": True}).sofar()
    assert sofar.rate is None and str(sofar) == "no task has all its samples yet"


def test_counting_sample_by_sample_gives_the_progress_of_a_fresh_count() -> None:
    results: dict[str, bool | None] = {"t1:0": True}
    tally = _Tally(WANTED, results)
    for k, (task, id) in enumerate(WANTED):
        if id in results:
            continue
        results[id] = None if k % 5 == 4 else k % 3 == 0
        tally.add(task.name, results[id])
        assert tally.sofar() == _Tally(WANTED, results).sofar()
    assert tally.sofar().complete == 3
