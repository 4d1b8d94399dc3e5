"""Choice of the device."""

from __future__ import annotations

import pytest
import torch

from woodshed.policy.device import resolve


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve("cpu").type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="no GPU; set 'auto' or 'cpu'"):
        resolve("cuda")
