"""Which engine a request goes to: the one that holds its trajectory's prefix, unless others have far less to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from woodshed.engine.protocol import trajectory_of

from .replica import Replica

MOST = 1 << 16
"""Trajectories remembered; the one that was used longest ago is forgotten, which costs it its prefix at most."""


class Placement:
    """Remembers where each session is. ``spread``: how much busier its engine may be than the least busy one."""

    def __init__(self, spread: int) -> None:
        self._spread = spread
        self._homes: OrderedDict[str, dict[str, Replica]] = OrderedDict()

    def choose(self, replicas: Sequence[Replica], session: str | None) -> Replica:
        """One of ``replicas`` (at least one, each serving)."""
        least = min(replicas, key=lambda replica: replica.running)
        if session is None:
            return least
        sessions = self._homes.get(trajectory_of(session), {})
        # Another session of the trajectory has a beginning in common with it: the one that was used last is best.
        home = sessions.get(session) or next(reversed(sessions.values()), None)
        if home is not None and home in replicas and home.running - least.running <= self._spread:
            return home
        return least

    def settle(self, session: str | None, replica: Replica) -> None:
        """The session is there now; the engine where it was need not keep it."""
        if session is None:
            return
        name = trajectory_of(session)
        sessions = self._homes.setdefault(name, {})
        self._homes.move_to_end(name)
        before = sessions.pop(session, replica)
        if before is not replica:
            before.engine.release(session)
        sessions[session] = replica
        if len(self._homes) > MOST:
            for forgotten, where in self._homes.popitem(last=False)[1].items():
                where.engine.release(forgotten)

    def release(self, session: str) -> None:
        """Forget it, here and in its engine."""
        name = trajectory_of(session)
        sessions = self._homes.get(name, {})
        if (replica := sessions.pop(session, None)) is not None:
            replica.engine.release(session)
            if not sessions:
                del self._homes[name]
