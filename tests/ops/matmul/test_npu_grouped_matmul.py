"""npu_grouped_matmul, both overloads, against a loop over groups in fp64 and int64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.matmul._packing import cut_scale, pack_int4, pack_scale, to_int8
from tests.ops.support import assert_accurate, make

F16, BF16, F32, I8, I32 = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32


def on_device(tensor):
    return tensor.to(make(1).device)


def longs(values):
    return on_device(torch.tensor(values, dtype=torch.int64))


def ends(counts):
    return [sum(counts[: i + 1]) for i in range(len(counts))]


def group_list(counts, kind):
    """The counts in each notation, as keyword arguments."""
    if kind == 0:
        return {"group_list": longs(ends(counts)), "group_list_type": 0}
    if kind == 1:
        return {"group_list": longs(counts), "group_list_type": 1}
    return {"group_list": longs([[i, c] for i, c in enumerate(counts)]), "group_list_type": 2}


def rows(x, counts):
    return x.cpu().split(counts)


def loop(x, weight, counts, bias=None):
    """Each group's rows times its weight in fp64, in one tensor."""
    parts = []
    for i, part in enumerate(rows(x, counts)):
        y = part.double() @ weight[i].cpu().double()
        parts.append(y if bias is None else y + bias[i].cpu().double())
    return torch.cat(parts)


COUNTS = [[2, 3, 4], [0, 9, 0], [9, 0, 0], [0, 0, 9], [4, 0, 5], [1, 1, 7]]


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("kind", [0, 1])
def test_rows_of_one_x(dtype, counts, kind):
    x, weight = make(9, 33, dtype=dtype), make(3, 33, 7, dtype=dtype)
    bias = make(3, 7, dtype=F32 if dtype == BF16 else dtype)
    options = group_list(counts, kind) | {"split_item": 3, "group_type": 0}
    want = loop(x, weight, counts, bias)
    (y,) = torch_npu.npu_grouped_matmul([x], [weight], bias=[bias], **options)
    assert y.dtype == dtype and y.is_contiguous()
    assert_accurate(y, want, want.to(dtype))
    (y,) = torch_npu.npu_grouped_matmul([x], list(weight), bias=list(bias), **options)
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_transposed_weights_and_strided_x(dtype):
    x = make(12, 6, dtype=dtype).t()[:, ::2]
    weight = make(2, 5, 6, dtype=dtype).mT
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=longs([2, 6]), split_item=2, group_type=0
    )
    want = loop(x, weight, [2, 4])
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("with_list", [False, True])
def test_many_x_into_one_result(with_list):
    x, weight = [make(2, 5), make(0, 4), make(3, 6)], [make(5, 7), make(4, 7), make(6, 7)]
    given = {"group_list": longs([2, 2, 5])} if with_list else {}
    (y,) = torch_npu.npu_grouped_matmul(x, weight, split_item=2, group_type=0, **given)
    want = torch.cat([a.cpu().double() @ b.cpu().double() for a, b in zip(x, weight, strict=True)])
    assert_accurate(y, want, want.float())


@pytest.mark.parametrize("split_item", [0, 1])
def test_separate_products(split_item):
    shapes = [(2, 3, 5), (4, 6), (1, 2, 1, 5)]
    x = [make(*shape, dtype=F16) for shape in shapes]
    weight = [make(5, 4, dtype=F16), make(6, 3, dtype=F16), make(5, 1, dtype=F16)]
    bias = [make(n, dtype=F16) for n in (4, 3, 1)]
    results = torch_npu.npu_grouped_matmul(
        x, weight, bias=bias, split_item=split_item, group_type=-1
    )
    assert len(results) == 3
    for y, a, w, b in zip(results, x, weight, bias, strict=True):
        want = a.cpu().double() @ w.cpu().double() + b.cpu().double()
        assert y.shape == want.shape
        assert_accurate(y, want, want.half())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("counts", [[3, 4, 2], [0, 9, 0], [9, 0, 0]], ids=str)
