import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.weights.codec import GAPS, CodecError, decode, encode


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    elements=st.integers(0, 3000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    density=st.sampled_from([0.0, 0.0005, 0.01, 0.1, 0.5, 1.0]),
    level=st.sampled_from([1, 5]),
)
def test_round_trip_at_every_density(seed: int, elements: int, itemsize: int, density: float, level: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, elements * itemsize, dtype=np.uint8)
    data[rng.random(len(data)) >= density] = 0
    blob = encode(data, itemsize, level=level)
    np.testing.assert_array_equal(decode(blob, len(data), itemsize), data)
    assert len(blob) <= len(data) + 1 + 9 * itemsize + 26


@given(data=st.binary(max_size=600).map(lambda b: b[: len(b) // 2 * 2]))
def test_round_trip_of_arbitrary_bytes(data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    assert decode(encode(array, 2), len(array), 2).tobytes() == data


def test_large_tensors_decide_on_a_sample_and_still_round_trip() -> None:
    rng = np.random.default_rng(0)
    data = np.zeros(1 << 20, np.uint8)
    data[rng.integers(0, len(data), 5000)] = 7
    np.testing.assert_array_equal(decode(encode(data, 4), len(data), 4), data)


def test_sparse_positions_cost_about_their_entropy() -> None:
    rng = np.random.default_rng(1)
    n, p = 400_000, 0.01
    plane = (rng.random(n) < p).astype(np.uint8)
    blob = encode(plane, 1)
    entropy_bytes = n * (-p * np.log2(p) - (1 - p) * np.log2(1 - p)) / 8
    assert blob[0] == GAPS
    assert len(blob) < 1.1 * entropy_bytes


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 400), flip=st.integers(0, 400))
def test_damaged_blobs_raise_or_decode_to_the_right_size(seed: int, cut: int, flip: int) -> None:
    rng = np.random.default_rng(seed)
    data = np.zeros(2000, np.uint8)
    data[rng.integers(0, 2000, 60)] = rng.integers(1, 256, 60)
    blob = bytearray(encode(data, 2))
    blob[flip % len(blob)] ^= 0x55
    damaged = bytes(blob[: max(0, len(blob) - cut)])
    try:
        assert len(decode(damaged, 2000, 2)) == 2000
    except CodecError:
        pass


def test_wrong_size_is_an_error() -> None:
    with pytest.raises(CodecError):
        decode(encode(np.ones(10, np.uint8), 1), 12, 1)
    with pytest.raises(CodecError):
        decode(b"", 0, 1)
