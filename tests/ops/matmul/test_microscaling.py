"""The microscaling forms of Ascend950: npu_quant_matmul, npu_grouped_matmul, npu_weight_quant_batchmatmul."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import assert_accurate, make

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
#: float4_e2m1: the value of each code
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E1M2 = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


@pytest.fixture(autouse=True)
def ascend950():
    with as_chip("Ascend950"):
        yield


def byte_scale(*shape, seed=0):
    return make(*shape, dtype=torch.int32, low=122, high=132, seed=seed).cpu().to(torch.uint8)


def power(byte):
    return 2.0 ** (int(byte) - 127)


def scaled_rows(values, scale):
    """values (M, K) with scale (M, ceil(K / 64), 2), element by element."""
    out = values.double().clone()
    for m in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[m, k] *= power(scale[m, k // 64, k // 32 % 2])
    return out


def scaled_columns(values, scale):
    """values (K, N) with scale (ceil(K / 64), N, 2)."""
    return scaled_rows(values.mT, scale.permute(1, 0, 2)).mT


def nibbles(packed, table):
    """The values of bytes, the low half first, along the last dimension."""
    out = torch.zeros(*packed.shape[:-1], packed.shape[-1] * 2, dtype=torch.float64)
    for place in range(packed.shape[-1]):
        for half in range(2):
            for row in range(packed.shape[0]):
                code = int(packed[row, place]) >> (4 * half) & 15
                out[row, 2 * place + half] = table[code & 7] * (-1 if code & 8 else 1)
    return out


def multiply(x1, x2, scale, pertoken, dtype=torch.float32, **options):
    code = {} if scale.dtype == E8M0 else {
        "scale_dtype": torch_npu.float8_e8m0fnu, "pertoken_scale_dtype": torch_npu.float8_e8m0fnu
    }  # fmt: skip
    return torch_npu.npu_quant_matmul(
        x1, x2, scale, pertoken_scale=pertoken, output_dtype=dtype, **code, **options
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("typed", [False, True], ids=["bytes", "float8_e8m0fnu"])
@pytest.mark.parametrize("k", [32, 64, 100])
def test_float8(dtype, typed, k):
    blocks = -(-k // 64)
    x1, x2 = make(3, k, low=-5, high=5).to(E4M3), make(5, k, low=-5, high=5, seed=1).to(E5M2)
    left, right = byte_scale(3, blocks, 2), byte_scale(5, blocks, 2, seed=1)
    bias = make(5)
    as_type = (lambda t: t.view(E8M0)) if typed else (lambda t: t)
    y = multiply(
        x1, x2.mT, as_type(right.npu().transpose(0, 1)), as_type(left.npu()), dtype, bias=bias,
        group_sizes=[1, 1, 32],
    )  # fmt: skip
    a = scaled_rows(x1.cpu(), left)
    b = scaled_rows(x2.cpu(), right).mT
    want = a @ b + bias.cpu().double()
    plain = (a.float() @ b.float() + bias.cpu()).to(dtype)
    assert y.dtype == dtype
    assert_accurate(y, want, plain, slack=1e-5)


def test_float8_batches():
    x1, x2 = make(2, 3, 64).to(E4M3), make(2, 64, 4, seed=1).to(E4M3)
    left, right = byte_scale(2, 3, 1, 2), byte_scale(2, 1, 4, 2, seed=1)
    y = multiply(x1, x2, right.npu(), left.npu())
    pairs = zip(x1.cpu(), left, x2.cpu(), right, strict=True)
    want = torch.stack([scaled_rows(a, s) @ scaled_columns(b, t) for a, s, b, t in pairs])
    assert_accurate(y, want, want.float(), slack=1e-5)


@pytest.mark.parametrize("name,table", [("float4_e2m1fn_x2", E2M1), ("float4_e1m2fn_x2", E1M2)])
@pytest.mark.parametrize("lying", [False, True])
def test_float4(name, table, lying):
    code = getattr(torch_npu, name)
    x1 = make(3, 32, dtype=torch.int32, low=0, high=256).cpu().to(torch.uint8)
    stored = (6, 32) if lying else (64, 3)
    x2 = make(*stored, dtype=torch.int32, low=0, high=256, seed=1).cpu().to(torch.uint8)
    left, right = byte_scale(3, 1, 2), byte_scale(1, 6, 2, seed=1)
    y = multiply(
        x1.npu(), x2.npu().mT if lying else x2.npu(), right.npu(), left.npu(), x1_dtype=code, x2_dtype=code
    )  # fmt: skip
    b = nibbles(x2, table).mT if lying else nibbles(x2, table)
    want = scaled_rows(nibbles(x1, table), left) @ scaled_columns(b, right)
    assert y.shape == (3, 6)
    assert_accurate(y, want, want.float(), slack=1e-4)


def test_a_scale_byte_of_255_is_not_a_number():
    scale, pertoken = byte_scale(1, 2, 2), byte_scale(2, 1, 2)
    scale[0, 1, 0] = 255
    ones = torch.ones(2, 32, device="npu").to(E4M3)
    y = multiply(ones, ones.mT, scale.npu(), pertoken.npu())
    assert y[:, 1].isnan().all() and y[:, 0].isfinite().all()


@pytest.mark.parametrize("counts", [[2, 0, 4], [0, 6, 0], [1, 2, 1]], ids=str)
def test_grouped_float8(counts):
    x, weight = make(6, 96).to(E4M3), make(3, 96, 4, seed=1).to(E4M3)
    left, right = byte_scale(6, 2, 2), byte_scale(3, 2, 4, 2, seed=1)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], scale=[right.npu()], per_token_scale=[left.npu()], split_item=3, group_type=0,
        group_list=torch.tensor(counts).npu(), group_list_type=1, tuning_config=[3], output_dtype=torch.bfloat16,
        scale_dtype=torch_npu.float8_e8m0fnu, per_token_scale_dtype=torch_npu.float8_e8m0fnu,
    )  # fmt: skip
    rows, want, start = scaled_rows(x.cpu(), left), torch.zeros(6, 4, dtype=torch.float64), 0
    for expert, count in enumerate(counts):
        part = slice(start, start + count)
        columns = scaled_columns(weight[expert].cpu(), right[expert])
        want[part] = rows[part] @ columns
        start += count
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("counts", [[70, 30], [0, 100], [64, 36]], ids=str)
def test_grouped_depths(counts):
    """The gradient of the weights: what npu_grouped_dynamic_mx_quant makes of both, multiplied over the tokens."""
    ends = torch.tensor(counts).cumsum(0)
    (x, x_scale), (grad, grad_scale) = (
        torch_npu.npu_grouped_dynamic_mx_quant(
            make(100, width, dtype=torch.bfloat16, seed=width), ends.int().npu(), dst_type=E4M3
        )
        for width in (4, 6)
    )
    (y,) = torch_npu.npu_grouped_matmul(
        [x.t()], [grad], scale=[grad_scale], per_token_scale=[x_scale.transpose(0, 1)], group_type=2, split_item=3,
        group_list=ends.npu(), output_dtype=torch.float32, scale_dtype=torch_npu.float8_e8m0fnu,
        per_token_scale_dtype=torch_npu.float8_e8m0fnu,
    )  # fmt: skip
    want, start = torch.zeros(2, 4, 6, dtype=torch.float64), 0
    left, right = x_scale.view(torch.uint8).cpu(), grad_scale.view(torch.uint8).cpu()
    for group, count in enumerate(counts):
        for depth in range(count):
            slot, half = start // 64 + group + depth // 64, depth // 32 % 2
            for m in range(4):
                for n in range(6):
                    factor = power(left[slot, m, half]) * power(right[slot, n, half])
                    a, b = x[start + depth, m].float().item(), grad[start + depth, n].float().item()
                    want[group, m, n] += a * b * factor
        start += count
    assert_accurate(y, want, want.float())


def test_grouped_float8_refuses_a_bias():
    x, weight = make(6, 64).to(E4M3), make(1, 64, 4, seed=1).to(E4M3)
    with pytest.raises(RuntimeError, match="'bias' must be None for 8-bit floats"):
        torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[byte_scale(1, 1, 4, 2).npu()], per_token_scale=[byte_scale(6, 1, 2).npu()],
            bias=[make(1, 4)], split_item=3, group_type=0, group_list=torch.tensor([6]).npu(),
            output_dtype=torch.float32, scale_dtype=torch_npu.float8_e8m0fnu,
            per_token_scale_dtype=torch_npu.float8_e8m0fnu,
        )  # fmt: skip


def test_grouped_float4():
    x = make(4, 16, dtype=torch.int32, low=0, high=256).cpu().to(torch.uint8)
    weight = make(2, 32, 3, dtype=torch.int32, low=0, high=256, seed=1).cpu().to(torch.uint8)
    left, right = byte_scale(4, 1, 2), byte_scale(2, 1, 6, 2, seed=1)
    code = {f"{n}_dtype": torch_npu.float4_e2m1fn_x2 for n in ("x", "weight")}
    code |= {f"{n}_dtype": torch_npu.float8_e8m0fnu for n in ("scale", "per_token_scale")}
    (y,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], scale=[right.npu()], per_token_scale=[left.npu()], split_item=2, group_type=0,
        group_list=torch.tensor([1, 4]).npu(), output_dtype=torch.float32, **code,
    )  # fmt: skip
    rows = scaled_rows(nibbles(x, E2M1), left)
    parts = [
        part @ scaled_columns(nibbles(weight[e], E2M1), right[e])
        for e, part in enumerate(rows.split([1, 3]))
    ]
    want = torch.cat(parts)
    assert_accurate(y, want, want.float(), slack=1e-4)


def test_grouped_float8_with_a_float4_weight():
    """The scale of the narrower weight comes as antiquant_scale; the weight is packed along K."""
    x = make(4, 64).to(E4M3)
    weight = make(2, 6, 32, dtype=torch.int32, low=0, high=256).cpu().to(torch.uint8)
    left, right = byte_scale(4, 1, 2), byte_scale(2, 6, 1, 2, seed=1)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight.npu().mT], antiquant_scale=[right.npu().transpose(1, 2)], per_token_scale=[left.npu()],
        split_item=3, group_type=0, group_list=torch.tensor([3, 1]).npu(), group_list_type=1,
        output_dtype=torch.float32, weight_dtype=torch_npu.float4_e2m1fn_x2,
        per_token_scale_dtype=torch_npu.float8_e8m0fnu,
    )  # fmt: skip
    rows = scaled_rows(x.cpu(), left).split([3, 1])
    want = torch.cat(
        [part @ scaled_rows(nibbles(weight[e], E2M1), right[e]).mT for e, part in enumerate(rows)]
    )
    assert_accurate(y, want, want.float(), slack=1e-4)


@pytest.mark.parametrize("lying", [False, True])
def test_a_float4_weight(lying):
    """float32 values of float4_e2m1, packed by npu_convert_weight_to_int4pack."""
    codes = make(64, 16, dtype=torch.int32, low=0, high=16).cpu()
    table = torch.tensor(E2M1 + [-v for v in E2M1])
    weight = table[codes.long()]
    stored = weight.mT.contiguous() if lying else weight
    packed = torch_npu.npu_convert_weight_to_int4pack(stored.npu())
    x, scale = make(3, 64, dtype=torch.float16), byte_scale(2, 16)
    y = torch_npu.npu_weight_quant_batchmatmul(
        x, packed.mT if lying else packed, scale.npu(), antiquant_group_size=32
    )
    powers = torch.tensor([[power(b) for b in row] for row in scale.tolist()]).double()
    want = x.cpu().double() @ (weight.double() * powers.repeat_interleave(32, 0))
    assert y.dtype == torch.float16
    assert_accurate(y, want, want.half())


def test_refusals():
    x1, x2 = make(3, 64).to(E4M3), make(64, 4).to(E4M3)
    left, right = byte_scale(3, 1, 2).npu(), byte_scale(1, 4, 2).npu()
    with pytest.raises(RuntimeError, match=r"'scale' must be of shape \(1, 4, 2\).*\(4, 2\)"):
        multiply(x1, x2, right[0], left)
    with pytest.raises(RuntimeError, match=r"'pertoken_scale' must be of shape \(3, 1, 2\)"):
        multiply(x1, x2, right, left[:2])
    with pytest.raises(RuntimeError, match="'pertoken_scale' must be given in the microscaling"):
        multiply(x1, x2, right, None)
    with pytest.raises(RuntimeError, match="'output_dtype' must be .*int8"):
        multiply(x1, x2, right, left, torch.int8)
    with pytest.raises(RuntimeError, match="'x2' must be of K 64"):
        multiply(x1, x2[:32], right, left)
    with pytest.raises(RuntimeError, match="'group_sizes' must be None or"):
        multiply(x1, x2, right, left, group_sizes=[1, 1, 64])


@as_chip("Ascend910B3")
def test_other_chips_refuse():
    ones = torch.ones(2, 32, device="npu").to(E4M3)
    scale, pertoken = byte_scale(1, 2, 2).npu(), byte_scale(2, 1, 2).npu()
    with pytest.raises(RuntimeError, match="'scale_dtype' must be None on this chip"):
        multiply(ones, ones.mT, scale, pertoken)
