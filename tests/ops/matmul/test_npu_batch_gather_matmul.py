"""npu_batch_gather_matmul and its in-place form against loops in fp64, rounded to float16 after each step."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def inputs(rows=5, width=32, columns=32, rank=16, inner=48, a=True):
    half = torch.float16
    return {
        "self": make(rows, width, dtype=half, seed=1),
        "x": make(rows, inner if a else rank, dtype=half, seed=2),
        "weight_b": make(3, 2, columns, rank, dtype=half, seed=3),
        "indices": torch.tensor([0, 2, 1, 3, -1], dtype=torch.int32).to(make(1).device)[:rows],
        "weight_a": make(3, 2, rank, inner, dtype=half, seed=4) if a else None,
    }


def reference(self, x, weight_b, indices, weight_a, layer_idx=0, scale=1e-3, y_offset=0, size=None):
    y, x, b = (t.cpu().double() for t in (self, x, weight_b))
    y = y.clone()
    for row, index in enumerate(indices.tolist()):
        if 0 <= index < 3:
            z = x[row]
            if weight_a is not None:
                z = (weight_a.cpu().double()[index, layer_idx] @ z).half().double()
            added = ((b[index, layer_idx] @ z).half() * scale).double()
            columns = slice(y_offset, y_offset + b.shape[2])
            y[row, columns] = (y[row, columns] + added).half().double()
    return y


def compare(y, want):
    """To the bit, but where the order of a sum turns a rounding."""
    y = y.cpu().double()
    assert (y == want).double().mean() > 0.9
    torch.testing.assert_close(y, want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("a", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
def test_against_loops(layer, a):
    given = inputs(a=a)
    before = given["self"].clone()
    want = reference(**given, layer_idx=layer, scale=0.5)
    y = torch_npu.npu_batch_gather_matmul(**given, layer_idx=layer, scale=0.5)
    compare(y, want)
    assert torch.equal(given["self"].cpu(), before.cpu())
    again = torch_npu.npu_batch_gather_matmul_(**given, layer_idx=layer, scale=0.5)
    assert again.data_ptr() == given["self"].data_ptr()
    assert torch.equal(given["self"].cpu(), y.cpu())


@pytest.mark.parametrize("size", [16, 8])
def test_a_slice_of_the_columns(size):
    given = inputs(columns=16)
    want = reference(**given, scale=2.0, y_offset=4)
    y = torch_npu.npu_batch_gather_matmul(**given, scale=2.0, y_offset=4, y_slice_size=size)
    compare(y, want)


def test_the_default_scale():
    given = inputs()
    want = reference(**given)
    compare(torch_npu.npu_batch_gather_matmul(**given), want)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"layer_idx": 2}, r"'layer_idx' must be in \[0, 1\], but received 2"),
        ({"y_offset": 1}, "'y_offset' must be such that 32 columns fit in 32, but received 1"),
        ({"y_slice_size": 33}, "'y_slice_size' must be -1 for 32, or from 0 to 32"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_batch_gather_matmul(**inputs(), **options)


@pytest.mark.parametrize(
    "sizes,message",
    [
        ({"width": 40, "columns": 16}, "'self' must be of a size divisible by 16.*40"),
        ({"inner": 40}, "'x' must be of a size divisible by 16.*40"),
        ({"columns": 24}, "'weight_b' must be of a size divisible by 16.*24"),
        ({"rank": 144}, "'weight_b' must be of a rank divisible by 16.*144"),
        ({"columns": 16}, "'y_slice_size' must be -1 for 32, or from 0 to 16"),
    ],
)
def test_sizes(sizes, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_batch_gather_matmul(**inputs(**sizes))
