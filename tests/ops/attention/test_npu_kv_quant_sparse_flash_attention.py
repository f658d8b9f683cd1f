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


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "options,message",
    [
        ({"key_quant_mode": 0}, "'key_quant_mode' must be 2"),
        ({"attention_mode": 0}, "'attention_mode' must be 2"),
        ({"tile_size": 64}, "'tile_size' must be 128"),
        ({"sparse_block_size": 32}, "'sparse_block_size' must be a power of two up to 16"),
        ({"value_dtype": 290}, "'value_dtype' must be as 'key_dtype'"),
        ({"key_dtype": 290, "value_dtype": 290}, "'key_dtype' must be on a chip of series A5"),
        ({"sinks": make(4)}, "'sinks' must be on a chip of series A5"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=f"argument {message}"):
        call(make(2, 3, 4, 576, dtype=torch.bfloat16), keys(torch.bfloat16, 2, 9, 1)[0], **options)


def test_scales_that_are_read_nowhere():
    query, (key, _) = make(2, 3, 4, 576, dtype=torch.bfloat16), keys(torch.bfloat16, 2, 9, 1)
    given = call(query, key, key_dequant_scale=make(1), value_dequant_scale=make(1))
    assert torch.equal(given, call(query, key))


def test_heads_on_ascend950():
    query, (key, _) = make(2, 3, 48, 576, dtype=torch.bfloat16), keys(torch.bfloat16, 2, 9, 1)
    with on("A5"):
        assert call(query, key).shape == (2, 3, 48, 512)
        with pytest.raises(
            RuntimeError, match="'query' must be of 1, 2, 4, 8, 16, 32, 48, 64 or 128"
        ):
            call(query[:, :, :6], key)


def test_hifloat8_on_ascend950():
    """Bytes of 1 (0x08), 1.5 (0x0C) and -1 (0x88)."""
    bytes_ = torch.tensor([0x08, 0x0C, 0x88, 0x08] * 128, dtype=torch.uint8)
    plain = torch.tensor([1.0, 1.5, -1.0, 1.0] * 128)
    rope, scales = torch.zeros(1, 3, 1, 64), torch.tensor([[1.0], [2.0], [0.5]]).expand(3, 4)
    parts = (
        bytes_.expand(1, 3, 1, 512),
        rope.bfloat16().view(torch.uint8),
        scales.contiguous().view(torch.uint8).view(1, 3, 1, 16),
    )
    key = torch.cat(parts, -1).npu()
    query = make(1, 1, 2, 576, dtype=torch.bfloat16)
    places = torch.full((1, 1, 1, 2048), -1, dtype=torch.int32)
    places[..., :3] = torch.arange(3)
    code = torch_npu.hifloat8
    options = {"attention_mode": 2, "key_dtype": code, "value_dtype": code}
    with on("A5"):
        operator = torch_npu.npu_kv_quant_sparse_flash_attention
        out = operator(query, key, key, places.npu(), 0.01, 2, 2, **options)
        with pytest.raises(
            RuntimeError, match="'sparse_indices' must be of 2048 keys with hifloat8"
        ):
            operator(query, key, key, places[..., :3].npu(), 0.01, 2, 2, **options)
    keys_ = plain * torch.tensor([[1.0], [2.0], [0.5]])
    whole = torch.cat((keys_, torch.zeros(3, 64)), -1).double()
    right = attention(flat(query)[0], whole, whole[:, :512], 0.01)[0]
    torch.testing.assert_close(out[0, 0].cpu().double(), right, rtol=2e-2, atol=2e-2)
