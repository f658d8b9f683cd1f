"""npu_weight_quant_batchmatmul against restored weights in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.matmul._packing import HIFLOAT8, cut_scale, hifloat8, pack_int4, pack_scale, to_int8
from tests.ops.support import assert_accurate, make

F16, BF16 = torch.float16, torch.bfloat16


def on_device(tensor):
    return tensor.to(make(1).device)


def at_row(values, row, kind):
    return values.cpu().to(kind)[row] if values.dim() == 2 else values.cpu().to(kind)


def reference(x, weight, scale, offset=None, bias=None, group=0, kind=torch.float64):
    """Row by row of the weight, from the page's formula; `kind` is the precision of the restored weight."""
    restored = weight.cpu().to(kind).clone()
    for row in range(weight.shape[-2]):
        at = row // group if group else 0
        moved = restored[..., row, :] + (0 if offset is None else at_row(offset, at, kind))
        restored[..., row, :] = moved * at_row(scale, at, kind)
    y = x.cpu().double() @ restored.double()
    return y if bias is None else y + bias.cpu().double()


@pytest.mark.family("A2")
def test_bfloat16_bias_on_950():
    x, weight = make(5, 33, dtype=BF16), make(33, 24, dtype=torch.int8, low=-128, high=128)
    scale, bias = make(24, dtype=BF16, low=0.01, high=0.1), make(24, dtype=BF16)
    with as_chip("Ascend950"):
        y = torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, bias=bias)
    want = reference(x, weight, scale, None, bias)
    assert_accurate(y, want, reference(x, weight, scale, None, bias, kind=BF16).to(BF16))
    with pytest.raises(RuntimeError, match="'bias' must be of dtype torch.float32.*bfloat16"):
        torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, bias=bias)


def test_wide_weight_on_950():
    x, weight = make(1, 2, dtype=F16), make(2, 65536, dtype=torch.int8, low=-9, high=9)
    scale = make(1, dtype=F16, low=0.01, high=0.1)
    with as_chip("Ascend950"):
        y = torch_npu.npu_weight_quant_batchmatmul(x, weight, scale)
    want = reference(x, weight, scale)
    assert_accurate(y, want, reference(x, weight, scale, kind=F16).half())
    words = r"'weight' must be of K and N up to 65535.*65536"
    with as_chip("Ascend910B3"), pytest.raises(RuntimeError, match=words):
        torch_npu.npu_weight_quant_batchmatmul(x, weight, scale)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("scale_shape", [(1,), (1, 1), (24,), (1, 24)])
@pytest.mark.parametrize("options", ["", "offset", "offset bias"])
def test_int8_weight(dtype, scale_shape, options):
    x, weight = make(5, 33, dtype=dtype), make(33, 24, dtype=torch.int8, low=-128, high=128)
    scale = make(*scale_shape, dtype=dtype, low=0.01, high=0.1)
    offset = make(*scale_shape, dtype=dtype, low=-9, high=9) if "offset" in options else None
    bias = make(24, dtype=torch.float32 if dtype == BF16 else F16) if "bias" in options else None
    y = torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, offset, bias=bias)
    want = reference(x, weight, scale, offset, bias)
    assert y.dtype == dtype
    assert_accurate(y, want, reference(x, weight, scale, offset, bias, kind=dtype).to(dtype))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("group", [0, 32, 64])
def test_int4_weight(transposed, group):
    values = make(96, 16, dtype=torch.int8, low=-8, high=8).cpu()
    words = pack_int4(values.t().contiguous()).t() if transposed else pack_int4(values)
    rows = -(-96 // group) if group else 1
    x, scale = make(4, 96, dtype=BF16), make(rows, 16, dtype=BF16)
    offset = make(rows, 16, dtype=BF16, low=-8, high=8, seed=3)
    y = torch_npu.npu_weight_quant_batchmatmul(
        x, on_device(words), scale, offset, antiquant_group_size=group, inner_precise=1
    )
    want = reference(x, values, scale, offset, group=group)
    assert_accurate(y, want, reference(x, values, scale, offset, group=group, kind=BF16).bfloat16())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(1,), (16,), (1, 16)])
def test_quantized_result(packed, shape):
    # small powers of two: every step is exact, so int8 is too
    x = make(6, 8, dtype=torch.int8, low=-4, high=5).to(F16)
    weight, scale = make(8, 16, dtype=torch.int8, low=-8, high=8), torch.full((16,), 0.5, dtype=F16)
    quant_scale, quant_offset = (
        make(*shape, low=-3, high=3).cpu(),
        make(*shape, low=-30, high=30).cpu(),
    )
    if packed:
        words = pack_scale(quant_scale.flatten(), quant_offset.flatten()).reshape(shape)
        given = on_device(words), None
    else:
        given = on_device(quant_scale), on_device(quant_offset)
    y = torch_npu.npu_weight_quant_batchmatmul(
        x, weight, on_device(scale), quant_scale=given[0], quant_offset=given[1]
    )
    want = reference(x, weight, scale) * cut_scale(quant_scale) + quant_offset.double().round()
    assert y.dtype == torch.int8
    assert torch.equal(y.cpu(), to_int8(want))


