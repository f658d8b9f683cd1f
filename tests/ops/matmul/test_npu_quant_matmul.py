"""npu_quant_matmul against int64 sums scaled in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.matmul._packing import HIFLOAT8, cut_scale, hifloat8, pack_int4, pack_scale, to_int8
from tests.ops.support import assert_accurate, make

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def integers(*shape, low=-128, high=128, seed=0):
    return make(*shape, dtype=torch.int8, low=low, high=high, seed=seed)


def on_device(tensor):
    return tensor.to(make(1).device)


def total(x1, x2):
    return torch.matmul(x1.cpu().long(), x2.cpu().long())


@pytest.mark.parametrize("k", [1, 7, 1024, 1025, 3000, 65535])
def test_sums_are_exact(k):
    x1, x2 = integers(3, k), integers(k, 5, seed=1)
    y = torch_npu.npu_quant_matmul(x1, x2, make(1), output_dtype=torch.int32)
    assert y.dtype == torch.int32
    assert torch.equal(y.cpu().long(), total(x1, x2))


@pytest.mark.parametrize("sign", [-128, 127])
def test_the_largest_sums_are_exact(sign):
    x1 = torch.full((2, 65535), -128, dtype=torch.int8)
    x2 = torch.full((65535, 2), sign, dtype=torch.int8)
    y = torch_npu.npu_quant_matmul(on_device(x1), on_device(x2), make(1), output_dtype=torch.int32)
    assert y.unique().tolist() == [-128 * sign * 65535]


@pytest.mark.parametrize(
    "left,right",
    [((4, 9), (9, 6)), ((2, 4, 9), (2, 9, 6)), ((1, 4, 9), (5, 9, 6)), ((4, 9), (2, 3, 9, 6))],
)
def test_batches_broadcast(left, right):
    x1, x2 = integers(*left), integers(*right, seed=2)
    y = torch_npu.npu_quant_matmul(x1, x2, make(6), output_dtype=BF16)
    want = total(x1, x2).double() * make(6).cpu().double()
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("size", [1, 16])
def test_int8_results(packed, with_offset, size):
    x1, x2 = integers(6, 40, low=-20, high=20), integers(40, 16, low=-20, high=20, seed=1)
    scale, offset = make(size, low=-0.2, high=0.2).cpu(), make(size, low=-99, high=99, seed=4).cpu()
    bias = make(16, dtype=torch.int32, low=-99, high=99)
    moved = offset if with_offset else None
    if packed:
        y = torch_npu.npu_quant_matmul(x1, x2, on_device(pack_scale(scale, moved)), bias=bias)
    else:
        given = on_device(offset) if with_offset else None
        y = torch_npu.npu_quant_matmul(x1, x2, on_device(scale), offset=given, bias=bias)
    want = (total(x1, x2) + bias.cpu()).double() * cut_scale(scale)
    want = want + offset.double().round() if with_offset else want
    assert y.dtype == torch.int8
    assert torch.equal(y.cpu(), to_int8(want))


def test_packed_scale_of_two_dimensions():
    x1, x2, scale = integers(2, 8), integers(8, 4, seed=1), torch.tensor([0.5, 0.25, 2.0, -1.0])
    y = torch_npu.npu_quant_matmul(x1, x2, on_device(pack_scale(scale)[None]))
    assert torch.equal(y.cpu(), to_int8(total(x1, x2).double() * scale))


def test_rounding_is_half_to_even_and_saturates():
    x1 = on_device(torch.tensor([[1], [3], [5], [-1], [-3], [127], [-128]], dtype=torch.int8))
    x2 = on_device(torch.tensor([[1, 100]], dtype=torch.int8))
    y = torch_npu.npu_quant_matmul(x1, x2, on_device(torch.tensor([0.5])))
    assert y.cpu()[:, 0].tolist() == [0, 2, 2, 0, -2, 64, -64]
    assert y.cpu()[5:, 1].tolist() == [127, -128]


@pytest.mark.parametrize("scale_kind", ["float32", "packed"])
def test_float16_results(scale_kind):
    x1, x2, scale = integers(6, 40), integers(40, 16, seed=1), make(16, low=-1e-3, high=1e-3)
    bias = make(16, dtype=torch.int32, low=-99, high=99)
    given = on_device(pack_scale(scale.cpu())) if scale_kind == "packed" else scale
    y = torch_npu.npu_quant_matmul(x1, x2, given, bias=bias, output_dtype=F16)
    want = (total(x1, x2) + bias.cpu()).double() * cut_scale(scale.cpu())
    assert y.dtype == F16
    assert_accurate(y, want, want.half())


@pytest.mark.parametrize("scale_dtype", [F32, BF16])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, BF16, F32])
@pytest.mark.parametrize("per_token", [False, True])
def test_bfloat16_results(scale_dtype, bias_dtype, per_token):
    x1, x2, scale = integers(6, 40), integers(40, 16, seed=1), make(16, dtype=scale_dtype)
    bias = make(16, dtype=bias_dtype, low=-99, high=99) if bias_dtype else None
    token = make(6, seed=8) if per_token else None
    y = torch_npu.npu_quant_matmul(
        x1, x2, scale, bias=bias, pertoken_scale=token, output_dtype=BF16
    )
    inside = bias.cpu() if bias_dtype == torch.int32 else 0
    want = (total(x1, x2) + inside).double() * scale.cpu().double()
    want = want * token.cpu().double()[:, None] if per_token else want
    if bias is not None and bias_dtype != torch.int32:
        want = want + bias.cpu().double()
    assert y.dtype == BF16
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("bias_dtype", [torch.int32, F16, F32])
def test_per_token_float16(bias_dtype):
    x1, x2 = integers(2, 6, 40, low=-9, high=9), integers(2, 40, 16, low=-9, high=9, seed=1)
    scale, token, bias = make(16), make(6, seed=8), make(16, dtype=bias_dtype, low=-9, high=9)
    y = torch_npu.npu_quant_matmul(x1, x2, scale, pertoken_scale=token, bias=bias, output_dtype=F16)
    inside = bias.cpu().long() if bias_dtype == torch.int32 else 0
    want = (total(x1, x2) + inside).double() * scale.cpu().double() * token.cpu().double()[:, None]
    want = want if bias_dtype == torch.int32 else want + bias.cpu().double()
    assert_accurate(y, want, want.half())


def test_bias_of_three_dimensions():
    x1, x2 = integers(1, 4, 8), integers(3, 8, 5, seed=1)
    bias = make(3, 1, 5, dtype=torch.int32, low=-99, high=99)
    y = torch_npu.npu_quant_matmul(x1, x2, make(1), bias=bias, output_dtype=torch.int32)
    assert torch.equal(y.cpu().long(), total(x1, x2) + bias.cpu())


@pytest.mark.parametrize("transposed", [False, True])
def test_int4(transposed):
    x1, x2 = integers(5, 32, low=-8, high=8).cpu(), integers(32, 16, low=-8, high=8, seed=1).cpu()
    words = pack_int4(x2.t().contiguous()).t() if transposed else pack_int4(x2)
    assert words.shape == ((4, 16) if transposed else (32, 2))
    scale, bias = make(16, low=-0.01, high=0.01), make(16, dtype=torch.int32, low=-9, high=9)
    given = on_device(pack_int4(x1)), on_device(words)
    y = torch_npu.npu_quant_matmul(
        *given, on_device(pack_scale(scale.cpu())), bias=bias, output_dtype=F16
    )
    want = (total(x1, x2) + bias.cpu()).double() * cut_scale(scale.cpu())
    assert_accurate(y, want, want.half())
    token = make(5)
    y = torch_npu.npu_quant_matmul(*given, scale, pertoken_scale=token, output_dtype=BF16)
    want = total(x1, x2).double() * scale.cpu().double() * token.cpu().double()[:, None]
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("sizes", [None, [0, 0, 256], [1, 1, 256]], ids=str)
def test_int4_by_groups(sizes):
    x1 = integers(5, 1024, low=-8, high=8).cpu()
    x2 = integers(1024, 256, low=-8, high=8, seed=1).cpu()
    scale, token = make(4, 256), make(5, 1, seed=7)
    offset = make(4, 256, dtype=F16, low=-8, high=8)
    y = torch_npu.npu_quant_matmul(
        on_device(pack_int4(x1)),
        on_device(pack_int4(x2.t().contiguous())).t(),
        scale,
        offset=offset,
        pertoken_scale=token,
        output_dtype=BF16,
        group_sizes=sizes,
    )
    want = torch.zeros(5, 256, dtype=torch.float64)
    for group in range(4):
        part = slice(256 * group, 256 * group + 256)
        weight = x2[part].double() - offset.cpu().double()[group]
        want += x1[:, part].double() @ weight * scale.cpu().double()[group]
    want *= token.cpu().double().reshape(5, 1)
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize(
    "dtype,bias_dtype", [(BF16, torch.int32), (BF16, BF16), (F16, F16), (F16, F32)]
)
def test_int4_with_scales_of_rows_and_a_bias(dtype, bias_dtype):
    x1 = integers(3, 32, low=-8, high=8).cpu()
    x2 = integers(32, 16, low=-8, high=8, seed=1).cpu()
    scale, token, bias = make(16), make(3), make(16, dtype=bias_dtype, low=-9, high=9)
    y = torch_npu.npu_quant_matmul(
        on_device(pack_int4(x1)), on_device(pack_int4(x2)), scale, pertoken_scale=token, bias=bias,
        output_dtype=dtype,
    )  # fmt: skip
    want, added = x1.double() @ x2.double(), bias.cpu().double()
    want = want + added if bias_dtype == torch.int32 else want
    want = want * scale.cpu().double() * token.cpu().double()[:, None]
    want = want if bias_dtype == torch.int32 else want + added
    assert_accurate(y, want, want.to(dtype))


def test_the_limit_is_of_the_contiguous_dimension():
    """A vocabulary of 70000 as the transpose of (N, K); with scales of rows, int8 has no limit."""
    x1, x2 = integers(2, 8), integers(70000, 8, seed=1).t()
    y = torch_npu.npu_quant_matmul(x1, x2, make(1), output_dtype=torch.int32)
    assert torch.equal(y.cpu().long(), total(x1, x2))
    scale, token = make(70000), make(2)
    y = torch_npu.npu_quant_matmul(
        x1, x2.contiguous(), scale, pertoken_scale=token, output_dtype=BF16
    )
    want = total(x1, x2).double() * scale.cpu().double() * token.cpu().double()[:, None]
    assert_accurate(y, want, want.bfloat16())


def test_mixed_form_with_a_scale_for_each_column():
    x1, x2 = integers(3, 64).cpu(), integers(64, 16, low=-8, high=8, seed=1).cpu()
    scale, token = make(16, low=0, high=1).cpu(), make(3, low=0, high=0.01)
    offset = (8 * x2.double().sum(0) * cut_scale(scale)).float()
    y = torch_npu.npu_quant_matmul(
        on_device(x1), on_device(pack_int4(x2)), on_device(pack_scale(scale)),
        offset=on_device(offset), pertoken_scale=token, output_dtype=BF16,
    )  # fmt: skip
    want = x1.double() @ x2.double() * cut_scale(scale) * token.cpu().double()[:, None]
    assert_accurate(y, want, want.bfloat16())


def test_mixed_form_leaves_eight_to_the_offset():
    x1, x2 = integers(3, 512).cpu(), integers(512, 16, low=-8, high=8, seed=1).cpu()
    scale, token = make(2, 16, low=0, high=1).cpu(), make(3, 1, low=0, high=0.01)
    words = pack_scale(scale.flatten()).reshape(2, 16)
    cut = cut_scale(scale)
    parts = [slice(0, 256), slice(256, 512)]
    offset = sum(8 * x2[p].double().sum(0) * cut[i] for i, p in enumerate(parts)).float()
    y = torch_npu.npu_quant_matmul(
        on_device(x1),
        on_device(pack_int4(x2)),
        on_device(words),
        offset=on_device(offset),
        pertoken_scale=token,
        output_dtype=F16,
        group_sizes=[0, 0, 256],
    )
    want = sum(x1[:, p].double() @ x2[p].double() * cut[i] for i, p in enumerate(parts))
    want = want * token.cpu().double()
    assert_accurate(y, want, want.half())


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("m,k,group_m", [(5, 300, 1), (200, 300, 128), (200, 100, 128)])
def test_8_bit_floats_by_blocks_on_950(batch, m, k, group_m):
    n, deep, tall = 200, -(-k // 128), -(-m // group_m)
    x1 = make(*batch, m, k).to(torch.float8_e4m3fn)
    x2 = make(*batch, k, n, seed=1).to(torch.float8_e4m3fn)
    scale, token = make(*batch, deep, 2), make(*batch, tall, deep)
    with as_chip("Ascend950"):
        y = torch_npu.npu_quant_matmul(
            x1, x2, scale, pertoken_scale=token, output_dtype=F32, group_sizes=[group_m, 128, 128]
        )
    row, depth, column = torch.arange(m) // group_m, torch.arange(k) // 128, torch.arange(n) // 128
    left = x1.cpu().double() * token.cpu().double()[..., row, :][..., depth]
    right = x2.cpu().double() * scale.cpu().double()[..., depth, :][..., column]
    want = left @ right
    assert_accurate(y, want, want.float())


def test_bfloat16_with_packed_scales_on_950():
    x1, x2, scale = integers(4, 8), integers(8, 6, seed=1), make(6).cpu()
    with as_chip("Ascend950"):
        y = torch_npu.npu_quant_matmul(x1, x2, on_device(pack_scale(scale)), output_dtype=BF16)
    want = total(x1, x2).double() * cut_scale(scale)
    assert_accurate(y, want, want.bfloat16())


def test_int8_by_blocks():
    m, k, n = 5, 300, 200
    x1, x2 = integers(m, k, low=-9, high=9), integers(k, n, low=-9, high=9, seed=1)
    scale, token = make(3, 2), make(m, 3)
    y = torch_npu.npu_quant_matmul(
        x1, x2, scale, pertoken_scale=token, output_dtype=BF16, group_sizes=[1, 128, 128]
    )
    want = torch.zeros(m, n, dtype=torch.float64)
    for i in range(0, k, 128):
        for j in range(0, n, 128):
            part = x1.cpu()[:, i : i + 128].double() @ x2.cpu()[i : i + 128, j : j + 128].double()
            factors = token.cpu()[:, i // 128].double() * scale.cpu()[i // 128, j // 128].double()
            want[:, j : j + 128] += part * factors[:, None]
    assert_accurate(y, want, want.bfloat16())


def test_transposed_and_empty_inputs():
    x1, x2 = integers(8, 4).t(), integers(6, 8, seed=1).t()
    y = torch_npu.npu_quant_matmul(x1, x2, make(1), output_dtype=torch.int32)
    assert torch.equal(y.cpu().long(), total(x1, x2))
    y = torch_npu.npu_quant_matmul(integers(0, 8), x2, make(6))
    assert y.shape == (0, 6) and y.dtype == torch.int8


@pytest.mark.parametrize("scale_kind", ["float32", "packed"])
def test_float8_on_950(scale_kind):
    x1, x2 = make(6, 40).to(torch.float8_e4m3fn), make(40, 16, seed=1).to(torch.float8_e5m2)
    scale = make(16)
    given = on_device(pack_scale(scale.cpu())) if scale_kind == "packed" else scale
    with as_chip("Ascend950"):
        y = torch_npu.npu_quant_matmul(x1, x2, given, output_dtype=F32)
    want = x1.cpu().double() @ x2.cpu().double() * cut_scale(scale.cpu())
    assert_accurate(y, want, want.float())


def test_native_int8_units_give_the_same(monkeypatch):
    from torch_npu.ops._shared import _gemm

    a, b = integers(20, 70).cpu(), integers(70, 24, seed=1).cpu()
    monkeypatch.setattr(_gemm, "_int8_instructions", lambda: True)
    assert torch.equal(_gemm.int_product(a, b).long(), a.long() @ b.long())


# --- what it refuses ------------------------------------------------------------------------------------


def call(x1=None, x2=None, scale=None, **options):
    x1 = integers(4, 8) if x1 is None else x1
    x2 = integers(8, 6) if x2 is None else x2
    return torch_npu.npu_quant_matmul(x1, x2, make(1) if scale is None else scale, **options)


REFUSED = [
    (
        lambda: {"x1": integers(2, 65536), "x2": integers(65536, 6)},
        "'x1' must be of at most 65535 in its contiguous dimension, but received 65536",
    ),
    (
        lambda: {"bias": make(6, dtype=BF16), "pertoken_scale": make(4), "output_dtype": F16},
        "'bias' must be of dtype .* for torch.float16 results, but received torch.bfloat16",
    ),
    (
        lambda: {
            "scale": make(1, 1),
            "pertoken_scale": make(4, 1),
            "output_dtype": BF16,
            "group_sizes": [1, 64, 128],
        },
        r"'group_sizes' must be of 1 or 128, 128 and 128, but received \[1, 64, 128\]",
    ),
    (lambda: {"x1": make(4, 8)}, "npu_quant_matmul: argument 'x1' must be of dtype .*float32"),
    (lambda: {"x2": integers(9, 6)}, "'x2' must be of K 8, as 'x1', but received 9"),
    (lambda: {"scale": make(5)}, r"'scale' must be of shape \(1,\) or \(6,\), but received \(5,\)"),
    (lambda: {"scale": make(1, dtype=F16)}, "'scale' must be of dtype .*float16"),
    (lambda: {"scale": make(1, dtype=BF16)}, "'scale' must be of dtype .* for torch.int8 results"),
    (lambda: {"output_dtype": torch.float64}, "'output_dtype' must be torch.int8, .*float64"),
    (lambda: {"offset": make(6), "output_dtype": BF16}, "'offset' must be None for torch.bfloat16"),
    (
        lambda: {"offset": make(4)},
        r"'offset' must be of shape \(1,\) or \(6,\), but received \(4,\)",
    ),
    (lambda: {"pertoken_scale": make(4)}, "'pertoken_scale' must be None for int8 and int32"),
    (
        lambda: {"pertoken_scale": make(3), "output_dtype": BF16},
        r"'pertoken_scale' must be of shape \(4,\), but received \(3,\)",
    ),
    (lambda: {"bias": make(6)}, "'bias' must be of dtype torch.int32 for torch.int8 results"),
    (
        lambda: {"bias": make(5, dtype=torch.int32, high=3)},
        r"'bias' must be of shape \(6,\), but received \(5,\)",
    ),
    (
        lambda: {"group_sizes": [1, 2]},
        r"'group_sizes' must be \[group_m, group_n, group_k\].*\[1, 2\]",
    ),
    (
        lambda: {"x1": integers(2, 4, 8), "x2": integers(3, 8, 6)},
        r"'x2' must be of batch dimensions that broadcast with \(2,\), but received \(3,\)",
    ),
]


@pytest.mark.family("A2")
@pytest.mark.parametrize("arguments,message", REFUSED, ids=range(len(REFUSED)))
def test_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        call(**arguments())


@pytest.mark.parametrize("name", ["scale_dtype", "pertoken_scale_dtype"])
def test_unsupported_codes(name):
    with pytest.raises(NotImplementedError, match=f"'{name}' must be None on this chip"):
        call(**{name: 293})


@pytest.mark.family("A2")
@pytest.mark.parametrize("name", ["x1_dtype", "x2_dtype"])
def test_codes_need_the_950(name):
    with pytest.raises(
        NotImplementedError, match=f"'{name}' must be None, or hifloat8 on Ascend950.*290"
    ):
        call(**{name: HIFLOAT8})
    with (
        as_chip("Ascend950"),
        pytest.raises(NotImplementedError, match=f"'{name}' .*float4_e2m1fn_x2"),
    ):
        call(**{name: 296})


def test_hifloat8_on_950():
    x1 = make(3, 64, dtype=torch.uint8, low=8, high=0x60)
    x2 = make(64, 5, dtype=torch.uint8, low=0x88, high=0xE0)
    scale, token = make(5), make(3)
    with as_chip("Ascend950"):
        y = torch_npu.npu_quant_matmul(
            x1,
            x2,
            scale,
            pertoken_scale=token,
            x1_dtype=HIFLOAT8,
            x2_dtype=HIFLOAT8,
            output_dtype=F32,
        )
    left, right = (
        torch.tensor([hifloat8(b) for b in t.cpu().flatten().tolist()]).reshape(t.shape).double()
        for t in (x1, x2)
    )
    want = left @ right * scale.cpu().double() * token.cpu().double()[:, None]
    assert_accurate(y, want, want.float(), slack=1e-6 * want.abs().max().item())


def int4s(*shape):
    return on_device(pack_int4(torch.zeros(*shape)))


GROUPS_REFUSED = [
    (lambda: {"offset": None}, "'offset' must be given where 'scale' has 2 dimensions"),
    (lambda: {"x1": int4s(2, 512), "x2": int4s(512, 256)}, "'x1' must be of a K that is a multiple of 1024.*512"),
    (lambda: {"x2": int4s(1024, 64)}, "'x2' must be of an N that is a multiple of 256 by groups.*64"),
    (lambda: {"group_sizes": [0, 0, 128]}, r"'group_sizes' must be of 256 depths.*\[0, 0, 128\]"),
    (lambda: {"pertoken_scale": make(2)}, r"'pertoken_scale' must be of shape \(2, 1\), but received \(2,\)"),
    (lambda: {"pertoken_scale": None}, "'pertoken_scale' must be given by groups"),
]  # fmt: skip


@pytest.mark.parametrize("arguments,message", GROUPS_REFUSED, ids=range(len(GROUPS_REFUSED)))
def test_int4_by_groups_refused(arguments, message):
    options = {
        "x1": int4s(2, 1024), "x2": int4s(1024, 256), "scale": make(4, 256), "pertoken_scale": make(2, 1),
        "offset": make(4, 256, dtype=F16), "output_dtype": BF16,
    } | arguments()  # fmt: skip
    with pytest.raises(RuntimeError, match=message):
        call(**options)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (lambda: {"offset": None}, "'offset' must be given for an int8 'x1' with an int4 'x2'"),
        (lambda: {"pertoken_scale": None}, "'pertoken_scale' must be given by groups"),
        (lambda: {"group_sizes": None}, r"'group_sizes' must be \[0, 0, 256\] for a scale of 2 dimensions.*None"),
        (lambda: {"bias": make(16)}, "'bias' must be None for an int8 'x1' with an int4 'x2'"),
    ],
    ids=range(4),
)  # fmt: skip
def test_mixed_form_refused(arguments, message):
    words = on_device(pack_scale(torch.ones(32)).reshape(2, 16))
    options = {
        "x1": integers(3, 512), "x2": int4s(512, 16), "scale": words, "offset": make(16), "output_dtype": F16,
        "pertoken_scale": make(3, 1), "group_sizes": [0, 0, 256],
    } | arguments()  # fmt: skip
    with pytest.raises(RuntimeError, match=message):
        call(**options)


def test_older_chip():
    with as_chip("Ascend310P3"):
        with pytest.raises(
            RuntimeError, match="'output_dtype' must be torch.int8 or torch.float16"
        ):
            call(output_dtype=BF16)
        with pytest.raises(RuntimeError, match=r"'scale' must be of shape \(6\)"):
            call(pertoken_scale=make(4), output_dtype=F16)
        with pytest.raises(RuntimeError, match="'bias' must be of dtype torch.int32"):
            call(
                scale=make(6),
                pertoken_scale=make(4),
                output_dtype=F16,
                bias=make(6, dtype=torch.float32),
            )


def test_older_chip_with_a_scale_for_each_row():
    x1, x2 = integers(4, 8), integers(8, 6)
    scale, rows = make(6, low=0.01, high=0.1), make(4, low=0.5, high=1.5)
    bias = integers(6).to(torch.int32)
    with as_chip("Ascend310P3"):
        y = torch_npu.npu_quant_matmul(
            x1, x2, scale, pertoken_scale=rows, bias=bias, output_dtype=F16
        )
    exact = x1.cpu().double() @ x2.cpu().double() + bias.cpu().double()
    want = exact * scale.cpu().double() * rows.cpu().double()[:, None]
    assert y.dtype == F16
    assert_accurate(y, want, want.half())


def test_910a_has_no_such_operator():
    """CANN's definition of the operator has no configuration for it."""
    with (
        as_chip("Ascend910A"),
        pytest.raises(NotImplementedError, match="'device' must be of the family A2"),
    ):
        call()
