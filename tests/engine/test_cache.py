"""The memory of the key/value cache: what rows hold as it grows, and how it is taken."""

import resource
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from waiting import run_to_end

from woodshed.engine.cache import RowCache
from woodshed.policy.processor import HUGE_PAGE, zeros

ROOT = Path(__file__).parents[2]
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def cache(**settings) -> RowCache:
    shape = {"layers": 2, "kv_heads": 2, "head_dim": 8, "dtype": torch.float32, "device": torch.device("cpu")}
    return RowCache(**{**shape, "budget": 1 << 26, "max_rows": 64, "step": 16, **settings})


def fill(held: RowCache, row: int, length: int) -> None:
    for number, buffer in enumerate((*held.keys, *held.values)):
        buffer[row, :, :length] = 100 * row + number + torch.arange(length)[:, None] / 1000
    held.tokens[row, :length] = row
    held.lengths[row] = length


def holds(held: RowCache, row: int, of: int, length: int) -> bool:
    """Whether ``row`` has what was filled in for row ``of``."""
    expected = [100 * of + number + torch.arange(length)[:, None] / 1000 for number in range(2 * held.layers)]
    buffers = [buffer[row, :, :length] for buffer in (*held.keys, *held.values)]
    return all(torch.equal(buffer, one.expand_as(buffer)) for buffer, one in zip(buffers, expected))


def filled(rows: int, **settings) -> RowCache:
    """A cache of ``rows`` sessions, the first with 5 tokens, each with one more up to 12."""
    held = cache(**settings)
    for session in range(rows):
        fill(held, held.acquire(str(session), 16), 5 + session % 8)
    return held


def all_hold(held: RowCache, rows: int) -> bool:
    return all(holds(held, row, row, 5 + row % 8) for row in range(rows))


def grow(held: RowCache, rows: int) -> None:
    for session in range(held.rows, rows):
        fill(held, held.acquire(str(session), 16), 5 + session % 8)


def test_more_rows_are_no_other_memory():
    held = filled(8)
    places = [buffer.data_ptr() for buffer in (*held.keys, *held.values)]
    grow(held, 64)
    assert held.rows == 64 and held.evictions == 0
    assert [buffer.data_ptr() for buffer in (*held.keys, *held.values)] == places
    assert all_hold(held, 64)


def grow_with_little_address_space() -> None:
    """Of the 4 GiB that this cache may have."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    held = filled(8, budget=4 << 30, max_rows=1 << 20)
    assert all(len(buffer) == 8 for buffer in held.keys)
    grow(held, 64)
    assert held.rows == 64 and all_hold(held, 64)


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_rows_come_one_after_the_other_where_address_space_is_little():
    here = "from tests.engine.test_cache import grow_with_little_address_space as grow; grow(); print('grown')"
    paths = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); "
    done = run_to_end([sys.executable, "-c", paths + here], cwd=ROOT)
    assert done.stdout == "grown\n", done.stderr


def test_longer_rows_keep_what_was_computed():
    held = filled(8)
    assert held.acquire("long", 40) == 8 and held.length == 48
    assert all_hold(held, 8)
    assert not any(buffer[8].any() for buffer in (*held.keys, *held.values))


def test_the_rows_that_are_kept_move_together():
    held = filled(8, budget=8 * 16 * 2 * 2 * 2 * 8 * 4)  # eight rows of 16 tokens
    for row in (0, 2, 4, 6, 1, 3, 5, 7):  # those with even numbers are the oldest
        held.release(row)
    assert held.acquire("long", 32) is not None and held.rows == 4
    assert held.moved == {3: 0, 5: 1, 7: 2} and held.evictions == 5
    assert all(holds(held, row, old, 5 + old) and held.lengths[row] == 5 + old for old, row in held.moved.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_zero_and_apart(dtype):
    shape = (3, HUGE_PAGE, 2)
    one, other = zeros(shape, dtype), zeros(shape, dtype)
    assert one.shape == shape and one.dtype == dtype and not one.any()
    one.fill_(1)
    part = one[1:]
    del one
    assert part.all() and not other.any()
    assert not zeros((4, 4), dtype).any()


@pytest.mark.skipif(not PAGES.is_file() or "[never]" in PAGES.read_text(), reason="no huge pages on this system")
def test_large_memory_is_in_huge_pages():
    large = zeros((4 * HUGE_PAGE,), torch.int8)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if "-" in line.split()[0]]
    for first, after in pairwise([*starts, len(lines)]):
        begin, end = (int(number, 16) for number in lines[first].split()[0].split("-"))
        if begin <= large.data_ptr() < end:
            assert any(line.startswith("VmFlags:") and " hg" in line for line in lines[first:after])
            return
    raise AssertionError("the memory is nowhere")