def test_groups_of_depth(dtype, counts):
    x, weight = make(9, 4, dtype=dtype).t(), make(9, 5, dtype=dtype)
    want, start = [], 0
    for count in counts:
        part = slice(start, start + count)
        want.append(x.cpu()[:, part].double() @ weight.cpu()[part].double())
        start += count
    want = torch.stack(want)
    for kind in (0, 1):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], split_item=3, group_type=2, **group_list(counts, kind)
        )
        assert y.shape == (3, 4, 5)
        assert_accurate(y, want, want.to(dtype))
    results = torch_npu.npu_grouped_matmul(
        [x], list(weight.split(counts)), split_item=0, group_type=2, **group_list(counts, 1)
    )
    assert len(results) == 3
    for y, exact in zip(results, want, strict=True):
        assert_accurate(y, exact, exact.to(dtype))


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("separate", [False, True], ids=["one weight", "weights"])
@pytest.mark.parametrize("kind", [0, 1])
def test_rows_behind_the_last_group_are_padding(dtype, separate, kind):
    """A batch of tokens that is larger than what its experts get: the rest is zero."""
    x, weight, counts = make(9, 8, dtype=dtype), make(3, 8, 4, dtype=dtype), [2, 0, 4]
    weights = list(weight.unbind()) if separate else [weight]
    x[6:] = float("nan")  # padding is never read
    (y,) = torch_npu.npu_grouped_matmul(
        [x], weights, split_item=2, group_type=0, **group_list(counts, kind)
    )
    host, experts = x.cpu().double(), weight.cpu().double()
    want = torch.cat([host[:2] @ experts[0], host[2:6] @ experts[2], torch.zeros(3, 4).double()])
    assert_accurate(y, want, want.to(dtype))


def quantized(x, weight, counts, bias=None):
    parts = []
    for i, part in enumerate(rows(x, counts)):
        total = part.long() @ weight[i].cpu().long()
        parts.append(total if bias is None else total + bias[i].cpu())
    return torch.cat(parts)


def int8(*shape, seed=0, low=-128):
    return make(*shape, dtype=I8, low=low, high=-low, seed=seed)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_int8_sums_are_exact(kind, counts):
    x, weight = int8(9, 1500), int8(3, 1500, 6, seed=1)
    bias = make(3, 6, dtype=I32, low=-99, high=99)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], bias=[bias], split_item=2, group_type=0, output_dtype=I32,
        **group_list(counts, kind),
    )  # fmt: skip
    assert torch.equal(y.cpu().long(), quantized(x, weight, counts, bias))


def test_pairs_name_their_groups():
    x, weight = int8(9, 20), int8(4, 20, 6, seed=1)
    listed = [[2, 5], [0, 4], [3, 0], [1, 0]]
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], split_item=2, group_type=0, output_dtype=I32, tuning_config=[5],
        group_list=longs(listed), group_list_type=2,
    )  # fmt: skip
    want = torch.cat(
        [x.cpu().long()[:5] @ weight.cpu().long()[2], x.cpu().long()[5:] @ weight.cpu().long()[0]]
    )
    assert torch.equal(y.cpu().long(), want)


@pytest.mark.parametrize("separate", [False, True])
def test_int8_results(separate):
    x, weight, counts = int8(9, 40, low=-20), int8(3, 40, 8, low=-20, seed=1), [4, 0, 5]
    scale = make(3, 8, low=-0.3, high=0.3).cpu()
    words = pack_scale(scale.flatten(), [7] * 24).reshape(3, 8)
    bias = make(3, 8, dtype=I32, low=-99, high=99)
    if separate:
        given = {"scale": [on_device(w) for w in words], "bias": list(bias)}
        (y,) = torch_npu.npu_grouped_matmul(
            [x], list(weight), group_list=longs([4, 4, 9]), split_item=3, group_type=0, **given
        )
    else:
        given = {"scale": [on_device(words)], "bias": [bias]}
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], group_list=longs([4, 4, 9]), split_item=3, group_type=0, **given
        )
    total = quantized(x, weight, counts, bias).double()
    factors = torch.cat([cut_scale(scale)[i].expand(c, 8) for i, c in enumerate(counts)])
    assert y.dtype == I8
    assert torch.equal(y.cpu(), to_int8(total * factors + 7))