def test_packed_antiquant_scale():
    x, weight = make(7, 64, dtype=F16), make(128, 64, dtype=torch.int8, low=-8, high=8).t()
    scale, offset = make(128), make(1, 128, dtype=torch.int32, low=-128, high=127)
    words = on_device(pack_scale(scale.cpu())).reshape(128, 1).t()
    y = torch_npu.npu_weight_quant_batchmatmul(x, weight, words, offset)
    want = reference(x, weight, cut_scale(scale.cpu()), offset[0])
    assert_accurate(y, want, want.half())


def test_batches_and_transposed_x():
    x = make(3, 8, 5, dtype=F16).mT
    weight, scale = make(3, 8, 6, dtype=torch.int8, low=-9, high=9), make(6, dtype=F16)
    y = torch_npu.npu_weight_quant_batchmatmul(x, weight, scale)
    want = reference(x, weight, scale)
    assert_accurate(y, want, reference(x, weight, scale, kind=F16).half())


def test_hifloat8_weight_on_950():
    x, scale = make(5, 256, dtype=F16), make(1, 4, dtype=F16)
    weight = on_device(torch.arange(256, dtype=torch.uint8).repeat(4, 1).t().contiguous())
    weight[0x80] = weight[0x6F] = weight[0xEF] = 0  # NaN and the infinities
    with as_chip("Ascend950"):
        y = torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, weight_dtype=HIFLOAT8)
    values = torch.tensor([hifloat8(b) for b in weight.cpu()[:, 0].tolist()], dtype=torch.float64)
    want = x.cpu().double() @ values[:, None] * scale.cpu().double()
    plain = (x.cpu().double() @ (values[:, None].half() * scale.cpu()).double()).half()
    assert_accurate(y, want, plain)


# --- what it refuses ------------------------------------------------------------------------------------


def call(**changes):
    arguments = {
        "x": make(4, 64, dtype=F16),
        "weight": make(64, 16, dtype=torch.int8, low=-8, high=8),
        "antiquant_scale": make(16, dtype=F16),
    }
    return torch_npu.npu_weight_quant_batchmatmul(**arguments | changes)


REFUSED = [
    (
        lambda: {"x": make(4, 64)},
        "npu_weight_quant_batchmatmul: argument 'x' must be of dtype .*float32",
    ),
    (lambda: {"x": make(4, 60, dtype=F16)}, "'weight' must be of K 60, as 'x', but received 64"),
    (
        lambda: {"antiquant_scale": make(15, dtype=F16)},
        r"'antiquant_scale' must be of shape .*\(15,\)",
    ),
    (
        lambda: {"antiquant_scale": make(16, dtype=BF16)},
        "'antiquant_scale' must be of the dtype of 'x'",
    ),
    (lambda: {"antiquant_offset": make(1, 16, dtype=F16)}, "'antiquant_offset' must be of shape"),
    (
        lambda: {"antiquant_group_size": 48},
        r"'antiquant_group_size' must be 0 or a multiple of 32.*48",
    ),
    (lambda: {"antiquant_group_size": 64}, r"'antiquant_group_size' must be .*K - 1 \(63\).*64"),
    (lambda: {"inner_precise": 2}, "'inner_precise' must be 0 or 1, but received 2"),
    (lambda: {"quant_offset": make(16)}, "'quant_offset' must be None without 'quant_scale'"),
    (lambda: {"quant_scale": make(5)}, r"'quant_scale' must be of shape .*\(5,\)"),
    (lambda: {"bias": make(16)}, "'bias' must be of dtype torch.float16.*float32"),
    (lambda: {"x": make(0, 64, dtype=F16)}, r"'x' must be not empty, but received \(0, 64\)"),
    (
        lambda: {"antiquant_scale": torch.ones(16, dtype=torch.int64).to(make(1).device)},
        "'weight' must be int8 and transposed with an int64 'antiquant_scale'",
    ),
]


@pytest.mark.parametrize("arguments,message", REFUSED, ids=range(len(REFUSED)))
def test_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        call(**arguments())


@pytest.mark.family("A2")
def test_unsupported_weight_dtype():
    with pytest.raises(
        NotImplementedError, match="'weight_dtype' must be None, or hifloat8 .*hifloat8"
    ):
        call(weight_dtype=HIFLOAT8)
    with (
        as_chip("Ascend950"),
        pytest.raises(RuntimeError, match="'antiquant_group_size' must be 32 for 4-bit floats"),
    ):
        call(weight_dtype=296)


def test_older_chip():
    with as_chip("Ascend310P3"):
        with pytest.raises(RuntimeError, match="'x' must be of dtype torch.float16, .*bfloat16"):
            call(x=make(4, 64, dtype=BF16))
        with pytest.raises(RuntimeError, match="'quant_scale' must be None on this chip"):
            call(quant_scale=make(16))
