import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.gateway.segments_wire import Finished, decode, encode
from woodshed.record.segment import Segment, Span


def segment(n: int, seed: int, routes: bool) -> Segment:
    rng = np.random.default_rng(seed)
    sampled = rng.random(n) < 0.5
    return Segment(
        tokens=rng.integers(0, 60_000, n).astype(np.int32),
        sampled=sampled,
        logprobs=np.where(sampled, -rng.random(n), 0).astype(np.float32),
        versions=np.where(sampled, rng.integers(0, 9, n), -1).astype(np.int32),
        spans=[Span(0, n // 2, "user", 0), Span(n // 2, n, "assistant", 1)],
        routes=rng.integers(-1, 8, (n, 2, 3)).astype(np.int16) if routes else None,
    )


def sample() -> Finished:
    parts = [segment(7, 0, True), segment(0, 1, False), segment(300, 2, False)]
    return Finished("a/b \ud800 é", parts, 2, 5, [{"kind": "thumbs_up", "time": 1.5}], {"source": "live"}, 12.5)


def test_round_trip() -> None:
    before, after = sample(), decode(encode(sample()))
    assert {k: v for k, v in vars(before).items() if k != "segments"} == {
        k: v for k, v in vars(after).items() if k != "segments"
    }
    for a, b in zip(before.segments, after.segments, strict=True):
        for name in ("tokens", "sampled", "logprobs", "versions"):
            assert getattr(a, name).dtype == getattr(b, name).dtype
            assert np.array_equal(getattr(a, name), getattr(b, name))
        assert a.spans == b.spans
        assert (a.routes is None) == (b.routes is None)
        assert a.routes is None or np.array_equal(a.routes, b.routes)  # type: ignore[arg-type]


def test_every_truncation_and_every_extra_byte_is_refused() -> None:
    data = encode(sample())
    for n in (*range(0, 200), *range(200, len(data), 97), len(data) - 1):
        with pytest.raises(ValueError):
            decode(data[:n])
    with pytest.raises(ValueError, match="too many"):
        decode(data + b"\0")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 400), st.integers(0, 255))
def test_damage_never_raises_anything_else(at: int, value: int) -> None:
    data = bytearray(encode(sample()))
    data[at] = value
    try:
        decode(bytes(data))
    except ValueError:
        pass