ACTIVATIONS = {
    0: lambda x: x,
    1: lambda x: x.clamp(min=0),
    2: lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    4: lambda x: x / (1 + torch.exp(-1.702 * x)),
    5: lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("act_type", ACTIVATIONS)
@pytest.mark.parametrize("dtype,scale_dtype", [(BF16, BF16), (F16, F32)])
@pytest.mark.parametrize("bias_dtype", [None, I32, BF16])
def test_per_token_and_activations(act_type, dtype, scale_dtype, bias_dtype):
    if (dtype, bias_dtype) == (F16, BF16):
        return  # refused, below
    x, weight, counts = int8(9, 20, low=-9), int8(3, 20, 8, low=-9, seed=1), [4, 5, 0]
    scale, token = make(3, 8, dtype=scale_dtype, low=0, high=0.1), make(9, low=0, high=0.1)
    bias = make(3, 8, dtype=bias_dtype, low=-9, high=9) if bias_dtype else None
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], scale=[scale], per_token_scale=[token], bias=[bias] if bias_dtype else None,
        split_item=3, group_type=0, act_type=act_type, output_dtype=dtype, **group_list(counts, 1),
    )  # fmt: skip
    of_row = torch.tensor([0] * 4 + [1] * 5)
    total = quantized(x, weight, counts, bias if bias_dtype == I32 else None).double()
    want = total * scale.cpu().double()[of_row] * token.cpu().double()[:, None]
    want = want + bias.cpu().double()[of_row] if bias_dtype == BF16 else want
    want = ACTIVATIONS[act_type](want)
    assert y.dtype == dtype
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("shape", [(3, 8), (3, 1), (3,)])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_scales_by_column_and_by_group_on_950(shape, dtype):
    x, weight, counts = int8(9, 20, low=-9), int8(3, 20, 8, low=-9, seed=1), [4, 1, 4]
    scale, bias = make(*shape, low=0, high=0.1), make(3, 8)
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], scale=[scale], bias=[bias], split_item=3, group_type=0,
            output_dtype=dtype, act_type=1, **group_list(counts, 1),
        )  # fmt: skip
    of_row = torch.tensor([0] * 4 + [1] + [2] * 4)
    want = quantized(x, weight, counts).double() * scale.cpu().double().reshape(3, -1)[of_row]
    want = (want + bias.cpu().double()[of_row]).clamp(min=0)
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_token", [False, True])
def test_int4_by_groups(transposed, with_token):
    x, weight = int8(5, 32, low=-8).cpu(), int8(2, 32, 16, low=-8, seed=1).cpu()
    words = pack_int4(weight.mT.contiguous()).mT if transposed else pack_int4(weight)
    scale, token = make(2, 4, 16).cpu(), make(5)
    packed = pack_scale(scale.flatten()).reshape(2, 4, 16)
    (y,) = torch_npu.npu_grouped_matmul(
        [on_device(pack_int4(x))], [on_device(words)], scale=[on_device(packed)],
        per_token_scale=[token] if with_token else None, group_list=longs([3, 5]),
        split_item=3, group_type=0, output_dtype=F16,
    )  # fmt: skip
    want = torch.zeros(5, 16, dtype=torch.float64)
    for row in range(5):
        group = 0 if row < 3 else 1
        for depth in range(32):
            factor = cut_scale(scale)[group, depth // 8]
            want[row] += x[row, depth].double() * weight[group, depth].double() * factor
    want = want * token.cpu().double()[:, None] if with_token else want
    assert_accurate(y, want, want.half())


def test_int8_by_int4_leaves_eight_to_the_bias():
    x, weight = int8(5, 64).cpu(), int8(2, 64, 16, low=-8, seed=1).cpu()
    scale, token = make(2, 2, 16, low=0, high=0.1).cpu(), make(5, 1)
    words = pack_scale(scale.flatten()).reshape(2, 2, 16)
    full = cut_scale(scale).repeat_interleave(32, 1) * weight.double()
    (y,) = torch_npu.npu_grouped_matmul(
        [on_device(x)], [on_device(pack_int4(weight))], scale=[on_device(words)],
        bias=[on_device((8 * full.sum(1)).float())], per_token_scale=[token],
        group_list=longs([3, 2]), group_list_type=1, split_item=3, group_type=0, output_dtype=BF16,
    )  # fmt: skip
    want = loop(x, full, [3, 2]) * token.cpu().double()
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("form", ["int8", "int4", "int4 groups"])
@pytest.mark.parametrize("separate", [False, True])
def test_weight_quantized(dtype, form, separate):
    x, counts = make(9, 32, dtype=dtype), [4, 0, 5]
    values = int8(3, 32, 16, low=-8).cpu()
    words = on_device(pack_int4(values) if "int4" in form else values)
    shape = (3, 4, 16) if "groups" in form else (3, 16)
    scale, offset = make(*shape, dtype=dtype), make(*shape, dtype=dtype, low=-8, high=8, seed=3)
    bias = make(3, 16, dtype=F32 if dtype == BF16 else F16)

    def restore(kind):
        def over(t):
            t = t.cpu().to(kind)
            return t.repeat_interleave(8, 1) if "groups" in form else t[:, None]

        return (values.to(kind) + over(offset)) * over(scale)

    pack = list if separate else (lambda t: [t])
    (y,) = torch_npu.npu_grouped_matmul(
        [x], pack(words), antiquant_scale=pack(scale), antiquant_offset=pack(offset), bias=pack(bias),
        group_list=longs(ends(counts)), split_item=3, group_type=0,
    )  # fmt: skip
    want = loop(x, restore(torch.float64), counts, bias)
    assert_accurate(y, want, loop(x, restore(dtype), counts, bias).to(dtype))


def test_quantized_rows_of_no_group_are_zero():
    x, weight = int8(6, 8), int8(2, 8, 4, seed=1)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=longs([1, 3]), split_item=3, group_type=0, output_dtype=I32
    )
    assert torch.equal(y.cpu()[:3].long(), quantized(x[:3], weight, [1, 2]))
    assert not y.cpu()[3:].any()


