"""npu_all_gather_quant_mm and npu_quant_mm_reduce_scatter in a mirrored group, form by form, against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
BFLOAT16 = 15


def exact(x):
    return x.cpu().float().double()


def run(x1, x2, **options):
    """Both operators: what they return for the gathered and for the summed product."""
    gathered, kept, _ = torch_npu.npu_all_gather_quant_mm(x1, x2, NAME, 2, **options)
    part, _ = torch_npu.npu_quant_mm_reduce_scatter(x1, x2, NAME, 2, **options)
    assert kept.shape == (2 * x1.shape[0], x1.shape[1]) and kept.dtype == x1.dtype
    return gathered, part


def compare(got, scaled, dtype=torch.bfloat16):
    """`scaled` is the product of one rank: gathered it comes twice, scattered twice its first half."""
    gathered, part = got
    assert gathered.dtype == part.dtype == dtype
    twice, half = torch.cat([scaled, scaled]), 2 * scaled[: len(scaled) // 2]
    assert_accurate(gathered, twice, twice.to(dtype), slack=1e-5)
    assert_accurate(part, half, half.to(dtype), slack=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_plain(dtype):
    x1, x2 = make(4, 32, dtype=dtype), make(32, 6, dtype=dtype)
    compare(run(x1, x2), exact(x1) @ exact(x2), dtype)
    bias = make(6, dtype=dtype)
    compare(run(x1, x2, bias=bias), exact(x1) @ exact(x2) + exact(bias), dtype)


@pytest.mark.parametrize("rows", [True, False])
def test_int8(rows):
    x1 = make(4, 32, dtype=torch.int8, low=-9, high=9)
    x2 = make(32, 6, dtype=torch.int8, low=-9, high=9)
    s1, s2 = make(4, 1, low=0.1) if rows else None, make(1, 6, low=0.1)
    got = run(x1, x2, x1_scale=s1, x2_scale=s2, y_dtype=BFLOAT16, comm_mode="aiv")
    want = exact(x1) @ exact(x2) * exact(s2)
    compare(got, want * exact(s1) if rows else want)


@pytest.mark.parametrize("first", FLOAT8)
@pytest.mark.parametrize("second", FLOAT8)
def test_one_scale_a_matrix(first, second):
    x1, x2 = make(4, 32).to(first), make(32, 6).to(second)
    s1, s2 = make(1, low=0.5), make(1, low=0.5, seed=9)
    with on("A5"):
        got = run(x1, x2, x1_scale=s1, x2_scale=s2, y_dtype=BFLOAT16)
    compare(got, exact(x1) @ exact(x2) * exact(s1) * exact(s2))


def test_where_the_bias_goes():
    """Before the scale where x1 is gathered, after it where the product is summed."""
    x1, x2 = make(4, 32).to(FLOAT8[0]), make(32, 6).to(FLOAT8[0])
    s1, s2, bias = make(1, low=0.5), make(1, low=0.5, seed=9), make(6)
    with on("A5"):
        gathered, part = run(x1, x2, x1_scale=s1, x2_scale=s2, y_dtype=BFLOAT16, bias=bias)
    plain, scale = exact(x1) @ exact(x2), exact(s1) * exact(s2)
    want = (plain + exact(bias)) * scale
    assert_accurate(gathered[:4], want, want.bfloat16())
    want = 2 * (plain * scale + exact(bias))[:2]
    assert_accurate(part, want, want.bfloat16())


def test_blocks():
    x1, x2 = make(130, 200).to(FLOAT8[0]), make(200, 140).to(FLOAT8[1])
    s1, s2 = make(2, 2, low=0.5), make(2, 2, low=0.5, seed=9)
    with on("A5"):
        got = run(x1, x2, x1_scale=s1, x2_scale=s2, y_dtype=BFLOAT16, group_sizes=[128, 128, 128])
    left = exact(s1).repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :200]
    right = exact(s2).repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :140]
    compare(got, (exact(x1) * left) @ (exact(x2) * right))


@pytest.mark.parametrize("as_bytes", [True, False])
def test_microscaling(as_bytes):
    x1, x2 = make(4, 128).to(FLOAT8[0]), make(128, 6).to(FLOAT8[0])
    bytes1 = make(4, 2, 2, dtype=torch.uint8, low=124, high=130)
    bytes2 = make(2, 6, 2, dtype=torch.uint8, low=124, high=130)
    code = torch_npu.float8_e8m0fnu
    options = {
        "x1_scale": bytes1,
        "x2_scale": bytes2,
        "x1_scale_dtype": code,
        "x2_scale_dtype": code,
    }
    if not as_bytes:
        kind = torch.float8_e8m0fnu
        options = {"x1_scale": bytes1.view(kind), "x2_scale": bytes2.view(kind)}
    with on("A5"):
        got = run(x1, x2, y_dtype=BFLOAT16, group_sizes=[1, 1, 32], **options)
    left = torch.pow(2.0, exact(bytes1) - 127).flatten(1).repeat_interleave(32, 1)
    right = torch.pow(2.0, exact(bytes2) - 127).transpose(1, 2).flatten(0, 1)
    compare(got, (exact(x1) * left) @ (exact(x2) * right.repeat_interleave(32, 0)))


def test_without_the_gathered_rows():
    x1, x2 = make(4, 32).half(), make(32, 6).half()
    _, kept, largest = torch_npu.npu_all_gather_quant_mm(x1, x2, NAME, 2, gather_output=False)
    assert kept.numel() == largest.numel() == 0


@pytest.mark.parametrize(
    "options,message",
    [
        ({"y_dtype": None}, "'y_dtype' must be given where 'self' is neither float16"),
        ({"x2_scale": None}, "'x2_scale' must be given for quantized operands"),
        ({"gather_index": 1}, "'gather_index' must be left at 0"),
        ({"quant_scale": (1,)}, "'quant_scale' must be left at None"),
        ({"amax_output": True}, "'amax_output' must be left at False"),
        ({"x1_scale": (3, 1)}, r"'x1_scale' must be of shape \(4, 1\).*\(3, 1\)"),
        ({"group_sizes": [1, 1, 32]}, "'group_sizes' must be None"),
    ],
)
def test_refusals(options, message):
    given = {"x1_scale": make(4, 1), "x2_scale": make(1, 6), "y_dtype": BFLOAT16}
    for name, value in options.items():
        given[name] = make(*value) if isinstance(value, tuple) else value
    x1, x2 = make(4, 32, dtype=torch.int8, high=9), make(32, 6, dtype=torch.int8, high=9)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_all_gather_quant_mm(x1, x2, NAME, 2, **given)


@pytest.mark.family("A2")
def test_float8_elsewhere():
    x1, x2 = make(4, 32).to(FLOAT8[0]), make(32, 6).to(FLOAT8[0])
    with pytest.raises(RuntimeError, match="'self' must be float16, bfloat16 or int8 on this chip"):
        torch_npu.npu_all_gather_quant_mm(
            x1, x2, NAME, 2, x1_scale=make(1), x2_scale=make(1), y_dtype=BFLOAT16
        )
