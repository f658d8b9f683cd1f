"""npu_grouped_matmul_finalize_routing against fp64, row by row."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import E8M0, eights, powers
from tests.ops.quant import plain
from tests.ops.support import make


def ints(*shape, seed=0):
    return make(*shape, dtype=torch.int8, low=-128, high=128, seed=seed)


def routed(products, logit, index, rows, shared=None, weight=1.0, offset=0):
    y = torch.zeros(rows, products.shape[1], dtype=torch.float64)
    for i, row in enumerate(index.tolist()):
        y[row] += products[i] * (1.0 if logit is None else float(logit[i]))
    if shared is not None:
        y[offset : offset + len(shared)] += weight * shared.cpu().double()
    return y


def close(y, want):
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=want.abs().max() * 1e-5)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_int8(kind, shared, index):
    x, w = ints(9, 48), ints(3, 48, 256, seed=1)
    scale, tokens, logit = make(3, 256, low=0), make(9, low=0), make(9)
    row = make(9, dtype=index, low=0, high=5)
    extra = make(2, 256, dtype=torch.bfloat16) if shared else None
    groups = torch.tensor((4, 4, 8) if kind == 0 else (4, 0, 4)).npu()
    y = torch_npu.npu_grouped_matmul_finalize_routing(
        x,
        w,
        groups,
        scale=scale,
        pertoken_scale=tokens,
        logit=logit,
        row_index=row,
        shared_input=extra,
        shared_input_weight=0.5,
        shared_input_offset=3,
        output_bs=5,
        group_list_type=kind,
        dtype=torch.float32,
    )
    products = torch.zeros(9, 256, dtype=torch.float64)
    for e, part in ((0, slice(0, 4)), (2, slice(4, 8))):
        raw = x.cpu().double()[part] @ w.cpu().double()[e] * scale.cpu().double()[e]
        products[part] = raw * tokens.cpu().double()[part, None]
    close(y, routed(products, logit, row, 5, extra, 0.5, 3))


@pytest.mark.parametrize("given", [True, False])
def test_defaults(given):
    x, w, scale = ints(6, 16), ints(2, 16, 256), make(2, 256)
    tokens = make(6) if given else torch.ones(6)
    row = torch.tensor([5, 0, 0, 1, 2, 5]).npu()
    extra = {"pertoken_scale": tokens} if given else {}
    y = torch_npu.npu_grouped_matmul_finalize_routing(
        x, w, torch.tensor([2, 4]).npu(), scale=scale, row_index=row, **extra
    )
    raw = torch.cat([x.cpu().double()[:2] @ w.cpu().double()[0] * scale.cpu().double()[0],
                     x.cpu().double()[2:] @ w.cpu().double()[1] * scale.cpu().double()[1]])  # fmt: skip
    close(y, routed(raw * tokens.cpu().double()[:, None], None, row, 6))


@pytest.mark.parametrize("with_offset", [False, True])
def test_int4_weights(with_offset):
    words = {"dtype": torch.int32, "low": -(2**31), "high": 2**31 - 1}
    x, w = ints(6, 192), make(2, 192, 9, **words)
    exact = (make(2, 72, low=0.5, high=2).view(torch.int32) & ~0x1FFF).view(torch.float32)
    packed = torch_npu.npu_trans_quant_param(exact.reshape(-1)).reshape(2, 1, 72)
    bias, tokens, logit = make(2, 72), make(6, low=0), make(6)
    row = make(6, dtype=torch.int64, low=0, high=6)
    offset = make(2, 1, 72) if with_offset else None
    y = torch_npu.npu_grouped_matmul_finalize_routing(
        x,
        w,
        torch.tensor([2, 4]).npu(),
        scale=packed,
        bias=bias,
        offset=offset,
        pertoken_scale=tokens,
        logit=logit,
        row_index=row,
        tuning_config=[3],
    )
    right = plain.nibbles(w).reshape(2, 192, 72).double()
    products = torch.zeros(6, 72, dtype=torch.float64)
    for e, part in ((0, slice(0, 2)), (1, slice(2, 6))):
        raw = (x.cpu().double()[part] - 8) @ right[e] * exact.cpu().double()[e]
        if offset is not None:
            raw = raw + x.cpu().double()[part].sum(1, keepdim=True) * offset.cpu().double()[e]
        products[part] = (raw + bias.cpu().double()[e]) * tokens.cpu().double()[part, None]
    close(y, routed(products, logit, row, 6))


def test_offsets_have_a_shape():
    words = {"dtype": torch.int32, "low": -(2**31), "high": 2**31 - 1}
    given = (ints(6, 192), make(2, 192, 9, **words), torch.tensor([2, 4]).npu())
    packed = torch_npu.npu_trans_quant_param(torch.ones(144).npu()).reshape(2, 1, 72)
    rows = {"scale": packed, "row_index": torch.arange(6).npu()}
    for offset, message in (
        (make(2, 72), r"'offset' must be of shape \(2, 1, 72\)"),
        (make(2, 1, 72, dtype=torch.float16), "'offset' must be of dtype torch.float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_grouped_matmul_finalize_routing(*given, **rows, offset=offset)


def test_microscaling():
    (x, a), (w, b) = eights(5, 70), eights(2, 70, 6, seed=1)
    (s1, p1), (s2, p2) = powers(5, 2, 2), powers(2, 2, 6, 2, seed=1)
    bias, logit = make(2, 6, dtype=torch.bfloat16), make(5)
    row = torch.tensor([0, 1, 1, 3, 0]).npu()
    with on("A5"):
        y = torch_npu.npu_grouped_matmul_finalize_routing(
            x,
            w,
            torch.tensor([2, 3]).npu(),
            scale=s2,
            pertoken_scale=s1,
            bias=bias,
            logit=logit,
            row_index=row,
            scale_dtype=E8M0,
            pertoken_scale_dtype=E8M0,
            output_bs=4,
        )
    rows = torch.stack([p1[:, k // 64, k // 32 % 2] for k in range(70)], 1)
    columns = torch.stack([p2[:, k // 64, :, k // 32 % 2] for k in range(70)], 1)
    products = torch.cat([(a * rows)[part] @ (b[e] * columns[e]) + bias.cpu().double()[e]
                          for e, part in ((0, slice(0, 2)), (1, slice(2, 5)))])  # fmt: skip
    close(y, routed(products, logit, row, 4))


def test_int8_on_ascend950():
    x, w, scale, logit = ints(6, 10), ints(2, 10, 6), make(2, 1, 6), make(6)
    bias, row = make(2, 6, dtype=torch.bfloat16), torch.tensor([5, 0, 0, 1, 2, 5]).npu()
    args = (x, w, torch.tensor([2, 4]).npu())
    given = {"scale": scale, "row_index": row, "bias": bias, "logit": logit}
    call = torch_npu.npu_grouped_matmul_finalize_routing
    with on("A5"):
        y = call(*args, **given)
        for wrong, text in [
            ({"scale": scale[:, 0]}, r"'scale' must be of shape \(2, 1, 6\)"),
            ({"logit": None}, "'logit' must be given on Ascend950"),
        ]:
            with pytest.raises(RuntimeError, match=text):
                call(*args, **{**given, **wrong})
    products = torch.zeros(6, 6, dtype=torch.float64)
    for e, part in ((0, slice(0, 2)), (1, slice(2, 6))):
        raw = x.cpu().double()[part] @ w.cpu().double()[e] * scale.cpu().double()[e]
        products[part] = raw + bias.cpu().double()[e]
    close(y, routed(products, logit, row, 6))


def test_bad_arguments():
    x, w, scale, tokens = ints(6, 16), ints(2, 16, 256), make(2, 256), make(6)
    groups, row = torch.tensor([2, 4]).npu(), torch.tensor([5, 0, 0, 1, 2, 5]).npu()
    good = {"scale": scale, "pertoken_scale": tokens, "row_index": row}
    for args, options, text in [
        ((x, w, groups), {"scale": None}, "'scale' must be given always"),
        ((x, w, groups), {"row_index": row[:3]}, r"'row_index' must be of shape \(6\)"),
        ((x, w, groups), {"row_index": row + 1}, r"'row_index' must be in \[0, 6\)"),
        ((x, w, groups), {"logit": scale}, r"'logit' must be of shape \(6\)"),
        ((x, w, groups), {"group_list_type": 2}, "'group_list_type' must be None, 0 or 1"),
        ((x, w, groups), {"dtype": torch.float16}, "'dtype' must be None or torch.float32"),
        ((x, w, groups.int()), {}, "'group_list' must be of dtype torch.int64"),
        ((x, w[:, :15], groups), {}, "'w' must be of depth 16, as 'x', but received 15"),
        ((x, w[..., :64], groups), {"scale": scale[:, :64]}, "'w' must be of depths divisible by"),
        ((x, w, groups), {"output_bs": 7}, "'output_bs' must be from 0 to 6, the rows of 'x'"),
        ((x, w, groups), {"tuning_config": [7]}, "'tuning_config' must be from 0 to 6"),
        ((x, w, groups), {"scale": scale.half()}, "'scale' must be of dtype torch.float32 or"),
        (
            (x, w, groups),
            {"shared_input": make(3, 256, dtype=torch.bfloat16), "shared_input_offset": 4},
            "'shared_input_offset' must be such that the rows",
        ),
        (
            (x, w, groups),
            {"shared_input": make(3, 256)},
            "'shared_input' must be of dtype torch.bf",
        ),
        ((x, w, groups + 2), {}, "'group_list' must be such that the groups cover 6 rows"),
    ]:
        match = "npu_grouped_matmul_finalize_routing: argument " + text
        with pytest.raises(RuntimeError, match=match):
            torch_npu.npu_grouped_matmul_finalize_routing(*args, **{**good, **options})
    with pytest.raises(NotImplementedError, match="'offset' must be left at None"):
        torch_npu.npu_grouped_matmul_finalize_routing(x, w, groups, **good, offset=scale)
    with pytest.raises(NotImplementedError, match="'bias' must be left at None"):
        torch_npu.npu_grouped_matmul_finalize_routing(x, w, groups, **good, bias=scale)
