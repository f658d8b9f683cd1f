"""Products in bf16 and fp16 by fp32 BLAS, int8 exactly: against fp64, at most twice plain PyTorch's error."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401
from tests.ops.support import assert_accurate

HALVES = [torch.bfloat16, torch.float16]


def values(*shape, dtype, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).to(dtype)


def compare(function, inputs, dtype, backward=True):
    """Forward and every gradient on the device, by the accuracy rule; `inputs` are CPU tensors of `dtype`."""

    def run(convert):
        leaves = [convert(x).detach().requires_grad_(backward) for x in inputs]
        out = function(*leaves)
        if not backward:
            return [out]
        weight = values(*out.shape, dtype=dtype, seed=9)
        out.backward(convert(weight))
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    device = run(lambda x: x.npu())
    exact = run(lambda x: x.double())
    plain = run(lambda x: x.clone())
    for got, reference, theirs in zip(device, exact, plain, strict=True):
        assert got.dtype == dtype and got.device.type == "npu"
        assert got.shape == reference.shape
        assert_accurate(got, reference, theirs)


PRODUCTS = {
    "mm": (torch.mm, [(33, 130), (130, 17)]),
    "mm thin": (torch.mm, [(1, 300), (300, 1)]),
    "mm transposed": (lambda a, b: a.t() @ b.t(), [(65, 9), (31, 65)]),
    "matmul broadcast": (torch.matmul, [(2, 1, 7, 40), (3, 40, 5)]),
    "mv": (torch.mv, [(20, 90), (90,)]),
    "dot": (torch.dot, [(500,), (500,)]),
    "bmm": (torch.bmm, [(3, 10, 70), (3, 70, 6)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(8, 6), (8, 100), (100, 6)]),
    "addmm bias": (torch.addmm, [(6,), (8, 100), (100, 6)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=-1, alpha=0.5), [(2, 5, 4), (2, 5, 80), (2, 80, 4)]),
    "addbmm": (torch.addbmm, [(5, 4), (2, 5, 60), (2, 60, 4)]),
    "addmv": (torch.addmv, [(5,), (5, 60), (60,)]),
    "linear": (F.linear, [(4, 11, 96), (13, 96), (13,)]),
    "linear no bias": (F.linear, [(7, 64), (5, 64)]),
    "bilinear": (F.bilinear, [(4, 6), (4, 5), (3, 6, 5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 5, 48), (2, 7, 48)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), [(2, 8, 20), (6, 8, 3), (6,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [(2, 8, 11, 9), (6, 8, 3, 3), (6,)]),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=4, dilation=2), [(2, 8, 9, 9), (8, 2, 3, 3)]),
    "conv2d depthwise": (lambda x, w: F.conv2d(x, w, groups=8), [(2, 8, 7, 7), (8, 1, 3, 3)]),
    "conv3d": (F.conv3d, [(1, 4, 5, 6, 6), (3, 4, 2, 3, 3), (3,)]),
    "conv_transpose1d": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, output_padding=1), [(2, 8, 9), (8, 5, 3), (5,)],
    ),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), [(2, 6, 5, 5), (6, 4, 3, 3)]),
    "conv_transpose3d": (F.conv_transpose3d, [(1, 4, 3, 3, 3), (4, 2, 2, 2, 2), (2,)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_their_backward(name, dtype):
    function, shapes = PRODUCTS[name]
    inputs = [values(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    compare(function, inputs, dtype)


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool mask": {"mask": "bool"},
    "float mask": {"mask": "float"},
    "grouped heads": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_and_its_backward(name, dtype):
    options = dict(ATTENTION[name])
    kind = options.pop("mask", None)
    heads = 2 if options.get("enable_gqa") else 4
    q = values(2, 4, 19, 16, dtype=dtype)
    k, v = (values(2, heads, 23, 16, dtype=dtype, seed=s) for s in (1, 2))
    keep = torch.rand(19, 23, generator=torch.Generator().manual_seed(5)) > 0.3
    bias = values(19, 23, dtype=dtype, seed=3)

    def attention(q, k, v):
        mask = {None: None, "bool": keep.to(q.device), "float": bias.to(q.device, q.dtype)}[kind]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    compare(attention, [q, k, v], dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_fp32_accumulation_over_a_long_k(dtype):
    a, b = values(4, 8192, dtype=dtype), values(8192, 4, dtype=dtype, seed=1)
    got = (a.npu() @ b.npu()).cpu()
    once_rounded = (a.double() @ b.double()).to(dtype)
    ulp = torch.finfo(dtype).eps * once_rounded.abs().double().clamp(min=1)
    assert ((got.double() - once_rounded.double()).abs() <= ulp).all()


def test_fp16_overflow_is_infinity_as_on_the_card():
    a = torch.full((2, 64), 200.0, dtype=torch.float16, device="npu")
    assert (a @ a.t()).isinf().all()
    small = torch.full((2, 2), 60000.0, dtype=torch.float16, device="npu")
    # the partial sums exceed fp16 but the result does not
    weights = torch.tensor([[1.0, 1], [-1, -1]], dtype=torch.float16, device="npu") * 2
    assert (small @ weights).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity_pass_through(dtype):
    a = torch.ones(2, 3, dtype=dtype, device="npu")
    a[0, 0], a[1, 1] = float("nan"), float("inf")
    y = a @ torch.ones(3, 2, dtype=dtype, device="npu")
    assert y[0].isnan().all() and y[1].isinf().all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_products(shape, dtype):
    m, k, n = shape
    y = torch.ones(m, k, dtype=dtype, device="npu") @ torch.ones(k, n, dtype=dtype, device="npu")
    assert y.shape == (m, n) and y.dtype == dtype
    assert torch.equal(y.cpu(), torch.zeros(m, n, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_out_and_in_place_products(dtype):
    a, b = values(5, 30, dtype=dtype), values(30, 4, dtype=dtype, seed=1)
    expected = (a.double() @ b.double()).to(dtype)
    for out in (
        torch.empty(0, dtype=dtype, device="npu"),
        torch.empty(4, 5, dtype=dtype, device="npu").t(),
    ):
        at = out.data_ptr()
        assert torch.mm(a.npu(), b.npu(), out=out) is out
        assert at in (0, out.data_ptr())
        torch.testing.assert_close(out.cpu(), expected)
    c = torch.ones(5, 4, dtype=dtype, device="npu")
    c.addmm_(a.npu(), b.npu(), beta=2)
    torch.testing.assert_close(c.cpu(), (2 + a.double() @ b.double()).to(dtype))


def test_fp32_products_are_the_cpus():
    a, b = values(40, 60, dtype=torch.float32), values(60, 50, dtype=torch.float32, seed=1)
    assert torch.equal((a.npu() @ b.npu()).cpu(), a @ b)


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_halves_are_refused(dtype):
    other = HALVES[1 - HALVES.index(dtype)]
    with pytest.raises(RuntimeError, match="dtype"):
        torch.ones(2, 2, dtype=dtype, device="npu") @ torch.ones(2, 2, dtype=other, device="npu")


# --- int8 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 17, 1023, 1024, 1025, 4096, 65536])
def test_int8_products_are_exact(k):
    g = torch.Generator().manual_seed(k)
    a = torch.randint(-128, 128, (5, k), generator=g, dtype=torch.int8)
    b = torch.randint(-128, 128, (k, 3), generator=g, dtype=torch.int8)
    got = torch._int_mm(a.npu(), b.npu())
    assert got.dtype == torch.int32 and torch.equal(got.cpu().long(), a.long() @ b.long())


@pytest.mark.parametrize(("left", "right"), [(-128, -128), (-128, 127), (127, 127)])
def test_int8_extremes_are_exact(left, right):
    k = 65536
    a = torch.full((2, k), left, dtype=torch.int8, device="npu")
    b = torch.full((k, 2), right, dtype=torch.int8, device="npu")
    a[0, -1] = 1  # an odd sum, which fp32 could not hold
    got = torch._int_mm(a, b).tolist()
    assert got == [[left * right * (k - 1) + right] * 2, [left * right * k] * 2]


def test_int8_strides_and_out():
    a = torch.randint(-128, 128, (40, 7), dtype=torch.int8).t()
    b = torch.randint(-128, 128, (3, 40), dtype=torch.int8).t()
    expected = (a.long() @ b.long()).int()
    assert torch.equal(torch._int_mm(a.npu(), b.npu()).cpu(), expected)
    out = torch.empty(0, dtype=torch.int32, device="npu")
    torch._int_mm(a.npu(), b.npu(), out=out)
    assert torch.equal(out.cpu(), expected)


def test_int8_refuses_bad_shapes_and_dtypes():
    a = torch.ones(2, 3, dtype=torch.int8, device="npu")
    with pytest.raises(
        RuntimeError, match=r"self.size\(1\) needs to match mat2.size\(0\), got 3 and 2"
    ):
        torch._int_mm(a, a)
    with pytest.raises(RuntimeError, match="two matrices"):
        torch._int_mm(a[0], a)
    with pytest.raises(RuntimeError, match="int8"):
        torch._int_mm(a, a.t().int())


def _close(got, left, right, add=0.0):
    """Half results of large products, against fp64 on the same halves: one rounding and fp32 sums."""
    exact = left.cpu().double() @ right.cpu().double() + add
    tolerance = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.cpu().double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "rows, depth, columns", [(300, 2100, 1700), (1, 1500, 3001), (40, 9000, 500), (2100, 16, 2100)]
)
def test_products_larger_than_the_workspace(rows, depth, columns, dtype):
    left = (torch.randn(depth, rows) / depth**0.5).to(dtype).npu().t()  # strided
    right = torch.randn(depth, columns).to(dtype).npu()
    bias = torch.randn(columns).to(dtype).npu()
    _close(left @ right, left, right)
    added = torch.addmm(bias, left, right, beta=0.5, alpha=-1)
    _close(added, -left, right, 0.5 * bias.cpu().double())


@pytest.mark.parametrize("shape", [(40, 300, 200, 310), (2, 1200, 1100, 1300)])
def test_batches_larger_than_the_workspace(shape):
    batch, rows, depth, columns = shape
    left = (torch.randn(batch, rows, depth) / depth**0.5).bfloat16().npu()
    right = torch.randn(batch, columns, depth).bfloat16().npu().mT
    _close(left @ right, left, right)


def test_products_use_sixteen_mebibytes_of_workspace():
    left = torch.randn(512, 2048).bfloat16().npu()
    weight = torch.randn(6000, 2048).bfloat16().npu()
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    result = left @ weight.t()
    assert torch.npu.max_memory_allocated() - before - result.nbytes <= 16 * 2**20


@pytest.mark.parametrize("half", HALVES)
def test_products_of_half_and_single_precision_promote_as_the_card_does(half):
    a, b = values(3, 4, dtype=half), values(4, 5, dtype=torch.float32)
    bias = values(5, dtype=torch.float32)
    product = a.double() @ b.double()
    added = product + bias.double()
    cases = {  # the result has the type of the first argument: of what is added
        "mm": (lambda x, y, z: torch.mm(x, y), product, half),
        "bmm": (lambda x, y, z: torch.bmm(x[None], y[None])[0], product, half),
        "addmm": (lambda x, y, z: torch.addmm(z, x, y), added, torch.float32),
        "addmm, half": (
            lambda x, y, z: torch.addmm(z.to(half), x, y), product + bias.to(half).double(), half
        ),
        "baddbmm": (lambda x, y, z: torch.baddbmm(z, x[None], y[None])[0], added, torch.float32),
        "linear": (lambda x, y, z: F.linear(x, y.mT, z), added, torch.float32),
    }  # fmt: skip
    for name, (function, want, dtype) in cases.items():
        got = function(a.npu(), b.npu(), bias.npu())
        assert got.dtype == dtype, name
        torch.testing.assert_close(got.cpu(), want.to(dtype), msg=name)
    assert torch.mm(b.mT.npu(), a.mT.npu()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(a.npu(), b.int().npu())


def test_gradients_of_mixed_products():
    a = values(3, 4, dtype=torch.float16).npu().requires_grad_()
    b = values(4, 5, dtype=torch.float32).npu().requires_grad_()
    torch.mm(a, b).sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (torch.float16, torch.float32)
    one = torch.ones(3, 5)
    torch.testing.assert_close(
        a.grad.cpu().float(), one @ b.detach().cpu().mT, rtol=1e-3, atol=1e-2
    )
    torch.testing.assert_close(
        b.grad.cpu(), a.detach().cpu().float().mT @ one, rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.prod(-1),
        lambda x: x.cumprod(-1),
        lambda x: x.cumsum(-1),
        lambda x: x.logsumexp(-1),
        lambda x: x.logcumsumexp(-1),
        lambda x: x.log_softmax(-1),
        lambda x: x.sum(0),
    ],
)
def test_reductions_and_scans_round_once(reduce, dtype):
    x = (torch.randn(16, 64, generator=torch.Generator().manual_seed(3)) * 0.1 + 1).to(dtype)
    got, exact = reduce(x.npu()).cpu(), reduce(x.double())
    assert got.dtype == dtype
    wrong = (got != exact.to(dtype)).float().mean()
    assert wrong < 0.02  # fp32 in between may fall on the other side of a half
    assert torch.equal(x.npu().prod(-1, dtype=torch.float32).cpu(), x.float().prod(-1))
