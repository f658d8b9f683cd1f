"""npu_quant_conv2d against sums over windows in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import HIFLOAT8, eights, hifloats
from tests.ops.support import make


def reference(
    x, w, scale, strides=(1, 1), pads=(0, 0), dilations=(1, 1), groups=1, fill=0, bias=None
):
    n, c, h, width = x.shape
    out, depth, kh, kw = w.shape
    padded = torch.full(
        (n, c, h + 2 * pads[0], width + 2 * pads[1]), float(fill), dtype=torch.float64
    )
    padded[:, :, pads[0] : pads[0] + h, pads[1] : pads[1] + width] = x
    rows = (padded.shape[2] - dilations[0] * (kh - 1) - 1) // strides[0] + 1
    columns = (padded.shape[3] - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    y = torch.zeros(n, out, rows, columns, dtype=torch.float64)
    for o in range(out):
        first = o // (out // groups) * depth
        for i in range(kh):
            for j in range(kw):
                top, left = i * dilations[0], j * dilations[1]
                window = padded[
                    :,
                    first : first + depth,
                    top : top + rows * strides[0] : strides[0],
                    left : left + columns * strides[1] : strides[1],
                ][:, :, :rows, :columns]
                y[:, o] += (window * w[o, :, i, j].view(1, -1, 1, 1)).sum(1)
    y = y if bias is None else y + bias.cpu().double().view(-1, 1, 1)
    return y * scale.cpu().double().view(-1, 1, 1)


def ints(*shape, seed=0):
    return make(*shape, dtype=torch.int8, low=-128, high=128, seed=seed)


def close(y, want, dtype):
    assert y.dtype == dtype and y.shape == want.shape
    eps = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 1e-6}[dtype]
    assert ((y.cpu().double() - want).abs() <= want.abs() * eps * 1.01 + 1e-5).all()


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": [2, 1], "pads": [1, 2]},
        {"dilations": [2, 1], "groups": 2, "pads": [1, 1], "offset_x": -7},
    ],
)
def test_int8(single, biased, options):
    groups = options.get("groups", 1)
    x, w = ints(2, 4, 7, 6), ints(6, 4 // groups, 3, 2, seed=1)
    scale = make(1 if single else 6, low=0, high=1e-3)
    bias = make(6, dtype=torch.int32, low=-9999, high=9999) if biased else None
    y = torch_npu.npu_quant_conv2d(x, w, scale, output_dtype=torch.float16, bias=bias, **options)
    plain = {k: v for k, v in options.items() if k != "offset_x"}
    fill = options.get("offset_x", 0)
    want = reference(x.cpu().double(), w.cpu().double(), scale, **plain, fill=fill, bias=bias)
    close(y, want, torch.float16)


def test_packed_scale_and_strides():
    x, w = ints(7, 6, 2, 4).permute(2, 3, 0, 1), ints(3, 4, 2, 2, seed=1)
    exact = (make(3, low=0.5, high=2).view(torch.int32) & ~0x1FFF).view(torch.float32) * 2.0**-10
    packed = torch_npu.npu_trans_quant_param(exact)
    y = torch_npu.npu_quant_conv2d(x, w, packed, output_dtype=torch.float16)
    close(y, reference(x.cpu().double(), w.cpu().double(), exact), torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_floats_on_ascend950(dtype):
    (x, a), (w, b) = eights(2, 4, 5, 5), eights(3, 4, 2, 2, seed=1)
    (hx, ha), (hw, hb) = hifloats(2, 4, 5, 5), hifloats(3, 4, 2, 2, seed=1)
    scale, bias = make(3, low=0, high=0.1), make(3)
    with on("A5"):
        y = torch_npu.npu_quant_conv2d(x, w, scale, output_dtype=dtype, bias=bias)
        z = torch_npu.npu_quant_conv2d(
            hx, hw, scale, output_dtype=dtype, input_dtype=HIFLOAT8, weight_dtype=HIFLOAT8
        )
        kinds = {"input_dtype": HIFLOAT8, "weight_dtype": HIFLOAT8, "round_mode": "round"}
        q = torch_npu.npu_quant_conv2d(hx, hw, scale, output_dtype=HIFLOAT8, **kinds)
        back = torch_npu.npu_dtype_cast(q, torch.float32, input_dtype=HIFLOAT8).cpu().double()
    close(y, reference(a, b, scale, bias=bias), dtype)
    close(z, reference(ha, hb, scale), dtype)
    want = reference(ha, hb, scale)
    assert ((back - want).abs() <= want.abs() / 4 + 2.0**-14).all()


def test_bad_arguments():
    x, w, scale = ints(1, 4, 5, 5), ints(6, 4, 3, 3), make(6)
    good = {"output_dtype": torch.float16}
    for args, options, text in [
        ((x.float(), w, scale), good, "'input' must be of dtype torch.int8"),
        ((x, w.int(), scale), good, "'weight' must be of the dtype of 'input'"),
        ((x[0], w, scale), good, "'input' must be a tensor of 4 dimensions"),
        ((x, w, scale), {}, "'output_dtype' must be given always"),
        ((x, w, scale), {"output_dtype": 15}, "'output_dtype' must be the type float16"),
        ((x, w, scale[:4]), good, r"'scale' must be of shape \(1,\) or \(6,\)"),
        ((x, w, scale), {**good, "groups": 3}, "'weight' must be of 4 / groups channels"),
        ((x, w, scale), {**good, "strides": [0, 1]}, "'strides' must be at least 1"),
        ((x, w, scale), {**good, "offset": scale}, "'offset' must be None"),
        ((x, w, scale), {**good, "bias": scale}, "'bias' must be of dtype torch.int32"),
        ((x[..., :2], w, scale), good, "'weight' must be small enough that W of the result"),
        (
            (x, w, scale),
            {**good, "input_dtype": 290},
            "'weight_dtype' must be given if and only if",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_quant_conv2d: argument " + text):
            torch_npu.npu_quant_conv2d(*args, **options)


def test_ascend950_refuses():
    x, w, scale = ints(1, 4, 5, 5), ints(6, 4, 3, 3), make(6)
    (e, _), (f, _) = eights(1, 4, 5, 5), eights(6, 4, 3, 3, seed=1)
    half = {"output_dtype": torch.float16}
    for args, options, text in [
        ((x, w, scale[:1]), half, r"'scale' must be of shape \(6,\)"),
        (
            (x, w, scale),
            {"output_dtype": torch.bfloat16},
            "'output_dtype' must be the type float16",
        ),
        ((e, f, scale), {"output_dtype": HIFLOAT8}, "'output_dtype' must be .*hifloat8"),
        ((e, f, scale), {**half, "offset_x": 1}, "'offset_x' must be 0 for 8-bit floats"),
        ((e, f, scale), {**half, "bias": scale.half()}, "'bias' must be of dtype torch.float32"),
    ]:
        with on("A5"), pytest.raises(RuntimeError, match="npu_quant_conv2d: argument " + text):
            torch_npu.npu_quant_conv2d(*args, **options)
