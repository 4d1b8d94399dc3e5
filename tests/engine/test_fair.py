"""Who is admitted next where many wait."""

import asyncio
from collections import Counter
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.engine.protocol import Sampling
from woodshed.engine.scheduler import FairQueue

from .models import decoder, prompt, run, running


def ask(session):
    return Waiting(session=session)


class Waiting(SimpleNamespace):
    __eq__ = object.__eq__  # no two requests are the same


def test_a_crowd_of_one_trajectory_does_not_hold_up_another():
    queue = FairQueue()
    crowd = [ask(f"crowd.{n}") for n in range(10)]
    queue.extend(crowd)
    queue.extend(single := [ask("one.0"), ask("two.0")])
    order = [queue.pop() for _ in range(len(queue))]
    assert order[:3] == [crowd[0], *single] and order[3:] == crowd[1:]
    queue.extend(late := [ask("crowd.0"), ask("one.0"), ask(None), ask(None)])
    assert [queue.pop() for _ in range(4)] == late, "what was before the queue was empty does not count"


@settings(max_examples=50)
@given(st.lists(st.none() | st.integers(0, 3), max_size=40))
def test_nobody_waits_for_ever_and_order_is_kept_within_a_trajectory(events):
    """None pops, a number is a request of that trajectory. Two trajectories that wait take turns."""
    queue, pushed, popped = FairQueue(), [], []
    for event in events:
        if event is None:
            if len(queue):
                popped.append(queue.pop())
        else:
            pushed.append(ask(f"{event}.0"))
            queue.extend(pushed[-1:])
    waiting = list(queue)
    assert len(waiting) == len(queue)
    rest = [queue.pop() for _ in waiting]
    assert rest == waiting
    for owner in range(4):
        name = f"{owner}.0"
        assert [r for r in popped + rest if r.session == name] == [r for r in pushed if r.session == name]
    # where two trajectories wait, they take turns until one has nothing left
    served = Counter()
    left = Counter(r.session for r in rest)
    for request in rest:
        served[request.session] += 1
        left[request.session] -= 1
        counts = [served[name] for name in served.keys() | left.keys() if left[name]]
        assert not counts or max(counts) - min(counts) <= 2


def test_the_engine_admits_fairly():
    async def main():
        async with running(decoder(), max_running=1) as engine:
            order = []

            async def one(session):
                await engine.generate(prompt(5), Sampling(max_tokens=4), session=session)
                order.append(session)

            first = asyncio.create_task(engine.generate(prompt(5), Sampling(max_tokens=200)))
            while not engine.stats()["running"]:
                await asyncio.sleep(0)
            crowd = [asyncio.create_task(one(f"crowd.{n}")) for n in range(6)]
            await asyncio.sleep(0)
            await asyncio.gather(first, *crowd, asyncio.create_task(one("single.0")))
            assert order.index("single.0") <= 1 and [s for s in order if s[0] == "c"] == sorted(order)[:6]

    run(main())


def test_a_waiting_request_can_be_taken_out():
    queue = FairQueue()
    queue.extend(all_of_them := [ask("a.0"), ask("a.1"), ask("b.0")])
    queue.remove(all_of_them[1])
    assert [queue.pop(), queue.pop()] == [all_of_them[0], all_of_them[2]] and not len(queue)
