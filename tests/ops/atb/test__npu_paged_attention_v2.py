"""_npu_paged_attention_v2 against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, close, pages
from tests.ops.support import make


def call(dtype=torch.float16, mask=None, **more):
    query = make(3, 4, 16, dtype=dtype)
    key, value = (make(6, 16, 2, 16, dtype=dtype, seed=s) for s in (1, 2))
    table = make(3, 2, dtype=torch.int32, low=0, high=6)
    out = torch.zeros_like(query)
    options = dict(value_cache=value, num_kv_heads=2, num_heads=4, scale_value=0.3, out=out)
    lengths = more.pop("lengths", [20, 1, 17])
    found = torch_npu.atb._npu_paged_attention_v2(
        query, key, table, lengths, mask=mask, **(options | more)
    )
    assert found.data_ptr() == out.data_ptr()
    rows = []
    for i, length in enumerate(lengths):
        bias = None
        if mask is not None:
            bias = (mask[i] if mask.dim() == 4 else mask)[..., :length].cpu()
        keys, values = (pages(c, table[i], length) for c in (key, value))
        rows.append(attention(query[i : i + 1], keys, values, 0.3, bias)[0])
    close(out, torch.cat(rows), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_without_a_mask(dtype):
    call(dtype)


@pytest.mark.parametrize("shape", [(3, 4, 1, 32), (4, 1, 32)])
def test_alibi(shape):
    call(mask=make(*shape, dtype=torch.float16, low=-3, high=3), mask_type=2)


def test_workspace():
    query, cache = make(1, 2, 16, dtype=torch.float16), make(2, 16, 2, 16, dtype=torch.float16)
    table = make(1, 1, dtype=torch.int32, low=0, high=2)
    found = torch_npu.atb._npu_paged_attention_v2_get_workspace(
        query, cache, table, [3], value_cache=cache, num_heads=2, num_kv_heads=2, out=query.clone()
    )
    assert found.dtype == torch.uint8
    call(workspace=found)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"mask_type": 1}, "'mask_type' must be 0 or 2, but received 1"),
        ({"mask_type": 2}, "'mask' must be given with mask_type 2"),
        ({"value_cache": None}, "'value_cache' must be given"),
        ({"num_heads": 0}, "'num_heads' must be positive"),
        ({"lengths": [33, 1, 1]}, "'context_lens' must be of lengths up to 32"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=f"argument {message}"):
        call(**options)


def test_mask_too_short():
    with pytest.raises(RuntimeError, match="'mask' must be of at least 20 columns"):
        call(mask=make(4, 1, 8, dtype=torch.float16), mask_type=2)
