"""Kill publisher and follower processes at random, and check the integrity of the chain."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from woodshed.weights.background import BackgroundPublisher
from woodshed.weights.chain import Publisher, verify_chain
from woodshed.weights.errors import ChainError
from woodshed.weights.follow import Follower
from woodshed.weights.image import Image, take
from woodshed.weights.manifest import versions

ELEMENTS = 200_000


def state_at(version: int) -> dict[str, np.ndarray]:
    """Return the state of a version, computed from its number alone: words that change by a few units, each at its own
    pace."""
    rng = np.random.default_rng(0)
    words, pace = rng.integers(0, 1 << 16, ELEMENTS), rng.integers(0, 40, ELEMENTS)
    moved = (words + (version * pace >> 8)).astype(np.uint16).view(np.int16)
    return {"a": moved[: ELEMENTS // 2], "b": moved[ELEMENTS // 2 :], "version": np.array([version])}


def is_right(image: Image, version: int) -> bool:
    expected = take(state_at(version))
    return image.keys() == expected.keys() and all(image[k].checksum == p.checksum for k, p in expected.items())


def publish(chain: Path, last: int) -> None:
    """Publish the versions after the head, one after the other, until ``last``."""
    publisher = BackgroundPublisher(Publisher(chain, 5, keep_anchors=2, part_bytes=100_000))
    for version in range((publisher.publisher.head or 0) + 1, last + 1):
        publisher.publish(version, state_at(version))
        time.sleep(0.01)
    publisher.close()


def follow(chain: Path, last: int, log: Path) -> None:
    """Follow the chain from its beginning to ``last``; write a line to ``log`` for every version reached."""
    follower = Follower(chain)
    with log.open("a") as file:
        file.write(json.dumps({"started": os.getpid()}) + "\n")
        while follower.version is None or follower.version < last:
            version = follower.advance()
            if version is not None and follower.image is not None:
                file.write(json.dumps({"version": version, "right": is_right(follower.image, version)}) + "\n")
                file.flush()
            time.sleep(0.005)


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return its pid. The child has everything imported, so that a kill hits the
    work and not the imports."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    return pid


def kill_at_random(folder: Path, kills: int, seed: int = 0) -> dict[str, int]:
    """Kill the publisher or the follower, chosen at random, ``kills`` times in all; then let both finish and count what
    is wrong."""
    rng, chain, log = random.Random(seed), folder / "chain", folder / "follower.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    last = 4 * kills
    work: list[Callable[[], None]] = [lambda: publish(chain, last), lambda: follow(chain, last, log)]
    running: list[int | None] = [None, None]
    done = 0
    while done < kills:
        for i in (0, 1):
            if running[i] is None:
                running[i] = fork(work[i])
        time.sleep(rng.uniform(0.0, 0.6))
        i = rng.randrange(2)
        pid = running[i]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        running[i] = None
        if os.WIFEXITED(status):
            last += kills  # It had finished; add work for both.
        else:
            done += 1
    failed = 0
    for i in (0, 1):
        pid = running[i]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for one in work:
        failed += os.waitstatus_to_exitcode(os.waitpid(fork(one), 0)[1]) != 0
    return {"kills": done, "versions_published": last, "failed_at_the_end": failed, **count(chain, log, last)}


def count(chain: Path, log: Path, last: int) -> dict[str, int]:
    """Count the versions of the chain and of the follower's log, and those that differ from what was published or are
    not in order (``wrong``)."""
    try:
        kept = verify_chain(chain)
    except ChainError as error:
        print(f"chain: {error}")
        kept = []
    wrong = 0 if kept and kept[-1] == last else 1
    for version in versions(chain):
        follower = Follower(chain)
        wrong += follower.advance(up_to=version) != version or not is_right(follower.image or {}, version)
    seen, before = 0, -1
    for line in map(json.loads, log.read_text().splitlines()):
        if "started" in line:
            before = -1
            continue
        seen += 1
        wrong += not line["right"] or line["version"] <= before
        before = line["version"]
    return {"versions_seen": seen, "versions_kept": len(kept), "wrong": wrong}
