import dataclasses
from pathlib import Path

import numpy as np
import pytest

from woodshed.train.batch import BatchError, Sequence, TrainBatch, pack


def assert_equal(a: TrainBatch, b: TrainBatch) -> None:
    for field in dataclasses.fields(TrainBatch):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
        elif field.name == "weights":
            assert left.keys() == right.keys()
            for part in left:
                np.testing.assert_array_equal(left[part], right[part])
        else:
            assert left == right, field.name


def test_round_trip(tmp_path: Path, make_batch) -> None:
    batch = make_batch(step=7)
    batch.routes = np.arange(len(batch.tokens) * 4, dtype=np.int16).reshape(-1, 2, 2)
    batch.info = {"stats": {"rollouts": 3}}
    path = tmp_path / "in" / "step-000007.safetensors"
    batch.save(path)
    assert_equal(TrainBatch.load(path), batch)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_empty_batch_round_trips(tmp_path: Path) -> None:
    batch = pack([], id="nothing", step=3, denominators={"rl": 5.0})
    batch.save(tmp_path / "b")
    assert_equal(TrainBatch.load(tmp_path / "b"), batch)


def test_absent_streams_are_filled() -> None:
    ones = np.ones(2, np.float32)
    batch = pack(
        [
            Sequence(np.array([1, 2], np.int32), {"ce": ones * [0, 1]}),
            Sequence(
                np.array([3, 4], np.int32),
                {"rl": ones * [0, 2]},
                behaviour_logprobs=-ones,
                routes=np.zeros((2, 1, 1), np.int16),
            ),
        ],
        id="b",
        step=1,
        denominators={"ce": 1.0, "rl": 2.0},
    )
    assert batch.weights["ce"].tolist() == [0, 1, 0, 0] and batch.weights["rl"].tolist() == [0, 0, 0, 2]
    np.testing.assert_array_equal(batch.behaviour_logprobs, np.float32([np.nan, np.nan, -1, -1]))
    assert batch.versions.tolist() == [-1] * 4 and batch.ref_logprobs is None
    assert batch.routes is not None and batch.routes.reshape(-1).tolist() == [-1, -1, 0, 0]
    assert batch.offsets.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.weights.update(bogus=b.weights["rl"]), "unknown loss part 'bogus'"),
        (lambda b: b.denominators.update(rl=0.0), r"denominators\['rl'\] is 0.0"),
        (lambda b: b.denominators.pop("ce"), r"denominators\['ce'\] is None"),
        (lambda b: b.weights["ce"].__setitem__(0, 1.0), "first token of a sequence"),
        (lambda b: b.weights["ce"].__setitem__(b.offsets[2], 1.0), "first token of a sequence"),
        (lambda b: b.weights["ce"].__setitem__(1, np.nan), "not finite"),
        (lambda b: b.behaviour_logprobs.fill(np.nan), "not sampled"),
        (lambda b: b.behaviour_logprobs.__setitem__(np.flatnonzero(b.weights["rl"])[-1], np.nan), "not sampled"),
        (lambda b: b.ref_logprobs.fill(np.nan), "needs ref_logprobs"),
        (lambda b: b.ref_logprobs.__setitem__(np.flatnonzero(b.weights["ref_kl"])[-1], np.nan), "needs ref_logprobs"),
        (lambda b: setattr(b, "versions", b.versions[:-1]), "versions has"),
        (lambda b: b.lengths.__setitem__(0, 99), "lengths sum"),
        (lambda b: b.lengths.__setitem__(slice(0, 2), [0, b.lengths[:2].sum()]), "a sequence without tokens"),
        (lambda b: b.trajectories.pop(), "trajectory ids"),
        (lambda b: setattr(b, "routes", np.zeros((len(b.tokens), 2), np.int16)), "routes has shape"),
    ],
)
def test_invalid_batches_are_named(make_batch, tmp_path: Path, change, message: str) -> None:
    batch = make_batch()
    change(batch)
    with pytest.raises(BatchError, match=message):
        batch.save(tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_unreadable_files(tmp_path: Path, make_batch) -> None:
    with pytest.raises(FileNotFoundError):
        TrainBatch.load(tmp_path / "none")
    make_batch().save(tmp_path / "b")
    data = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(data[:-9])
    with pytest.raises(BatchError, match="not a batch file"):
        TrainBatch.load(tmp_path / "b")
    with pytest.raises(BatchError, match="denominators has no 'rl'"):
        pack([Sequence(np.ones(1, np.int32), {"rl": np.zeros(1, np.float32)})], id="", step=1, denominators={"ce": 1.0})
