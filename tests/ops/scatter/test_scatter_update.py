"""scatter_update and scatter_update_ against loops."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def reference(data, indices, updates, axis):
    """Position by position."""
    out = data.cpu().clone().movedim(axis, 1)
    segments = updates.cpu().movedim(axis, 1)
    for i, entry in enumerate(indices.cpu().tolist()):
        row, start = (i, entry) if isinstance(entry, int) else entry
        for k in range(segments.shape[1]):
            out[row, start + k] = segments[i, k]
    return out.movedim(1, axis)


def both(data, indices, updates, axis):
    before = data.cpu().clone()
    copy = torch_npu.scatter_update(data, indices, updates, axis)
    assert torch.equal(data.cpu(), before)
    returned = torch_npu.scatter_update_(data, indices, updates, axis)
    assert returned.data_ptr() == data.data_ptr()
    assert torch.equal(copy.cpu(), data.cpu())
    assert torch.equal(copy.cpu(), reference(before, indices, updates, axis))
    assert copy.dtype == data.dtype


def index(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype).to(make(1).device)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.float16, torch.float32, torch.bfloat16, torch.int32]
)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_dtypes(dtype, kind):
    data = make(3, 2, 6, 4, dtype=dtype, low=-90, high=90)
    updates = make(3, 2, 1, 4, dtype=dtype, low=-90, high=90)
    both(data, index([5, 0, 3], kind), updates, -2)


@pytest.mark.parametrize(
    "shape,axis,length",
    [((3, 7), 1, 2), ((3, 7, 5), -1, 4), ((3, 7, 5), 1, 7), ((3, 2, 1, 7, 2, 1, 1, 2), 3, 3)],
)
@pytest.mark.parametrize("pairs", [False, True])
def test_axes(shape, axis, length, pairs):
    size = list(shape)
    size[axis] = length
    room = shape[axis] - length
    if pairs:
        size[0] = 2
        indices = index([[2, room], [0, 0]])
    else:
        indices = index([room, 0, room // 2])
    both(make(*shape), indices, make(*size, seed=9), axis)


def test_fewer_rows_than_data():
    both(make(4, 6, 2), index([1, 3]), make(2, 2, 2, seed=9), 1)


def test_non_contiguous():
    data, updates = make(6, 3, 4).transpose(0, 1), make(4, 1, 3, seed=9).permute(2, 1, 0)
    both(data, index([5, 9, 0, 9, 3, 9])[::2], updates, 1)


def refuses(message, data, *args):
    before = data.cpu().clone()
    for function in (torch_npu.scatter_update, torch_npu.scatter_update_):
        with pytest.raises(RuntimeError, match=message):
            function(data, *args)
    assert torch.equal(data.cpu(), before)


@pytest.mark.parametrize("values", [[0, 5], [0, -1], [0, 6]])
def test_index_out_of_range(values):
    message = rf"scatter_update_?: argument 'indices' must be in \[0, 4\], so that 2 elements fit .* received {values[1]} at index 1"
    refuses(message, make(2, 6, 3), index(values), make(2, 2, 3), 1)


def test_row_out_of_range():
    message = r"'indices' must be in \[0, 2\) in column 0, but received -1 at index \(1, 0\)"
    refuses(message, make(2, 6, 3), index([[0, 0], [-1, 0]]), make(2, 2, 3), 1)


def test_bad_axis():
    for axis in (0, -3, 3):
        message = rf"'axis' must be any dimension but the first of 'self' \(of 3 dimensions\), but received {axis}"
        refuses(message, make(2, 6, 3), index([0, 0]), make(2, 1, 3), axis)


def test_updates_of_another_shape():
    refuses(
        r"'updates' must be of shape \(2, \*, 3\).*\(2, 1, 4\)",
        make(2, 6, 3),
        index([0, 0]),
        make(2, 1, 4),
        1,
    )
    refuses(
        r"'updates' must be of shape \(1, \*, 3\).*\(2, 1, 3\)",
        make(2, 6, 3),
        index([0]),
        make(2, 1, 3),
        1,
    )
    refuses(
        "'updates' must be at most 6 long in dimension 1",
        make(2, 6, 3),
        index([0, 0]),
        make(2, 7, 3),
        1,
    )
    refuses(
        "'updates' must be a tensor of 3 dimensions", make(2, 6, 3), index([0, 0]), make(2, 3), 1
    )


def test_bad_dtypes():
    refuses(
        "'updates' must be of the dtype of 'self'",
        make(2, 6),
        index([0, 0]),
        make(2, 1, dtype=torch.float16),
        1,
    )
    refuses(
        "'indices' must be of dtype .*int16", make(2, 6), index([0, 0], torch.int16), make(2, 1), 1
    )
    refuses(
        "'self' must be of dtype .*float64",
        make(2, 6, dtype=torch.float64),
        index([0, 0]),
        make(2, 1),
        1,
    )
    with on("910A"):
        data, updates = make(2, 6, dtype=torch.bfloat16), make(2, 1, dtype=torch.bfloat16)
        refuses("'self' must be of dtype .*bfloat16", data, index([0, 0]), updates, 1)


def test_empty():
    refuses("'updates' must be not empty", make(2, 6), index([0, 0]), make(2, 0), 1)


def test_in_a_graph():
    def step(data, indices, updates):
        local = data * 2
        torch_npu.scatter_update_(local, indices, updates, 1)
        return local, torch_npu.scatter_update_(data, indices, updates, 1).sum()

    data, indices, updates = make(2, 6, 3), index([4, 1]), make(2, 2, 3, seed=9)
    before = data.cpu().clone()
    local, total = torch.compile(step, backend="aot_eager", fullgraph=True)(data, indices, updates)
    want = reference(before, indices, updates, 1)
    assert torch.equal(local.cpu(), reference(before * 2, indices, updates, 1))
    assert torch.equal(data.cpu(), want) and torch.allclose(total.cpu(), want.sum())


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_bytes_on_ascend950(dtype):
    data, updates = make(2, 6, 4).to(dtype), make(2, 1, 4, seed=3).to(dtype)
    with pytest.raises(RuntimeError, match="'self' must be of dtype"):
        torch_npu.scatter_update(data, index([5, 0]), updates, 1)
    with on("A5"):
        got = torch_npu.scatter_update(data, index([5, 0]), updates, 1)
    raw = (data.view(torch.uint8), index([5, 0]), updates.view(torch.uint8), 1)
    assert torch.equal(got.cpu().view(torch.uint8), reference(*raw))


def test_a_scalar_index():
    data, updates = make(2, 6, 4), make(1, 2, 4, seed=3)
    got = torch_npu.scatter_update(data, index(3), updates, 1)
    assert torch.equal(got.cpu(), reference(data, index([3]), updates, 1))


def test_bfloat16_is_not_on_the_inference_series():
    data, updates = make(2, 6, dtype=torch.bfloat16), make(2, 1, dtype=torch.bfloat16)
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.scatter_update(data, index([5, 0]), updates, 1)
