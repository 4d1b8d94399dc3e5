import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from woodshed.weights.chain import Publisher, collect_garbage, verify_chain
from woodshed.weights.delta import decode_image, encode_image
from woodshed.weights.errors import ChainError, TornVersion, VersionConflict, WrongBase
from woodshed.weights.follow import Follower
from woodshed.weights.image import take
from woodshed.weights.manifest import versions

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64]


def raw(state: dict[str, Tensor]) -> dict[str, bytes]:
    return {k: v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for k, v in state.items()}


def state_at(version: int, *, scale: float = 1e-3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 32, generator=generator)
    for v in range(version):
        weights = weights + scale * torch.randn(64, 32, generator=torch.Generator().manual_seed(v + 1))
    return {
        "a.weight": weights, "b.weight": weights.bfloat16(), "c": weights[:4].to(torch.float8_e4m3fn),
        "frozen": torch.ones(7), "scalar": torch.tensor(float(version)), "empty": torch.zeros(0, 3),
    }  # fmt: skip


def publish(chain: Path, count: int, anchor_every: int = 4, **kw: int) -> None:
    publisher = Publisher(chain, anchor_every, **kw)
    for v in range(count):
        publisher.publish(v, state_at(v))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_delta_is_bit_exact_for_any_bits(data: st.DataObject) -> None:
    """NaN payloads, -0.0, infinities and denormals are just bytes."""
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.sampled_from([(), (0,), (1,), (5, 3), (2, 3, 4)]))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    before, after = (
        {"w": torch.frombuffer(bytearray(data.draw(st.binary(min_size=nbytes, max_size=nbytes))), dtype=torch.uint8)
         .view(dtype).reshape(shape)} if nbytes else {"w": torch.zeros(shape, dtype=dtype)}
        for _ in range(2)
    )  # fmt: skip
    base, image = take(before), take(after)
    blob, index = encode_image(image, base)
    out = decode_image(blob, json.loads(json.dumps(index)), base, where="test")
    assert raw({"w": out["w"].tensor()}) == raw(after)
    assert out["w"].tensor().dtype == dtype and out["w"].tensor().shape == shape


def test_special_values_survive_a_chain(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC1, 0xFFFF, 0x8000, 0x0001, 0x7F80], dtype=torch.int32).to(torch.int16)
    special = {"w": bits.view(torch.bfloat16)}
    publisher = Publisher(tmp_path)
    publisher.publish(0, {"w": torch.zeros(5, dtype=torch.bfloat16)})
    publisher.publish(1, special)
    got = Follower(tmp_path).poll()
    assert got is not None and got[0] == 1
    assert got[1]["w"].view(torch.int16).tolist() == bits.tolist()


def test_follower_tracks_every_version_and_newcomers_catch_up(tmp_path: Path) -> None:
    publisher, steady = Publisher(tmp_path, 4), Follower(tmp_path)
    assert steady.poll() is None
    for v in range(11):
        publisher.publish(v, state_at(v))
        got = steady.poll()
        assert got is not None and got[0] == v and raw(got[1]) == raw(state_at(v))
        assert steady.poll() is None
        newcomer = Follower(tmp_path)
        got = newcomer.poll()
        assert got is not None and got[0] == v and raw(got[1]) == raw(state_at(v))
    assert verify_chain(tmp_path) == list(range(11))
    only = Follower(tmp_path).poll(up_to=6)
    assert only is not None and only[0] == 6 and raw(only[1]) == raw(state_at(6))


def test_straggler_takes_the_shorter_way(tmp_path: Path) -> None:
    """Dense deltas: replaying seven of them costs more than one anchor; small ones cost less."""
    for scale, jumps in ((1.0, True), (0.0, False)):
        chain = tmp_path / str(scale)
        publisher, straggler = Publisher(chain, 8), Follower(chain)
        publisher.publish(0, state_at(0, scale=scale))
        straggler.poll()
        before = straggler.bytes_read
        for v in range(1, 9):
            publisher.publish(v, state_at(v, scale=scale))
        got = straggler.poll()
        assert got is not None and got[0] == 8 and raw(got[1]) == raw(state_at(8, scale=scale))
        full = (chain / "v000008" / "full.bin").stat().st_size
        assert (straggler.bytes_read - before == full) == jumps


def test_publisher_continues_a_chain_and_refuses_gaps_and_changes(tmp_path: Path) -> None:
    publish(tmp_path, 3)
    again = Publisher(tmp_path, 4)
    assert again.head == 2
    again.publish(2, state_at(2))
    again.publish(1, state_at(1))
    with pytest.raises(VersionConflict, match="other weights"):
        again.publish(2, state_at(1))
    with pytest.raises(VersionConflict, match="cannot follow"):
        again.publish(5, state_at(5))
    again.publish(3, state_at(3))
    got = Follower(tmp_path).poll()
    assert got is not None and got[0] == 3 and raw(got[1]) == raw(state_at(3))


