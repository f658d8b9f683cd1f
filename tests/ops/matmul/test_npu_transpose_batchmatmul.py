"""npu_transpose_batchmatmul against einsum in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.matmul._packing import cut_scale, pack_scale, to_int8
from tests.ops.support import assert_accurate, make


def reference(x, weight, perm_x1, perm_x2):
    left = ["", "", ""]
    for axis, source in enumerate(perm_x1):
        left[source] = "bmk"[axis]
    right = ["", "", ""]
    for axis, source in enumerate(perm_x2):
        right[source] = "bkn"[axis]
    return torch.einsum(f"{''.join(left)},{''.join(right)}->mbn", x, weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "soc,perm_x1,perm_x2",
    [
        ("Ascend910B3", None, None),
        ("Ascend910B3", [0, 1, 2], None),
        ("Ascend910B3", [1, 0, 2], None),
        ("Ascend910B3", [1, 0, 2], [0, 2, 1]),
        ("Ascend950", None, [0, 2, 1]),
    ],
)
def test_forward(dtype, soc, perm_x1, perm_x2):
    x = make(*((5, 3, 32) if perm_x1 == [1, 0, 2] else (3, 5, 32)), dtype=dtype)
    weight = make(*((3, 48, 32) if perm_x2 else (3, 32, 48)), dtype=dtype)
    with as_chip(soc):
        y = torch_npu.npu_transpose_batchmatmul(
            x, weight, perm_x1=perm_x1, perm_x2=perm_x2, perm_y=[1, 0, 2] if perm_x1 else None
        )
    perms = perm_x1 or [0, 1, 2], perm_x2 or [0, 1, 2]
    want = reference(x.cpu().double(), weight.cpu().double(), *perms)
    assert y.dtype == dtype and y.shape == (5, 3, 48) and y.is_contiguous()
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize("columns", [16, 7])
def test_batch_split_factor(factor, columns):
    """It divides the batch, whatever N is."""
    x, weight = make(5, 4, 16), make(4, 16, columns)
    y = torch_npu.npu_transpose_batchmatmul(x, weight, perm_x1=[1, 0, 2], batch_split_factor=factor)
    whole = reference(x.cpu().double(), weight.cpu().double(), [1, 0, 2], [0, 1, 2])
    flat = whole.reshape(5, 4 * columns)
    width = 4 * columns // factor
    planes = [flat[:, i * width : (i + 1) * width] for i in range(factor)]
    want = whole if factor == 1 else torch.stack(planes)
    assert_accurate(y, want, want.float())


def test_quantized_result():
    x = make(5, 2, 16, dtype=torch.float16, low=-4, high=4)
    weight = make(2, 16, 16, dtype=torch.float16, low=-4, high=4)
    scale = torch.linspace(-9, 9, 32)
    y = torch_npu.npu_transpose_batchmatmul(
        x, weight, scale=pack_scale(scale).to(x.device), perm_x1=[1, 0, 2], perm_y=[1, 0, 2]
    )
    whole = reference(x.cpu().double(), weight.cpu().double(), [1, 0, 2], [0, 1, 2])
    exact = whole.reshape(5, 1, 32) * cut_scale(scale)
    assert y.dtype == torch.int8 and y.shape == (5, 1, 32)
    clear = (exact - exact.floor() - 0.5).abs() > 1e-3  # fp32 sums may fall either way at a half
    assert clear.float().mean() > 0.9
    assert torch.equal(y.cpu()[clear], to_int8(exact)[clear])
    assert exact.abs().max() > 128 and y.min() == -128 and y.max() == 127


def test_non_contiguous():
    x, weight = make(16, 5, 2).transpose(0, 2), make(2, 16, 32)[:, :, ::2]
    y = torch_npu.npu_transpose_batchmatmul(x, weight)
    want = reference(x.cpu().double(), weight.cpu().double(), [0, 1, 2], [0, 1, 2])
    assert_accurate(y, want, want.float())


def call(x=(2, 3, 16), weight=(2, 16, 16), **options):
    return torch_npu.npu_transpose_batchmatmul(make(*x), make(*weight), **options)


def test_reserved_bias():
    with pytest.raises(NotImplementedError, match="'bias' must be left at None"):
        call(bias=make(16))


def test_bad_permutations():
    with pytest.raises(
        RuntimeError,
        match=r"'perm_x1' must be .*\[1, 0, 2\], but received \[1, 1, 2\].*perm_x1 should be",
    ):
        call(perm_x1=[1, 1, 2])
    with pytest.raises(RuntimeError, match="'perm_x2' must be .*perm_x2 should be"):
        call(perm_x2=[1, 0, 2])
    with pytest.raises(RuntimeError, match="'perm_y' must be .*perm_y should be"):
        call(perm_y=[0, 1, 2])


def test_bad_dtype():
    x = make(2, 3, 16, dtype=torch.int64, high=3)
    with pytest.raises(
        RuntimeError, match="npu_transpose_batchmatmul: argument 'input' must be of dtype"
    ):
        torch_npu.npu_transpose_batchmatmul(x, x)
    with pytest.raises(RuntimeError, match="weight's type supported for float16, float32 and bfl"):
        torch_npu.npu_transpose_batchmatmul(x.half(), x)


def test_sizes():
    with pytest.raises(
        RuntimeError, match=r"'weight' must be \(2, 16, N\) after 'perm_x2'.*\(3, 16, 16\)"
    ):
        call(weight=(3, 16, 16))
    with pytest.raises(RuntimeError, match="'input' must be of at least one batch.*0"):
        call(x=(0, 3, 16), weight=(0, 16, 16))


def test_any_width_and_long_inner_axis():
    x, w = make(2, 3, 7), make(2, 7, 5)
    want = (x.cpu().double() @ w.cpu().double()).transpose(0, 1)
    assert_accurate(torch_npu.npu_transpose_batchmatmul(x, w), want, want.float())
    long = make(1, 1, 65552, dtype=torch.float16)
    ones = torch.ones(1, 65552, 1, dtype=torch.float16, device=long.device)
    got = torch_npu.npu_transpose_batchmatmul(long, ones, perm_x1=[1, 0, 2])
    assert_accurate(got, long.cpu().double().sum().view(1, 1, 1), got.cpu())


def test_split_must_divide():
    with pytest.raises(
        RuntimeError, match=r"'batch_split_factor' must be a divisor of the batch \(2\).*4"
    ):
        call(batch_split_factor=4)
    scale = pack_scale(torch.ones(32)).to(make(1).device)
    x, w = make(2, 3, 16, dtype=torch.float16), make(2, 16, 16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="'batch_split_factor' must be 1 when 'scale' is given"):
        torch_npu.npu_transpose_batchmatmul(x, w, scale=scale, batch_split_factor=2)
    with pytest.raises(RuntimeError, match="'input' must be of dtype torch.float16.*float32"):
        call(scale=scale)


@pytest.mark.family("A2")
def test_limits_before_the_950():
    with pytest.raises(
        RuntimeError, match="'input' must be of a K below 65536, or permuted.*65536"
    ):
        call(x=(1, 1, 65536), weight=(1, 65536, 1))
    with pytest.raises(RuntimeError, match="'weight' must be of an N below 65536.*65536"):
        call(x=(1, 1, 1), weight=(1, 1, 65536))
    with pytest.raises(RuntimeError, match="'input' must be of a batch times K below 65536.*65536"):
        call(x=(1, 2, 32768), weight=(2, 32768, 1), perm_x1=[1, 0, 2], batch_split_factor=2)
    with pytest.raises(RuntimeError, match="'perm_x2' must be .*unless 'perm_x1' is"):
        call(perm_x2=[0, 2, 1])


def test_bad_scale():
    with pytest.raises(RuntimeError, match=r"'scale' must be of shape \(32\).*\(16,\)"):
        call(scale=pack_scale(torch.ones(16)).to(make(1).device))
    with pytest.raises(RuntimeError, match="'scale' must be of dtype .*float32"):
        call(scale=make(32))
