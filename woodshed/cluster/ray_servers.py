"""One server on every live node of a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .node_server import NodeServer, OtherSource, source
from .supervisor import ProgramFailed

PATIENCE = 120.0
"""Seconds that the first nodes have to start their servers; slower ones join later."""
_LAST = 4.0
"""Seconds for servers to end gracefully; the supervisor of this program waits for five."""
log = logging.getLogger(__name__)


class NoNodes(Exception):
    """No node of the cluster can run the server."""


@dataclass
class _Server:
    """``answer``: pending result of ``actor``'s method ``start`` or ``look``. ``url``: empty until it has started."""

    address: str
    actor: Any
    answer: Any
    url: str = ""


class RayServers:
    """The servers by node. Needs a connected ray; call ``step`` repeatedly."""

    def __init__(self, argv: Sequence[str], key_variable: str, key: str) -> None:
        self._argv, self._variable, self._key = list(argv), key_variable, key
        self._source = source()
        self._servers: dict[str, _Server] = {}
        self._left_out: dict[str, tuple[str, Exception]] = {}
        self._proved: set[str] = set()
        """Nodes on which a server once ran: there a lost server is always started again."""

    def step(self) -> None:
        """Start missing servers, collect results of the actors, and forget nodes that are gone."""
        import ray

        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        for node in [node for node in self._servers if node not in alive]:
            log.warning("node %s is gone", self._servers.pop(node).address)
        self._left_out = {node: why for node, why in self._left_out.items() if node in alive}
        for node, address in alive.items():
            if node not in self._servers and node not in self._left_out:
                self._servers[node] = self._place(node, address)
        for node, server in list(self._servers.items()):
            if ray.wait([server.answer], timeout=0)[0]:
                self._hear(node, server)

    def state(self) -> dict[str, dict[str, str]]:
        """Return the contents of the file that ``ray_placing`` writes."""
        left_out = {node: f"{address}: {_says(why)}" for node, (address, why) in self._left_out.items()}
        return {"hosts": {node: s.url for node, s in self._servers.items() if s.url}, "left_out": left_out}

    def settled(self, *, late: bool) -> bool:
        """Return True once every node's server has started or failed. If ``late``, one server that answers is enough.

        Raises OtherSource if a node has another Woodshed, NoNodes if no node can run the program.
        """
        for address, why in self._left_out.values():
            if isinstance(why, OtherSource):
                raise OtherSource(f"node {address}: {why}")
        state = self.state()
        waiting = [server.address for server in self._servers.values() if not server.url]
        if not state["hosts"] and (late or not waiting):
            silent = f"; no answer in {PATIENCE:.0f} s: {', '.join(waiting)}" if waiting else ""
            raise NoNodes(f"no node of the Ray cluster can serve: {'; '.join(state['left_out'].values())}{silent}")
        return late or not waiting

    def stop(self) -> None:
        """Give servers a few seconds to end gracefully. Ray ends the rest."""
        import ray

        ending = [server.actor.stop.remote() for server in self._servers.values()]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=_LAST)

    def _place(self, node: str, address: str) -> _Server:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        actor: Any = ray.remote(NodeServer).options(num_cpus=0, scheduling_strategy=there).remote()
        log.warning("node %s: starting a server", address)
        answer = actor.start.remote(self._source, self._argv, address, self._variable, self._key)
        return _Server(address, actor, answer)

    def _hear(self, node: str, server: _Server) -> None:
        import ray

        try:
            url = ray.get(server.answer)
        except Exception as error:  # any error of Ray or of the actor
            why = _cause(error)
            log.warning("node %s: the server is lost: %s", server.address, why)
            ray.kill(server.actor)
            del self._servers[node]
            if node not in self._proved:
                self._left_out[node] = server.address, why
            return
        if not server.url:
            log.warning("node %s: serving on %s", server.address, url)
            self._proved.add(node)
        server.url, server.answer = url, server.actor.look.remote()


def _cause(error: Exception) -> Exception:
    """Return the actor's exception instead of Ray's wrapper."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    if "No module named 'woodshed" in str(error):
        return OtherSource("Ray's Python there has no woodshed, or another one: install the same everywhere")
    return error


def _says(why: Exception) -> str:
    lines = str(why).strip().splitlines() or [repr(why)]
    return lines[-1] if isinstance(why, ProgramFailed) else lines[0]