# --- what CANN takes beyond the page ---------------------------------------------------------------------


def test_long_sizes():
    """The limit of 65535 is for K of x and for N of a weight that is not transposed."""
    x, weight = make(2, 3), make(1, 70000, 3).mT
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=longs([2]), group_list_type=1, split_item=2, group_type=0
    )
    want = loop(x, weight, [2])
    assert_accurate(y, want, want.float())
    x, weight = make(70000, 3, dtype=BF16).t(), make(70000, 2, dtype=BF16)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=longs([5, 70000]), split_item=3, group_type=2
    )
    a, b = x.cpu().double(), weight.cpu().double()
    want = torch.stack([a[:, :5] @ b[:5], a[:, 5:] @ b[5:]])
    assert_accurate(y, want, want.bfloat16())


def test_depths_of_no_group_count_for_nothing():
    x, weight = make(9, 4).t(), make(9, 5)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], split_item=3, group_type=2, **group_list([3, 0, 4], 1)
    )
    a, b = x.cpu().double(), weight.cpu().double()
    want = torch.stack([a[:, :3] @ b[:3], torch.zeros(4, 5).double(), a[:, 3:7] @ b[3:7]])
    assert_accurate(y, want, want.float())


def test_pairs_and_a_hint_for_floats():
    x, weight = make(6, 8, dtype=F16), make(3, 8, 4, dtype=F16)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=longs([[2, 4], [0, 2], [1, 0]]), group_list_type=2,
        split_item=2, group_type=0, tuning_config=[6],
    )  # fmt: skip
    a, b = x.cpu().double(), weight.cpu().double()
    want = torch.cat([a[:4] @ b[2], a[4:] @ b[0]])
    assert_accurate(y, want, want.half())


