"""_npu_flash_attention_v3 and _npu_flash_attention_unpad_v2 against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens
from tests.ops.families import on
from tests.ops.support import make

LENGTHS = (6, 1, 9)


def tokens(dtype=torch.float16):
    query, key = make(16, 4, 16, dtype=dtype), make(16, 2, 16, dtype=dtype, seed=1)
    return query, key, make(16, 2, 16, dtype=dtype, seed=2), torch.zeros_like(query)


def template(size, dtype=torch.float16, value=1):
    return (torch.ones(size, size).triu(1) * value).to(dtype).npu()


def nz(mask):
    return mask.unflatten(1, (-1, 16)).transpose(0, 1).unsqueeze(0).contiguous()


def expected(query, key, value, bias):
    rows, start = [], 0
    for n in LENGTHS:
        span = slice(start, start + n)
        rows.append(attention(query[span], key[span], value[span], 0.3, bias(n))[0])
        start += n
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_causal(dtype):
    query, key, value, out = tokens(dtype)
    mask = template(128, dtype)
    call = torch_npu._npu_flash_attention_v3
    assert call(query, key, value, mask, lens(*LENGTHS), 0.3, 4, 2, out=out) is None
    close(out, expected(query, key, value, lambda n: causal(n, n)), dtype)


@pytest.mark.parametrize("size", [128, 2048])
def test_masks_of_310p(size):
    query, key, value, out = tokens()
    mask = nz(template(size, value=-10000))
    with on("310P"):
        torch_npu._npu_flash_attention_v3(
            query, key, value, mask, lens(*LENGTHS), 0.3, 4, 2, mask_type=None, out=out
        )
    close(out, expected(query, key, value, lambda n: causal(n, n)), torch.float16)


def test_mask_of_ascend950():
    query, key, value, out = tokens()
    with on("A5"):
        torch_npu._npu_flash_attention_v3(
            query, key, value, template(2048), lens(*LENGTHS), 0.3, 4, 2, out=out
        )
        with pytest.raises(RuntimeError, match=r"'mask' must be of shape \(2048, 2048\)"):
            torch_npu._npu_flash_attention_v3(
                query, key, value, template(128), lens(*LENGTHS), 0.3, 4, 2, out=out
            )
    close(out, expected(query, key, value, lambda n: causal(n, n)), torch.float16)


def test_a_single_query_sees_all_keys():
    query, key = make(1, 4, 16, dtype=torch.float16), make(5, 2, 16, dtype=torch.float16)
    out, lengths = torch.zeros_like(query), torch.tensor([[1], [5]], dtype=torch.int32)
    torch_npu._npu_flash_attention_v3(query, key, key, template(128), lengths, 0.3, 4, 2, out=out)
    close(out, attention(query, key, key, 0.3)[0], torch.float16)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"mask_type": 1}, "'mask_type' must be None or 3, but received 1"),
        ({"mask": make(16, 16, dtype=torch.float16)}, r"'mask' must be of shape \(128, 128\)"),
        ({"mask": make(128, 128, dtype=torch.bfloat16)}, "'mask' must be of the dtype of 'query'"),
        ({"mask": make(128, 128, dtype=torch.float16)}, "'mask' must be not 0 above the diagonal"),
        ({"num_kv_heads": 3}, "'num_kv_heads' must be 0 or a divisor"),
    ],
)
def test_refusals(change, message):
    query, key, value, out = tokens()
    given = dict(query=query, key=key, value=value, mask=template(128), seq_len=lens(*LENGTHS),
                 scale_value=0.3, num_heads=4, num_kv_heads=2, out=out)  # fmt: skip
    with pytest.raises(RuntimeError, match=f"_npu_flash_attention_v3: argument {message}"):
        torch_npu._npu_flash_attention_v3(**given | change)


@pytest.mark.parametrize("family,kernel_type", [("A2", 0), ("A2", None), ("310P", 2)])
def test_unpad_v2(family, kernel_type):
    query, key, value, out = tokens()
    with on(family):
        torch_npu._npu_flash_attention_unpad_v2(
            query, key, value, lens(*LENGTHS), 0.3, 4, 2, kernel_type=kernel_type, out=out
        )
    close(out, expected(query, key, value, lambda n: None), torch.float16)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"kernel_type": 1}, "'kernel_type' must be None, 0 or 2, but received 1"),
        ({"kernel_type": 2}, "'kernel_type' must be on a chip of series 310P"),
        ({"num_heads": 0}, "'num_heads' must be positive"),
    ],
)
def test_refusals_of_unpad_v2(change, message):
    query, key, value, out = tokens()
    given = dict(query=query, key=key, value=value, seq_len=lens(*LENGTHS), scale_value=0.3,
                 num_heads=4, num_kv_heads=2, out=out)  # fmt: skip
    words = f"_npu_flash_attention_unpad_v2: argument {message}"
    with on("A2"), pytest.raises(RuntimeError, match=words):
        torch_npu._npu_flash_attention_unpad_v2(**given | change)
