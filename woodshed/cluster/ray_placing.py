"""Program that places a server on every live node of a Ray cluster, and keeps a file with their addresses.

``python -m woodshed.cluster.ray_placing --file FILE --key-file KEY --key-variable NAME -- ARGV`` is a driver of Ray:
however it ends, Ray then ends its actors, and with them the servers. Ray chooses the cluster (RAY_ADDRESS, else the one
that runs on this machine). ``FILE`` holds ``{"hosts": {node: URL}, "left_out": {node: why}}``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from .node_server import OtherSource
from .ray_servers import PATIENCE, NoNodes, RayServers
from .supervisor import FATAL

_PACE = 1.0
log = logging.getLogger("woodshed.cluster.ray_placing")


def connect(seconds: float) -> None:
    """Connect to the cluster as a driver; end this process if no cluster answers."""
    import ray

    where = os.environ.get("RAY_ADDRESS")
    problem = (
        f"no Ray cluster answers at RAY_ADDRESS={where}" if where else "no Ray cluster runs on this machine"
    ) + ": start one (`ray start --head`), or name one in RAY_ADDRESS"
    # Ray tries for minutes, in a call that signals do not interrupt.
    late = threading.Timer(seconds, _give_up, [f"{problem} (waited {seconds:.0f} s)"])
    late.daemon = True
    late.start()
    try:
        ray.init(address="auto", logging_level=logging.WARNING)
    except ConnectionError as error:
        log.warning("%s", error)
        _give_up(problem)
    except (RuntimeError, ray.exceptions.RayError) as error:  # such as a wrong key, or another version of Python or Ray
        _give_up(f"the Ray cluster does not accept this program: {error}")
    late.cancel()


def _give_up(why: str) -> NoReturn:
    print(f"{FATAL}{why}", file=sys.stderr, flush=True)
    os._exit(2)


def _write(file: Path, state: dict[str, Any]) -> None:
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(state, indent=1), encoding="utf-8")
    temporary.replace(file)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="woodshed.cluster.ray_placing", description=__doc__)
    parser.add_argument("--file", type=Path, required=True, help="written whenever something changes")
    parser.add_argument("--key-file", type=Path, required=True, help="file with the servers' key")
    parser.add_argument("--key-variable", required=True, help="environment variable in which servers read the key")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to wait for the cluster")
    parser.add_argument("argv", nargs="+", help="the server, after the Python interpreter; gets --host and --port")
    given = parser.parse_args()
    connect(given.seconds)
    # With status 0 the supervisor of the run would take it for finished, and not start it again.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    servers = RayServers(given.argv, given.key_variable, given.key_file.read_text(encoding="utf-8").strip())
    # If the file exists, this program was restarted during a run, and must not end because nodes are missing.
    began, settled, written = time.monotonic(), given.file.exists(), None
    try:
        while True:
            servers.step()
            settled = settled or servers.settled(late=time.monotonic() - began > PATIENCE)
            if settled and (state := servers.state()) != written:
                _write(given.file, state)
                written = state
            time.sleep(_PACE)
    except (OtherSource, NoNodes) as error:
        print(f"{FATAL}{error}", file=sys.stderr)
        sys.exit(2)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        servers.stop()


if __name__ == "__main__":
    main()
