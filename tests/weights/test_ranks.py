"""Real processes, real collectives: all ranks of a trainer publish one chain."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3 import S3Server

from woodshed.policy.state import hf_state
from woodshed.weights.chain import verify_chain
from woodshed.weights.follow import Follower
from woodshed.weights.manifest import read_manifest, versions
from woodshed.weights.store import open_store

from .rank import decoder_at
from .states import raw

ROOT = Path(__file__).parents[2]


class Trainer:
    """Runs the ranks of a trainer; see ``rank.py``."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder, self.runs = process, folder, 0

    def __call__(self, scenario: str, world: int, chain: str) -> list[list[dict]]:
        """Output of each rank; the last line is its exit status."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.runs += 1
        order = [scenario, world, str(self.folder / f"meet-{self.runs}"), chain]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Trainer]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.weights.rank"],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Trainer(process, tmp_path_factory.mktemp("ranks"))
    finally:
        process.kill()
        process.wait()


def holds(chain: str, version: int) -> bool:
    got = Follower(chain).poll()
    return got is not None and got[0] == version and raw(got[1]) == raw(hf_state(decoder_at(version)))


def test_all_ranks_publish_and_another_number_of_ranks_continues(where: str, train: Trainer) -> None:
    """Three FSDP ranks, then two that start from the chain: pieces change, versions do not."""
    printed = train("plain", 3, where)
    assert [rank[0]["head"] for rank in printed] == [7, 7, 7]
    written = [rank[0]["bytes"] for rank in printed]
    assert min(written) > 0.5 * max(written), "every rank uploads its share"
    names = {part.name for part in read_manifest(open_store(where), 7).kinds["delta"].parts}
    assert {name.split("-")[2] for name in names} == {"00000", "00001", "00002"}
    assert verify_chain(where)[-1] == 7 and holds(where, 7)
    steady = Follower(where)
    steady.poll()
    printed = train("plain", 2, where)
    assert [rank[0]["head"] for rank in printed] == [14, 14]
    assert verify_chain(where)[-1] == 14 and holds(where, 14)
    assert versions(where)[0] == 9, "old anchors are collected"
    got = steady.poll()
    assert got is not None and got[0] == 14 and raw(got[1]) == raw(hf_state(decoder_at(14)))


def test_replicas_publish_once(tmp_path: Path, train: Trainer) -> None:
    chain = str(tmp_path / "chain")
    written = [rank[0]["bytes"] for rank in train("replicas", 4, chain)]
    assert sum(written[2:]) < 0.2 * sum(written[:2]), "only the first replica holds parts"
    assert verify_chain(chain)[-1] == 7 and holds(chain, 7)


def test_ranks_agree_on_what_they_publish_in_the_background(tmp_path: Path, train: Trainer) -> None:
    chain = str(tmp_path / "chain")
    counts, other = (rank[0] for rank in train("background", 3, chain)[:2])
    assert counts == other and counts["published"] + counts["skipped"] == 7
    assert verify_chain(chain)[-1] == 7 and holds(chain, 7)


def test_a_rank_that_fails_or_dies_leaves_the_version_out(tmp_path: Path, train: Trainer) -> None:
    chain = str(tmp_path / "chain")
    first, second = train("fails", 2, chain)
    assert "No space left" in second[0]["error"] and first[0]["error"].startswith("OSError: rank 1: ")
    assert verify_chain(chain) == [1, 2] and holds(chain, 2)
    first, second = train("dies", 2, chain)  # Continues after 2.
    assert second == [{"status": 7}] and first[-1]["status"] != 0
    assert verify_chain(chain) == [1, 2] and holds(chain, 2)
    train("plain", 2, chain)
    assert verify_chain(chain)[-1] == 9 and holds(chain, 9)
