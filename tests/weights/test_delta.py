import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.weights.delta import decode_part, encode_parts
from woodshed.weights.errors import ChainError, TornVersion, WrongBase
from woodshed.weights.image import Image, assemble, take
from woodshed.weights.layout import Slot, join
from woodshed.weights.shards import Region, Shard

from .states import raw, state_at

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e8m0fnu, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


def there_and_back(image: Image, base: Image | None, part_bytes: int = 1 << 28) -> Image:
    out: Image = {}
    for data in encode_parts(image, base, part_bytes=part_bytes):
        out |= decode_part(data, base, where="test")
    return out


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bit_exact_for_any_bits(data: st.DataObject) -> None:
    """NaN payloads, -0.0, infinities and denormals are just bytes."""
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.sampled_from([(), (0,), (1,), (5, 3), (2, 3, 4)]))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    bits = st.binary(min_size=nbytes, max_size=nbytes)
    if dtype == torch.bool:
        bits = st.lists(st.sampled_from([0, 1]), min_size=nbytes, max_size=nbytes).map(bytes)
    before, after = (
        {"w": torch.frombuffer(bytearray(data.draw(bits)), dtype=torch.uint8).view(dtype).reshape(shape)}
        if nbytes
        else {"w": torch.zeros(shape, dtype=dtype)}
        for _ in range(2)
    )
    out = assemble(there_and_back(take(after), take(before)))
    assert raw(out) == raw(after)
    assert out["w"].dtype == dtype and out["w"].shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_every_value_of_a_small_dtype_next_to_every_other(dtype: torch.dtype) -> None:
    """All bit patterns, so every NaN payload and both zeros, from bases that differ in each byte."""
    words = torch.int16 if dtype.itemsize == 2 else torch.uint8
    count = 1 << (8 * dtype.itemsize)
    every = torch.arange(count, dtype=torch.int32).to(words).view(dtype)
    for shift in (0, 1, 255, count // 2):
        base, after = {"w": every}, {"w": every.view(words).roll(shift).view(dtype)}
        assert raw(assemble(there_and_back(take(after), take(base)))) == raw(after)


def test_parts_are_cut_by_size_and_each_stands_alone() -> None:
    base, image = take(state_at(0)), take(state_at(1))
    parts = list(encode_parts(image, base, part_bytes=4000))
    assert len(parts) > 2
    pieces = [decode_part(part, base, where="test") for part in reversed(parts)]
    assert sum(map(len, pieces)) == len(image)
    assert raw(assemble({k: p for part in pieces for k, p in part.items()})) == raw(state_at(1))
    assert len(list(encode_parts({}, {}))) == 1 and there_and_back({}, {}) == {}


@pytest.mark.parametrize("starts", [[0, 0, 4, 4], [0, 2, 4, 4], [0, 0, 2, 4]], ids=["exact", "overlap", "both"])
def test_pieces_of_a_tensor_that_overlap_are_an_error(starts: list[int]) -> None:
    """They may have as many elements as the tensor and still leave some out."""
    matrix = torch.arange(32.0).reshape(8, 4)
    image: Image = {}
    for i, row in enumerate(starts):
        region = Region((8, 4), (row, 2 * (i % 2)), (4, 2))
        image |= take({"w": Shard(matrix[region.slices], region)})
    assert len(image) == 4
    tensors = {"w": torch.zeros(8, 4)}
    layout = {"w": [Slot("w", Region.all_of((8, 4)), (0, 0))]}
    if starts == [0, 0, 4, 4]:
        join(image.values(), layout, tensors)
        assert torch.equal(assemble(image)["w"], matrix) and torch.equal(tensors["w"], matrix)
        return
    with pytest.raises(ChainError, match="w: some of its 4 pieces overlap"):
        assemble(image)
    with pytest.raises(ChainError, match="w: some of its 4 pieces overlap"):
        join(image.values(), layout, tensors)


def test_a_reader_takes_what_it_wants() -> None:
    (part,) = encode_parts(take(state_at(0)), None)
    some = decode_part(part, None, where="test", wanted=lambda name, region: name == "b.weight")
    assert raw(assemble(some)) == {"b.weight": raw(state_at(0))["b.weight"]}


def test_what_changed_shape_dtype_or_box_is_written_whole() -> None:
    base = take({"a": torch.ones(4), "b": torch.ones(4), "c": torch.ones(4)})
    halves = {"c": torch.arange(2.0)}
    image = take({"a": torch.ones(4).bfloat16(), "b": torch.ones(2, 2)})
    image |= take({"c": Shard(halves["c"], Region((4,), (0,), (2,)))})
    image |= take({"c": Shard(halves["c"], Region((4,), (2,), (2,)))})
    out = assemble(there_and_back(image, base))
    assert out["a"].dtype == torch.bfloat16 and out["b"].shape == (2, 2)
    assert out["c"].tolist() == [0, 1, 0, 1]


def test_a_base_that_lacks_a_piece_is_refused() -> None:
    (part,) = encode_parts(take(state_at(1)), take(state_at(0)))
    lacking = take({k: v for k, v in state_at(0).items() if k != "b.weight"})
    with pytest.raises(WrongBase, match=r"here: b\.weight"):
        decode_part(part, lacking, where="here")


@settings(max_examples=60, deadline=None)
@given(flip=st.integers(0, 10_000), cut=st.integers(0, 200))
def test_damage_never_passes_for_weights(flip: int, cut: int) -> None:
    base, image = take(state_at(0)), take(state_at(1))
    (part,) = encode_parts(image, base)
    damaged = bytearray(part)
    damaged[flip % len(part)] ^= 0x41
    try:
        out = decode_part(bytes(damaged[: len(part) - cut]), base, where="test")
    except (TornVersion, WrongBase):
        return
    assert all(out[k].checksum == image[k].checksum for k in out if k in image)