def test_wrong_base_is_refused_and_an_anchor_heals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path, 4, anchor_every=4)
    lost = Follower(tmp_path, version=1, state=state_at(0))
    shutil.rmtree(tmp_path / "v000000")
    with pytest.raises(WrongBase, match="other weights"):
        lost.poll()
    assert lost.version == 1
    publisher = Publisher(tmp_path, 4)
    publisher._base = (3, take(state_at(3)))
    publisher.publish(4, state_at(4))
    got = lost.poll()
    assert got is not None and got[0] == 4 and raw(got[1]) == raw(state_at(4))
    assert "other weights" in caplog.text


def test_held_version_saves_the_anchor(tmp_path: Path) -> None:
    publish(tmp_path, 3, anchor_every=25)
    follower = Follower(tmp_path, version=1, state=state_at(1))
    got = follower.poll()
    assert got is not None and got[0] == 2 and raw(got[1]) == raw(state_at(2))
    assert follower.bytes_read == (tmp_path / "v000002" / "delta.bin").stat().st_size


def test_unfinished_version_is_waited_for(tmp_path: Path) -> None:
    publish(tmp_path, 3)
    manifest = tmp_path / "v000002" / "manifest.json"
    hidden = manifest.rename(tmp_path / "held-back.json")
    follower = Follower(tmp_path)
    got = follower.poll()
    assert got is not None and got[0] == 1
    assert follower.poll() is None
    assert Publisher(tmp_path).head == 1
    hidden.rename(manifest)
    got = follower.poll()
    assert got is not None and got[0] == 2 and raw(got[1]) == raw(state_at(2))


def test_interrupted_publish_is_overwritten(tmp_path: Path) -> None:
    publish(tmp_path, 2)
    torn = tmp_path / "v000002"
    torn.mkdir()
    (torn / "delta.bin").write_bytes(b"half")
    (torn / ".manifest.json.tmp").write_bytes(b"{")
    Publisher(tmp_path, 4).publish(2, state_at(2))
    assert verify_chain(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_damage_is_detected_and_stepped_around(tmp_path: Path, damage: str) -> None:
    publish(tmp_path, 4, anchor_every=8)
    follower = Follower(tmp_path)
    follower.poll(up_to=1)
    target = tmp_path / "v000002" / "delta.bin"
    data = target.read_bytes()
    if damage == "truncate":
        target.write_bytes(data[:-3])
    elif damage == "flip":
        target.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "remove":
        target.unlink()
    else:
        (tmp_path / "v000002" / "manifest.json").write_bytes(b'{"format":')
    if damage == "manifest":
        assert follower.poll() is None
    else:
        with pytest.raises(TornVersion, match="v000002"):
            follower.poll()
    assert follower.version == 1
    with pytest.raises(ChainError):
        verify_chain(tmp_path)
    publisher = Publisher(tmp_path, 4)
    publisher._base = (3, take(state_at(3)))
    publisher.publish(4, state_at(4))
    got = follower.poll()
    assert got is not None and got[0] == 4 and raw(got[1]) == raw(state_at(4))


def test_garbage_collection_keeps_what_the_last_anchors_reach(tmp_path: Path) -> None:
    publish(tmp_path, 11, anchor_every=3)
    assert collect_garbage(tmp_path, keep_anchors=2) == [0, 1, 2, 3, 4, 5]
    assert versions(tmp_path) == [6, 7, 8, 9, 10]
    assert verify_chain(tmp_path) == [6, 7, 8, 9, 10]
    got = Follower(tmp_path).poll()
    assert got is not None and raw(got[1]) == raw(state_at(10))
    publish(tmp_path / "auto", 11, anchor_every=3, keep_anchors=2)
    assert versions(tmp_path / "auto") == [6, 7, 8, 9, 10]


def test_verify_reports_a_gap(tmp_path: Path) -> None:
    publish(tmp_path, 5, anchor_every=2)
    shutil.rmtree(tmp_path / "v000001")
    with pytest.raises(ChainError, match="version 1 is missing"):
        verify_chain(tmp_path)


def test_changed_tensor_set_is_written_whole(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(0, {"a": torch.ones(3), "gone": torch.ones(2)})
    publisher.publish(1, {"a": torch.ones(4), "new": torch.arange(3)})
    got = Follower(tmp_path).poll()
    assert got is not None and set(got[1]) == {"a", "new"}
    assert got[1]["a"].shape == (4,) and got[1]["new"].tolist() == [0, 1, 2]