@pytest.mark.parametrize("act_type", [1, 5])
def test_activation_without_per_token_scale(act_type):
    x, weight, counts = int8(6, 20, low=-9), int8(2, 20, 8, low=-9, seed=1), [4, 2]
    scale = make(2, 8, dtype=BF16, low=0, high=0.1)
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], scale=[scale], split_item=3, group_type=0, act_type=act_type,
        output_dtype=BF16, **group_list(counts, 1),
    )  # fmt: skip
    of_row = torch.tensor([0] * 4 + [1] * 2)
    want = quantized(x, weight, counts).double() * scale.cpu().double()[of_row]
    want = ACTIVATIONS[act_type](want)
    assert_accurate(y, want, want.bfloat16())


def test_bfloat16_bias_on_950():
    x, weight, bias = make(4, 8, dtype=BF16), make(2, 8, 4, dtype=BF16), make(2, 4, dtype=BF16)
    with as_chip("Ascend950"):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], bias=[bias], group_list=longs([1, 4]), split_item=3, group_type=0
        )
    want = loop(x, weight, [1, 3], bias)
    assert_accurate(y, want, want.bfloat16())


# --- the overload with a list of ints -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_list_of_ints(dtype, counts):
    x, weight = make(9, 12, dtype=dtype), make(3, 12, 7, dtype=dtype)
    bias = make(3, 7, dtype=F32 if dtype == BF16 else dtype)
    want = loop(x, weight, counts, bias)
    call = {"bias": list(bias), "group_list": ends(counts)}
    (y,) = torch_npu.npu_grouped_matmul([x], list(weight), split_item=3, **call)
    assert_accurate(y, want, want.to(dtype))
    results = torch_npu.npu_grouped_matmul([x], list(weight), split_item=1, **call)
    assert [len(r) for r in results] == counts
    assert_accurate(torch.cat(list(results)), want, want.to(dtype))


def half(*shape):
    return make(*shape, dtype=F16)


def test_list_of_ints_with_many_x():
    x, weight = [half(2, 5), half(3, 5)], [half(5, 4), half(5, 4)]
    want = [a.cpu().double() @ w.cpu().double() for a, w in zip(x, weight, strict=True)]
    results = torch_npu.npu_grouped_matmul(x, weight, split_item=0, group_list=[])
    for y, exact in zip(results, want, strict=True):
        assert_accurate(y, exact, exact.half())
    (y,) = torch_npu.npu_grouped_matmul(x, weight, group_list=[2, 5], split_item=2)
    assert_accurate(y, torch.cat(want), torch.cat(want).half())
    (y,) = torch_npu.npu_grouped_matmul(x[:1], weight[:1], group_list=[2], split_item=1)
    assert_accurate(y, want[0], want[0].half())


def test_list_of_ints_quantized():
    x, weight, scale = (
        int8(6, 20, low=-20),
        int8(2, 20, 8, low=-20),
        make(2, 8, low=-0.3, high=0.3).cpu(),
    )
    (y,) = torch_npu.npu_grouped_matmul(
        [x],
        list(weight),
        scale=[on_device(pack_scale(s)) for s in scale],
        group_list=[2, 6],
        split_item=3,
    )
    of_row = torch.tensor([0] * 2 + [1] * 4)
    assert torch.equal(
        y.cpu(), to_int8(quantized(x, weight, [2, 4]).double() * cut_scale(scale)[of_row])
    )
