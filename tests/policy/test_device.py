"""Choice of the device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from woodshed.policy.attention import aligned, attend
from woodshed.policy.device import resolve


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve("cpu").type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="no GPU; set 'auto' or 'cpu'"):
        resolve("cuda")


@pytest.mark.parametrize(
    "dtype, masked, heads_of_keys",
    [(torch.float32, False, 4), (torch.bfloat16, True, 4), (torch.bfloat16, False, 2)],
)
def test_attention_on_a_gpu_never_needs_the_kernel_that_stores_scores(monkeypatch, dtype, masked, heads_of_keys):
    """Tensors without memory, as there may be no GPU: of 4 query heads and 2 key heads, what the kernels are given."""
    given = []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **how: given.append((k, v, how)) or q)
    with FakeTensorMode(), torch.no_grad():
        q, k, v = (torch.empty(1, heads, 8, 16, dtype=dtype, device="cuda:0") for heads in (4, 2, 2))
        attend(q, k, v, torch.empty(8, 8, dtype=dtype, device="cuda:0") if masked else None)
    ((k, v, how),) = given
    assert k.shape == v.shape == (1, heads_of_keys, 8, 16)
    assert how["is_causal"] is not masked and how["enable_gqa"] is (heads_of_keys == 2)


@pytest.mark.parametrize("shape", [(3, 37), (2, 1, 64), (1, 5)])
def test_rows_of_an_aligned_mask_begin_at_words_of_the_fused_kernel(shape):
    table = torch.randn(*shape[:-1], shape[-1] + 3)
    mask = table[..., 3:]
    made = aligned(mask)
    assert torch.equal(made, mask)
    assert made.data_ptr() % 16 == 0 and all(stride % 16 == 0 for stride in made.stride()[:-1])
