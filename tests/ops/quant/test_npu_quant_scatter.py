"""npu_quant_scatter and npu_quant_scatter_ against loops."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def cache(*shape):
    return make(*shape, dtype=torch.int8, low=-128, high=128)


def reference(data, indices, updates, scales, points, axis):
    """Row by row, position by position."""
    values = plain.f32(updates) / plain.f32(scales).reshape(-1)
    if points is not None:
        values = values + plain.f32(points).reshape(-1)
    whole = plain.whole(values, -128, 127).numpy()
    out = np.moveaxis(data.cpu().numpy().copy(), axis, 1)
    segments = np.moveaxis(whole, axis, 1)
    for i, entry in enumerate(indices.cpu().tolist()):
        row, start = (i, entry) if isinstance(entry, int) else entry
        for k in range(segments.shape[1]):
            out[row, start + k] = segments[i, k]
    return torch.from_numpy(np.moveaxis(out, 1, axis).copy())


def both(data, *args, **kwargs):
    """The result of each form; the copying one leaves its input, the other one changes it."""
    before = data.cpu().clone()
    copy = torch_npu.npu_quant_scatter(data, *args, **kwargs)
    assert torch.equal(data.cpu(), before)
    target = data.clone()
    returned = torch_npu.npu_quant_scatter_(target, *args, **kwargs)
    assert returned.data_ptr() == target.data_ptr()
    assert torch.equal(copy.cpu(), target.cpu())
    return copy


@pytest.mark.parametrize(
    "dtype,scale,points",
    [
        (torch.float16, torch.float32, torch.int32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_offsets(dtype, scale, points, shifted, kind):
    data, indices = cache(3, 6, 32), plain.npu([0, 5, 2], kind)
    point = points if shifted else None
    updates = make(3, 1, 32, dtype=dtype, low=-9, high=9)
    scales = make(1, 1, 32, dtype=scale, low=0.03, high=0.3)
    points = None if point is None else make(32, low=-9, high=9).to(point)
    out = both(data, indices, updates, scales, points)
    plain.same(out, reference(data, indices, updates, scales, points, 1))


@pytest.mark.parametrize(
    "shape,axis,length", [((4, 2, 6, 32), -2, 3), ((4, 6, 2, 32), 1, 6), ((4, 6, 2, 3, 32), -4, 2)]
)
def test_pairs_and_axes(shape, axis, length):
    size = list(shape)
    size[0], size[axis] = 2, length
    data, updates = cache(*shape), make(*size, dtype=torch.float16, low=-9, high=9)
    indices = plain.npu([[3, 6 - length], [1, 0]], torch.int32)
    scales = make(32, low=0.03, high=0.3)
    out = both(data, indices, updates, scales, axis=axis, quant_axis=len(shape) - 1)
    plain.same(out, reference(data, indices, updates, scales, None, axis % len(shape)))


def test_non_contiguous():
    data, updates = (
        cache(6, 3, 32).transpose(0, 1),
        make(1, 2, 32, dtype=torch.float16).transpose(0, 1),
    )
    scales, indices = make(64, low=0.01, high=0.1)[::2], plain.npu([4, 1], torch.int32)
    out = both(data, indices, updates, scales)
    plain.same(out, reference(data, indices, updates, scales, None, 1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_on_ascend950(dtype):
    data = plain.npu(torch.zeros(1, 2, 32).to(dtype))
    updates, scales = make(1, 1, 32, dtype=torch.float16), make(32, low=0.1, high=0.5)
    with on("A5"):
        out = torch_npu.npu_quant_scatter(
            data, plain.npu([1], torch.int32), updates, scales, dst_type=dtype
        )
    want = torch.from_numpy(plain.f32(updates) / plain.f32(scales)).to(dtype)
    assert out.dtype == dtype and torch.equal(out[:, 1:].cpu().float(), want.float())
    assert not out[:, :1].cpu().float().any()


def refuses(message, data, *args, **kwargs):
    """Both forms raise, and the target keeps every byte."""
    before = data.cpu().clone()
    for function in (torch_npu.npu_quant_scatter, torch_npu.npu_quant_scatter_):
        with pytest.raises(RuntimeError, match=message):
            function(data, *args, **kwargs)
    assert torch.equal(data.cpu(), before)


def test_index_out_of_range():
    updates, scales = make(2, 2, 32, dtype=torch.float16), make(32, low=0.1, high=1)
    for values in ([0, 5], [0, -1]):
        message = rf"npu_quant_scatter_?: argument 'indices' must be in \[0, 4\].*received {values[1]} at index 1"
        refuses(message, cache(2, 6, 32), plain.npu(values, torch.int32), updates, scales)
    pairs = plain.npu([[0, 0], [2, 0]], torch.int32)
    refuses(
        r"'indices' must be in \[0, 2\) in column 0.*received 2 at index \(1, 0\)",
        cache(2, 6, 32),
        pairs,
        updates,
        scales,
    )


def test_overlapping_segments():
    pairs = plain.npu([[1, 3], [1, 2]], torch.int32)
    updates = make(2, 2, 32, dtype=torch.float16)
    refuses(
        r"do not overlap, but received \(1, 2\) and \(1, 3\)",
        cache(2, 6, 32),
        pairs,
        updates,
        make(32),
    )


def test_scales_of_another_size():
    args = cache(2, 6, 32), plain.npu([0, 1], torch.int32), make(2, 1, 32, dtype=torch.float16)
    refuses("'quant_scales' must be of 32 elements", *args, make(31))
    refuses(
        "'quant_zero_points' must be of 32 elements",
        *args,
        make(32),
        make(1, dtype=torch.int32, high=2),
    )


def test_updates_of_another_shape():
    args = plain.npu([0, 1], torch.int32), make(2, 1, 16, dtype=torch.float16), make(16)
    refuses(r"'updates' must be of shape \(2, \*, 32\).*\(2, 1, 16\)", cache(2, 6, 32), *args)


def test_bad_options():
    args = (
        cache(2, 6, 32),
        plain.npu([0, 1], torch.int32),
        make(2, 1, 32, dtype=torch.float16),
        make(32),
    )
    refuses("'axis' must be neither the first nor the last dimension", *args, axis=-1)
    refuses("'quant_axis' must be -1 or 2, but received 1", *args, quant_axis=1)
    refuses("'reduce' must be 'update', but received 'add'", *args, reduce="add")
    with on("A5"):
        refuses("'dst_type' must be the type int8, float8_e4m3fn", *args, dst_type=torch.int32)
        refuses("'round_mode' must be 'rint', but received 'floor'", *args, round_mode="floor")
        refuses("'round_mode' must be 'round', but received 'rint'", *args, dst_type=290)
    args = *args[:3], make(32, dtype=torch.bfloat16)
    refuses("'quant_scales' must be of dtype torch.float32", *args)


def test_without_a_type_the_bytes_are_int8_on_ascend950():
    data = plain.npu(torch.zeros(1, 2, 8).to(torch.float8_e4m3fn))
    updates, scales = make(1, 1, 8, dtype=torch.float16, low=-9, high=9), make(8, low=0.1, high=1)
    with on("A5"):
        out = torch_npu.npu_quant_scatter(data, plain.npu([1], torch.int32), updates, scales)
    want = plain.whole(plain.f32(updates) / plain.f32(scales), -128, 127)
    assert torch.equal(out.cpu().view(torch.int8)[:, 1:], want)


@pytest.mark.family("A2")
def test_alignment():
    args = plain.npu([0, 1], torch.int32), make(2, 1, 8, dtype=torch.float16), make(8)
    refuses("'updates' must be a multiple of 32 bytes long", cache(2, 6, 8), *args)


def test_in_a_graph():
    def step(data, indices, updates, scales):
        torch_npu.npu_quant_scatter_(data, indices, updates, scales)
        return data + 0

    data, indices = cache(2, 6, 32), plain.npu([3, 0], torch.int32)
    updates, scales = make(2, 2, 32, dtype=torch.float16), make(32, low=0.01, high=0.1)
    want = reference(data, indices, updates, scales, None, 1)
    out = torch.compile(step, backend="aot_eager", fullgraph=True)(data, indices, updates, scales)
    plain.same(data, want)
    plain.same(out, want)
