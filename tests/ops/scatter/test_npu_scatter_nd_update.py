"""npu_scatter_nd_update and npu_scatter_nd_update_ against loops."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def reference(data, indices, updates):
    """Slice by slice."""
    out, rows = data.cpu().clone(), indices.cpu()
    for place in itertools.product(*(range(n) for n in indices.shape[:-1])):
        out[tuple(rows[place].tolist())] = updates.cpu()[place]
    return out


def both(data, indices, updates):
    before = data.cpu().clone()
    copy = torch_npu.npu_scatter_nd_update(data, indices, updates)
    assert torch.equal(data.cpu(), before)
    returned = torch_npu.npu_scatter_nd_update_(data, indices, updates)
    assert returned.data_ptr() == data.data_ptr()
    assert torch.equal(copy.cpu(), data.cpu())
    assert torch.equal(copy.cpu(), reference(before, indices, updates))


def index(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype).to(make(1).device)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bool, torch.bfloat16, torch.int64, torch.int8]
)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_dtypes(dtype, kind):
    data = make(4, 5, 6, dtype=dtype, low=-90, high=90)
    both(data, index([[3, 4], [0, 0], [2, 1]], kind), make(3, 6, dtype=dtype, low=-90, high=90))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depths(depth):
    shape = (4, 4, 4)
    places = [[i] * depth for i in (3, 0, 2)]
    both(make(*shape), index(places), make(3, *shape[depth:], seed=9))


def test_many_dimensions_of_indices():
    both(make(6, 5), index([[[0], [5], [2]], [[1], [3], [4]]]), make(2, 3, 5, seed=9))


def test_one_dimension_and_no_updates():
    both(make(7), index([[6], [1]]), make(2, seed=9))
    both(make(7, 3), index([[0]])[:0], make(0, 3))


def test_non_contiguous():
    both(make(5, 6).t(), index([[5, 0, 1]]).t(), make(5, 3, seed=9).t())


def refuses(message, data, *args):
    before = data.cpu().clone()
    for function in (torch_npu.npu_scatter_nd_update, torch_npu.npu_scatter_nd_update_):
        with pytest.raises(RuntimeError, match=message):
            function(data, *args)
    assert torch.equal(data.cpu(), before)


@pytest.mark.parametrize("values", [[[0, 0], [1, 5]], [[0, 0], [1, -1]]])
def test_index_out_of_range(values):
    bad = values[1][1]
    message = rf"npu_scatter_nd_update_?: argument 'indices' must be in \[0, size\).*\(4, 5\).*received {bad} at index \(1, 1\)"
    refuses(message, make(4, 5, 2), index(values), make(2, 2))


def test_indices_of_another_shape():
    refuses(
        "'indices' must be a tensor of at least 2 dimensions", make(4, 5), index([1]), make(1, 5)
    )
    refuses(
        "'indices' must be of a last dimension of 1 to 2, the rank of 'self'",
        make(4, 5),
        index([[0, 0, 0]]),
        make(1),
    )


def test_updates_of_another_shape():
    refuses(
        r"'updates' must be of shape \(3, 6\).*\(3, 5\)",
        make(4, 5, 6),
        index([[0, 0]] * 3),
        make(3, 5),
    )


def test_bad_dtypes():
    refuses(
        "'updates' must be of the dtype of 'self'",
        make(4, 5),
        index([[0]]),
        make(1, 5, dtype=torch.float16),
    )
    refuses(
        "'self' must be of dtype .*float64",
        make(4, dtype=torch.float64),
        index([[0]]),
        make(1, dtype=torch.float64),
    )
    refuses("'indices' must be of dtype .*float32", make(4), make(1, 1), make(1))
    with on("310P"):
        data, updates = make(4, dtype=torch.int8, high=2), make(1, dtype=torch.int8, high=2)
        refuses("'self' must be of dtype .*int8", data, index([[0]]), updates)


def test_in_a_graph():
    def step(data, indices, updates):
        return torch_npu.npu_scatter_nd_update_(data, indices, updates) + 1

    data, indices, updates = make(4, 5), index([[2], [0]]), make(2, 5, seed=9)
    want = reference(data, indices, updates)
    out = torch.compile(step, backend="aot_eager", fullgraph=True)(data, indices, updates)
    assert torch.equal(data.cpu(), want) and torch.equal(out.cpu(), want + 1)


@pytest.mark.parametrize(
    "family,dtype",
    [
        ("A2", torch.int32),
        ("A2", torch.int16),
        ("A5", torch.uint8),
        ("A5", torch.float8_e4m3fn),
        ("A5", torch.float8_e5m2),
    ],
)
def test_dtypes_by_chip(family, dtype):
    data, updates = torch.arange(12).view(4, 3).to(dtype), torch.tensor([[100, 101, 102]]).to(dtype)
    with on(family):
        got = torch_npu.npu_scatter_nd_update(data.npu(), index([[2]]), updates.npu()).cpu()
    assert got.dtype == dtype
    want = data.view(torch.uint8).clone() if dtype.itemsize == 1 else data.clone()
    want[2] = updates.view(want.dtype)[0]
    assert torch.equal(got.view(want.dtype), want)
