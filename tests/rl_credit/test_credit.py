import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.rl.credit import get_credit, names

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16).map(lambda r: np.array(r, np.float64))


@pytest.mark.parametrize("name", names())
@given(r=rewards, shift=st.floats(-100, 100))
def test_zero_mean_and_blind_to_a_constant(name: str, r: np.ndarray, shift: float) -> None:
    credit = get_credit(name)
    advantages = credit.advantages(r)
    assert advantages.shape == r.shape
    assert abs(advantages.mean()) < 1e-9
    np.testing.assert_allclose(credit.advantages(r + shift), advantages, atol=1e-6)


@given(r=rewards, scale=st.floats(0.1, 10))
def test_default_is_not_standardised(r: np.ndarray, scale: float) -> None:
    credit = get_credit("mean_baseline")
    np.testing.assert_allclose(credit.advantages(scale * r), scale * credit.advantages(r), atol=1e-9)
    np.testing.assert_allclose(credit.advantages(r), [x - statistics.fmean(r) for x in r], atol=1e-12)


@given(r=rewards)
def test_leave_one_out_against_its_definition(r: np.ndarray) -> None:
    expected = [r[i] - np.delete(r, i).mean() for i in range(len(r))]
    np.testing.assert_allclose(get_credit("leave_one_out").advantages(r), expected, atol=1e-9)


@given(r=rewards)
def test_grpo_against_its_definition(r: np.ndarray) -> None:
    expected = [(x - statistics.fmean(r)) / (statistics.stdev(r) + 1e-4) for x in r]
    np.testing.assert_allclose(get_credit("grpo").advantages(r), expected, atol=1e-7)


def test_equal_rewards_give_exactly_zero() -> None:
    for name in names():
        assert not get_credit(name).advantages(np.full(8, 0.25)).any()


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="known: mean_baseline"):
        get_credit("ppo")
