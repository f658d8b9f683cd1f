"""npu_kv_quant_sparse_flash_attention against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.sparse_reference import attention, flat, seen
from tests.ops.families import on
from tests.ops.support import make
from torch_npu.ops.attention.npu_kv_quant_sparse_flash_attention import packed

INDICES = [[[[0, 3, 7]], [[4, 1, -1]], [[8, 2, 5]]], [[[6, 0, 1]], [[7, 2, 3]], [[1, 8, 0]]]]


def keys(dtype, *shape):
    latent = make(*shape, 512, dtype=torch.int8, low=-90, high=90)
    rope, scales = make(*shape, 64, dtype=dtype), make(*shape, 4, low=0.005, high=0.01)
    plain = latent.cpu().double().unflatten(-1, (4, 128)) * scales.cpu().double().unsqueeze(-1)
    plain = plain.flatten(-2).to(dtype).double()
    return packed(latent, rope, scales), torch.cat((plain, rope.cpu().double()), -1)


def call(query, key, **options):
    indices = torch.tensor(INDICES, dtype=torch.int32).npu()
    given = {"attention_mode": 2, "key_quant_mode": 2, "value_quant_mode": 2} | options
    return torch_npu.npu_kv_quant_sparse_flash_attention(query, key, key, indices, 0.05, **given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 3])
def test_int8_keys(dtype, mode):
    query = make(2, 3, 4, 576, dtype=dtype)
    key, plain = keys(dtype, 2, 9, 1)
    out = call(query, key, sparse_mode=mode)
    assert out.shape == (2, 3, 4, 512) and out.dtype == dtype
    rows = flat(query).view(2, 3, 4, 576)
    for b in range(2):
        for i in range(3):
            edge = seen(i, 3, 9, mode)
            own = [t for t in INDICES[b][i][0] if 0 <= t < edge]
            picked = plain[b, own, 0]
            right = attention(rows[b, i], picked, picked[:, :512], 0.05)[0]
            torch.testing.assert_close(out[b, i].cpu().double(), right, rtol=2e-2, atol=2e-2)


def test_float8_on_ascend950():
    query = make(2, 3, 4, 576, dtype=torch.bfloat16)
    key, _ = keys(torch.bfloat16, 2, 9, 1)
    latent = key[..., :512].cpu().float().div(30).to(torch.float8_e4m3fn)
    mixed = torch.cat((latent.view(torch.int8), key[..., 512:].cpu()), -1)
    with on("A5"):
        out = call(query, mixed.view(torch.float8_e4m3fn).npu(), sparse_mode=0)
    scales = mixed[0, :, 0, 640:].contiguous().view(torch.float32).double()
    plain = latent[0, :, 0].double().unflatten(-1, (4, 128)) * scales.unsqueeze(-1)
    rope = mixed[0, :, 0, 512:640].contiguous().view(torch.bfloat16).double()
    plain = torch.cat((plain.flatten(1).bfloat16().double(), rope), -1)[INDICES[0][0][0]]
    right = attention(flat(query)[0], plain, plain[:, :512], 0.05)[0]
    torch.testing.assert_close(out[0, 0].cpu().double(), right, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"key_quant_mode": 0}, "'key_quant_mode' must be 2"),
        ({"attention_mode": 0}, "'attention_mode' must be 2"),
        ({"tile_size": 64}, "'tile_size' must be 128"),
        ({"sparse_block_size": 32}, "'sparse_block_size' must be a power of two up to 16"),
        ({"key_dequant_scale": make(1)}, "'key_dequant_scale' must be left at None"),
        ({"sinks": make(4)}, "'sinks' must be on a chip of series A5"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=f"argument {message}"):
        call(make(2, 3, 4, 576, dtype=torch.bfloat16), keys(torch.bfloat16, 2, 9, 1)[0], **options)


def test_hifloat8_is_not_supported():
    key = keys(torch.bfloat16, 2, 9, 1)[0]
    with pytest.raises(NotImplementedError, match="key_dtype"):
        call(make(2, 3, 4, 576, dtype=torch.bfloat16), key, key_dtype=torch_npu.hifloat8)
