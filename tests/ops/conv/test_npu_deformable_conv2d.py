"""npu_deformable_conv2d and npu_deformable_conv2dbk against a loop over every point."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.slopes import check_gradients
from tests.ops.support import assert_accurate, gradcheck, make

#: input, weight, offset, then kernel_size, stride, padding, dilation, groups, deformable_groups, modulated
CASES = {
    "plain": (
        (2, 4, 5, 4),
        (3, 4, 3, 3),
        (2, 27, 5, 4),
        ([3, 3], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], 1, 1, True),
    ),
    "groups": (
        (1, 4, 6, 5),
        (4, 2, 2, 3),
        (1, 24, 3, 4),
        ([2, 3], [1, 1, 2, 1], [0, 1, 2, 1], [1, 1, 2, 2], 2, 2, False),
    ),
    "point": (
        (1, 1, 1, 1),
        (1, 1, 1, 1),
        (1, 3, 1, 1),
        ([1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], 1, 1, True),
    ),
    "wide": (
        (1, 2, 3, 9),
        (2, 2, 1, 2),
        (1, 12, 2, 8),
        ([1, 2], [1, 1, 2, 1], [0, 0, 0, 0], [1, 1, 1, 1], 1, 2, True),
    ),
}


def inputs(case, dtype=torch.float32, reach=3.0, **options):
    x, weight, offset, rest = CASES[case]
    return (
        make(*x, dtype=dtype, **options),
        make(*weight, dtype=dtype, seed=7, **options),
        make(*offset, dtype=dtype, low=-reach, high=reach, seed=8, **options),
        make(weight[0], dtype=dtype, seed=9, **options),
        *rest,
    )


def pixel(image, row, column):
    height, width = image.shape
    return image[row, column].item() if 0 <= row < height and 0 <= column < width else 0.0


def between(image, y, x):
    """Bilinear interpolation at (y, x); zero outside."""
    top, left = math.floor(y), math.floor(x)
    total = 0.0
    for row, along_y in ((top, top + 1 - y), (top + 1, y - top)):
        for column, along_x in ((left, left + 1 - x), (left + 1, x - left)):
            total += pixel(image, row, column) * along_y * along_x
    return total


def reference(x, weight, offset, bias, kernel, stride, padding, dilation, groups, parts, modulated):
    n, c = x.shape[:2]
    (kh, kw), (high, broad) = kernel, offset.shape[2:]
    taps = kh * kw
    read = torch.zeros(n, c, high * kh, broad * kw, dtype=torch.float64)
    for b in range(n):
        for channel in range(c):
            part = channel // (c // parts)
            for h in range(high):
                for w in range(broad):
                    for i in range(kh):
                        for j in range(kw):
                            at = part * taps + i * kw + j
                            shift_x = offset[b, at, h, w].item()
                            shift_y = offset[b, parts * taps + at, h, w].item()
                            factor = (
                                offset[b, 2 * parts * taps + at, h, w].item() if modulated else 1.0
                            )
                            py = h * stride[2] - padding[0] + i * dilation[2] + shift_y
                            px = w * stride[3] - padding[2] + j * dilation[3] + shift_x
                            value = between(x[b, channel], py, px) * factor
                            read[b, channel, h * kh + i, w * kw + j] = value
    out = torch.zeros(n, weight.shape[0], high, broad, dtype=torch.float64)
    per_out, per_in = weight.shape[0] // groups, c // groups
    for o in range(weight.shape[0]):
        first = o // per_out * per_in
        for h in range(high):
            for w in range(broad):
                window = read[
                    :, first : first + per_in, h * kh : (h + 1) * kh, w * kw : (w + 1) * kw
                ]
                out[:, o, h, w] = (window * weight[o]).sum((1, 2, 3))
    return out if bias is None else out + bias.reshape(1, -1, 1, 1), read


def on_host(args):
    return [a.detach().cpu().double() if isinstance(a, torch.Tensor) else a for a in args]


@pytest.mark.parametrize("case", CASES)
def test_forward(case):
    args = inputs(case)
    y, read = torch_npu.npu_deformable_conv2d(*args)
    want_y, want_read = reference(*on_host(args))
    assert y.dtype == read.dtype == torch.float32
    assert_accurate(y, want_y, want_y.float(), slack=1e-5)
    assert_accurate(read, want_read, want_read.float(), slack=1e-5)


def test_borders():
    """Points on the rim, just inside and outside of it, and far away."""
    edges = [-1.5, -1.0, -0.5, 0.0, 0.5, 2.5, 3.0, 3.5, 4.0, 4.5, 1e9, -math.inf, math.inf]
    x, weight = make(1, 1, 4, 4, low=1, high=2), make(1, 1, 1, 1, low=1, high=2)
    for dy in edges:
        for dx in edges:
            offset = torch.tensor([dx, dy, 2.0]).reshape(1, 3, 1, 1).expand(1, 3, 4, 4)
            offset = offset.contiguous()
            offset[0, :2, 1:] = 0
            offset[0, :2, :, 1:] = 0
            _, read = torch_npu.npu_deformable_conv2d(
                x, weight, offset.npu(), None, [1, 1], [1, 1, 1, 1], [0, 0, 0, 0]
            )
            far = not (math.isfinite(dy) and math.isfinite(dx))
            want = 0.0 if far else 2 * between(x[0, 0].cpu(), dy, dx)
            assert read[0, 0, 0, 0].item() == pytest.approx(want, abs=1e-5), (dy, dx)


def test_no_offset_is_a_convolution():
    x, weight, offset, bias, *_ = inputs("plain")
    still = torch.zeros_like(offset)
    still[:, 18:] = 1
    y, _ = torch_npu.npu_deformable_conv2d(
        x, weight, still, bias, [3, 3], [1, 1, 1, 1], [1, 1, 1, 1]
    )
    want = torch.nn.functional.conv2d(x.cpu().double(), weight.cpu().double(), bias.cpu().double())
    padded = torch.nn.functional.conv2d(
        x.cpu().double(), weight.cpu().double(), bias.cpu().double(), padding=1
    )
    assert want.shape != y.shape
    assert_accurate(y, padded, padded.float(), slack=1e-5)


@pytest.mark.parametrize("case", ["plain", "groups", "wide"])
def test_gradients(case):
    x, weight, offset, bias, *rest = inputs(case, torch.float64, reach=1.3, requires_grad=True)
    gradcheck(
        lambda *a: torch_npu.npu_deformable_conv2d(*a, *rest)[0],
        *(x, weight, offset, bias),
        fast_mode=True,
    )


def test_gradient_a_pixel_outside_is_zero():
    x = make(1, 1, 3, 3, low=1, high=2)
    offset = torch.zeros(1, 3, 3, 3)
    offset[0, 2] = 1
    offset[0, 1, 0] = -1  # exactly a pixel above the image: reads 0, and moving it does not matter
    offset = offset.npu().requires_grad_()
    weight = torch.ones(1, 1, 1, 1, device="npu")
    y, _ = torch_npu.npu_deformable_conv2d(
        x, weight, offset, None, [1, 1], [1, 1, 1, 1], [0, 0, 0, 0]
    )
    y.sum().backward()
    assert (offset.grad[0, :, 0] == 0).all() and (offset.grad[0, 2, 1:] > 0).all()


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_fp32(dtype):
    args = [
        a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in inputs("plain", dtype)
    ]
    y, read = torch_npu.npu_deformable_conv2d(*args)
    want, _ = reference(*on_host(args))
    assert y.dtype == read.dtype == torch.float32
    assert_accurate(y, want, want.float(), slack=1e-5)
    y.sum().backward()
    assert all(a.grad.dtype == dtype for a in args[:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ascend950_keeps_the_dtype(dtype):
    with as_chip("Ascend950"):
        x, weight, offset, bias, *rest = inputs("plain", dtype)
        y, read = torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest)
        assert y.dtype == read.dtype == dtype
        want, points = reference(*on_host((x, weight, offset, bias, *rest)))
        assert_accurate(read, points, points.to(dtype))
        assert_accurate(y, want, want.to(dtype), slack=4 * torch.finfo(dtype).eps)
        found = torch_npu.npu_deformable_conv2dbk(x, y, read, weight, offset, *rest)
        assert {g.dtype for g in found} == {dtype}
        with pytest.raises(RuntimeError, match="'offset' must be of the dtype of 'input'"):
            torch_npu.npu_deformable_conv2d(x, weight, offset.float(), bias, *rest)
        with pytest.raises(NotImplementedError, match="'modulated' must be True on Ascend950"):
            torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest[:-1], False)


def test_backward_operator_and_autograd_agree():
    x, weight, offset, bias, *rest = inputs("groups", requires_grad=True)
    y, read = torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest)
    assert not read.requires_grad
    grad = make(*y.shape, seed=4)
    y.backward(grad)
    found = torch_npu.npu_deformable_conv2dbk(x, grad, read, weight, offset, *rest)
    for tensor, want in zip((x, weight, offset, bias), found, strict=True):
        torch.testing.assert_close(tensor.grad, want)


@pytest.mark.parametrize("modulated", [True, False])
def test_backward_operator_against_slopes_of_the_loops(modulated):
    depth = 3 if modulated else 2
    x, weight = make(1, 2, 4, 4), make(2, 1, 2, 2, seed=7)
    offset, bias = make(1, depth * 2 * 4, 3, 3, low=0.1, high=0.9, seed=8), make(2, seed=9)
    rest = ([2, 2], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], 2, 2, modulated)
    _, read = torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest)
    grad = make(1, 2, 3, 3, seed=4)
    found = torch_npu.npu_deformable_conv2dbk(x, grad, read, weight, offset, *rest)
    check_gradients(lambda *a: reference(*a, *rest)[0], (x, weight, offset, bias), grad, found)


def test_not_a_number_reads_nothing_outside():
    x, weight, offset, bias, *rest = inputs("plain")
    offset[0, 0, 0, 0] = math.nan
    y, _ = torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest)
    assert y[0, :, 0, 0].isnan().all() and y[1].isfinite().all()


def test_non_contiguous():
    x, weight, offset, bias, *rest = inputs("plain")
    y, _ = torch_npu.npu_deformable_conv2d(x, weight, offset, bias, *rest)
    turned = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (x, weight, offset)]
    torch.testing.assert_close(torch_npu.npu_deformable_conv2d(*turned, bias, *rest)[0], y)


@pytest.mark.parametrize(
    "change,text",
    [
        ({"kernel_size": [2, 3]}, r"'weight' must be of shape \(\*, 4, 2, 3\)"),
        ({"stride": [1, 1]}, r"'stride' must be a list of 4 integers.*\[1, 1\]"),
        ({"stride": [1, 2, 1, 1]}, "'stride' must be 1 in the N and C dimensions"),
        ({"stride": [1, 1, 0, 1]}, "'stride' must be positive"),
        ({"padding": [1, 1]}, "'padding' must be a list of 4 integers"),
        ({"padding": [-1, 1, 1, 1]}, "'padding' must be not negative"),
        ({"dilation": [2, 1, 1, 1]}, "'dilation' must be 1 in the N and C dimensions"),
        ({"groups": 3}, "'groups' must be a divisor of 4 channels"),
        ({"deformable_groups": 3}, "'deformable_groups' must be a divisor of 4 channels"),
        ({"deformable_groups": 2}, r"'offset' must be of shape \(2, 54, 5, 4\)"),
        ({"modulated": False}, r"'offset' must be of shape \(2, 18, 5, 4\).*\(2, 27, 5, 4\)"),
        ({"kernel_size": [64, 64]}, "'kernel_size' must be at most 2048 elements"),
    ],
)
def test_bad_arguments(change, text):
    x, weight, offset, bias, *rest = inputs("plain")
    names = ("kernel_size", "stride", "padding", "dilation", "groups", "deformable_groups")
    given = dict(zip((*names, "modulated"), rest, strict=True)) | change
    with pytest.raises(RuntimeError, match=f"npu_deformable_conv2d: argument {text}"):
        torch_npu.npu_deformable_conv2d(x, weight, offset, bias, **given)


def test_empty_and_double():
    x, weight, offset, bias, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match="'input' must be not empty"):
        torch_npu.npu_deformable_conv2d(x[:0], weight, offset[:0], bias, *rest)
    with pytest.raises(RuntimeError, match="'input' must be of a type that float32 can carry"):
        torch_npu.npu_deformable_conv2d(x.to("npu", torch.float64), weight, offset, bias, *rest)


def test_bad_gradient():
    x, weight, offset, _, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match=r"'grad_output' must be of shape \(2, 3, 5, 4\)"):
        torch_npu.npu_deformable_conv2dbk(x, x, x, weight, offset, *rest)
    with pytest.raises(RuntimeError, match=r"'offset_out' must be of shape \(2, 4, 15, 12\)"):
        torch_npu.npu_deformable_conv2dbk(x, make(2, 3, 5, 4), x, weight, offset, *rest)
