"""npu_masked_fill_range against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def integers(values):
    return torch.tensor(values, dtype=torch.int32).to(make(1).device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.int32])
@pytest.mark.parametrize(
    "shape,axis",
    [((9,), 0), ((3, 9), -1), ((9, 3), 0), ((3, 2, 9), 2), ((2, 9, 2), 1), ((9, 2, 2), 0)],
)
def test_ranges(shape, axis, dtype):
    x = make(*shape, dtype=dtype, low=-9, high=9)
    place = axis % len(shape)
    by_row = len(shape) > 1 and place == len(shape) - 1
    columns = shape[0] if by_row else 1
    start = [[j % 4 for j in range(columns)], [5] * columns]
    end = [[j % 4 + 3 for j in range(columns)], [7] * columns]
    value = make(2, dtype=dtype, low=-9, high=9, seed=4)
    want = x.cpu().clone()
    for r in range(2):
        for j in range(columns):
            part = want[j] if by_row else want
            part.narrow(-1 if by_row else place, start[r][j], end[r][j] - start[r][j]).fill_(
                value[r].item()
            )
    got = torch_npu.npu_masked_fill_range(x, integers(start), integers(end), value, axis)
    assert torch.equal(got.cpu(), want)


def test_refusals():
    one = integers([[0, 0]])
    with pytest.raises(RuntimeError, match=r"'axis' must be in \[-2, 1\], but received 2"):
        torch_npu.npu_masked_fill_range(make(2, 4), one, one, make(1), 2)
    with pytest.raises(RuntimeError, match="'value' must be of the dtype of 'self'"):
        torch_npu.npu_masked_fill_range(make(2, 4), one, one, make(1).half())
    with pytest.raises(RuntimeError, match=r"'start' must be of shape \(\*, 3\).*\(1, 2\)"):
        torch_npu.npu_masked_fill_range(make(3, 4), one, one, make(1))
