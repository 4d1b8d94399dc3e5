import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.weights.codec import GAPS, HUFFMAN, CodecError, decode, encode


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


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 0.01, 0.05])
def test_sparse_positions_and_values_cost_about_their_entropy(density: float) -> None:
    """Values as XORs of neighbouring floats have them: mostly 1, 3, 7."""
    rng = np.random.default_rng(1)
    n, chances = 1 << 21, np.array([0.6, 0.2, 0.1, 0.1])
    plane = np.zeros(n, np.uint8)
    where = np.flatnonzero(rng.random(n) < density)
    plane[where] = rng.choice([1, 3, 7, 15], len(where), p=chances)
    blob = encode(plane, 1)
    share = len(where) / n
    positions = n * -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) / 8
    values = len(where) * -(chances * np.log2(chances)).sum() / 8
    assert blob[0] == GAPS
    assert len(blob) < 1.06 * (positions + values) + 150
    np.testing.assert_array_equal(decode(blob, n, 1), plane)


def test_bytes_without_repetition_are_huffman_coded() -> None:
    rng = np.random.default_rng(2)
    chances = 0.5 ** np.arange(1, 9)
    data = rng.choice(8, 300_000, p=chances / chances.sum()).astype(np.uint8) + 1
    blob = encode(data, 1)
    assert blob[0] == HUFFMAN and len(blob) < 1.03 * len(data) * 2 / 8
    np.testing.assert_array_equal(decode(blob, len(data), 1), data)


def test_what_lies_in_runs_costs_no_more_than_zstd() -> None:
    rng = np.random.default_rng(3)
    data = np.zeros(1 << 20, np.uint8)
    for start in rng.integers(0, len(data) - 64, 2000):
        data[start : start + 64] = np.arange(64)
    blob = encode(data, 1)
    assert len(blob) < 1.05 * len(zstandard.ZstdCompressor(level=1).compress(data.tobytes()))
    np.testing.assert_array_equal(decode(blob, len(data), 1), data)


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
