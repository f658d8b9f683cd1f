"""npu_quant_lightning_indexer against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.sparse_reference import flat, seen, sequences
from tests.ops.families import on
from tests.ops.support import make


def lens(values):
    return None if values is None else torch.tensor(values, dtype=torch.int32).npu()


def inputs(shape, kv_shape, dtype=torch.int8, half=torch.float16, scale=torch.float16):
    query = make(*shape, dtype=torch.int8, low=-90, high=90)
    key = make(*kv_shape, dtype=torch.int8, low=-90, high=90, seed=1)
    if dtype != torch.int8:
        query, key = ((t.float() / 30).to(dtype) for t in (query, key))
    return (
        query, key, make(*shape[:-1], dtype=half, seed=2),
        make(*shape[:-1], dtype=scale, low=0.001, high=0.01, seed=3),
        make(*kv_shape[:-1], dtype=scale, low=0.001, high=0.01, seed=4), 0, 0,
    )  # fmt: skip


def compare(
    given, count, mode, layout="BSND", kv_layout="BSND", lengths=None, kv_lengths=None, table=None
):
    found = torch_npu.npu_quant_lightning_indexer(
        *given, actual_seq_lengths_query=lens(lengths), actual_seq_lengths_key=lens(kv_lengths),
        block_table=lens(table), layout_query=layout, layout_key=kv_layout, sparse_count=count,
        sparse_mode=mode,
    )  # fmt: skip
    query, key = flat(given[0].float()), flat(given[1].float())[:, 0]
    weights, scale = (t.cpu().double().reshape(-1, t.shape[-1]) for t in given[2:4])
    steps = given[4].cpu().double().reshape(-1)
    got = found.cpu().view(-1, count).tolist()
    for rows, columns in sequences(
        given[0], given[1], layout, kv_layout, lengths, kv_lengths, table
    ):
        for i, row in enumerate(rows):
            own = columns[: seen(i, len(rows), len(columns), mode)]
            product = query[row] @ key[own].T * scale[row][:, None] * steps[own]
            right = (product.relu() * weights[row][:, None]).sum(0)
            kept = [j for j in got[row] if j >= 0]
            assert len(kept) == len(set(kept)) == min(count, len(own))
            best = right.sort(descending=True).values[: len(kept)]
            torch.testing.assert_close(right[kept], best, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [0, 3])
def test_int8(mode):
    compare(inputs((2, 3, 8, 128), (2, 9, 1, 128)), 5, mode)


@pytest.mark.parametrize("mode", [0, 3])
def test_pages(mode):
    given = inputs((5, 8, 128), (4, 16, 1, 128))
    compare(given, 12, mode, "TND", "PA_BSND", [1, 5], [20, 9], [[3, 1], [2, 0]])


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "half,scale", [(torch.bfloat16, torch.float32), (torch.float16, torch.float16)]
)
def test_float8_on_ascend950(half, scale):
    given = inputs((2, 3, 8, 128), (2, 9, 1, 128), torch.float8_e4m3fn, half, scale)
    with on("A5"):
        compare(given, 5, 3)
    with pytest.raises(RuntimeError, match="'query' must be of dtype torch.int8"):
        torch_npu.npu_quant_lightning_indexer(*given)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"query_quant_mode": 1}, "'query_quant_mode' must be 0"),
        ({"sparse_count": 3072}, "'sparse_count' must be from 1 to 2048"),
        ({"weights": make(2, 3, 8)}, "'weights' must be with the scales of dtypes"),
        ({"key_dequant_scale": make(2, 9, dtype=torch.float16)}, r"'key_dequant_scale' must be of shape \(2, 9, 1\)"),
    ],
)  # fmt: skip
def test_refusals(options, message):
    names = (
        "query",
        "key",
        "weights",
        "query_dequant_scale",
        "key_dequant_scale",
        "query_quant_mode",
        "key_quant_mode",
    )
    given = dict(zip(names, inputs((2, 3, 8, 128), (2, 9, 1, 128)), strict=True))
    with pytest.raises(RuntimeError, match=f"npu_quant_lightning_indexer: argument {message}"):
        torch_npu.npu_quant_lightning_indexer(**(given | options))


@pytest.mark.family("A2")
def test_hifloat8_on_ascend950():
    """Bytes of 1 (0x08), 1.5 (0x0C), 2 (0x10) and -1 (0x88): the keys rank by their value."""
    query = torch.full((1, 1, 8, 128), 0x08, dtype=torch.uint8).npu()
    key = torch.tensor([0x08, 0x88, 0x10, 0x0C], dtype=torch.uint8).view(1, 4, 1, 1)
    weights, scales = torch.ones(1, 1, 8, dtype=torch.bfloat16).npu(), torch.ones(1, 1, 8).npu()
    given = (
        query,
        key.expand(1, 4, 1, 128).contiguous().npu(),
        weights,
        scales,
        torch.ones(1, 4, 1).npu(),
        0,
        0,
    )
    code = torch_npu.hifloat8
    named = {"query_dtype": code, "key_dtype": code, "sparse_mode": 0}
    with on("A5"):
        found = torch_npu.npu_quant_lightning_indexer(*given, **named)
        with pytest.raises(RuntimeError, match="'sparse_count' must be 2048 with hifloat8"):
            torch_npu.npu_quant_lightning_indexer(*given, **named, sparse_count=4)
    assert found.shape == (1, 1, 1, 2048)
    assert found.flatten()[:5].tolist() == [2, 3, 0, 1, -1]
    with pytest.raises(RuntimeError, match="'query_dtype' must be on a chip of series A5"):
        torch_npu.npu_quant_lightning_indexer(*given, **named)
    with pytest.raises(RuntimeError, match="'key_dtype' must be as 'query_dtype'"):
        torch_npu.npu_quant_lightning_indexer(*given, key_dtype=code)
