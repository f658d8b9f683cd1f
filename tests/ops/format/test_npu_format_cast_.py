"""npu_format_cast_: the tensor itself changes."""

import pytest
import torch

import torch_npu
from tests.ops.support import make
from torch_npu import Format

pytestmark = pytest.mark.usefixtures("internal")

get = torch_npu.get_npu_format


@pytest.mark.family("A2")
@pytest.mark.parametrize("number,back", [(29, 0), (3, 0), (4, 0), (1, 0), (2, 0), (0, 2)])
def test_in_place(number, back):
    x = make(2, 3, 4, 5)
    values = x.cpu()
    assert torch_npu.npu_format_cast_(x, number) is x
    assert get(x) == number and torch.equal(x.cpu(), values)
    torch_npu.npu_format_cast_(x, Format(back))
    assert get(x) == back and torch.equal(x.cpu(), values)


def test_a_tensor_gives_its_format_and_not_its_values():
    x, like = make(8, 16), torch_npu.npu_format_cast(make(4, 4, seed=9), 29)
    values = x.cpu()
    assert torch_npu.npu_format_cast_(x, like) is x
    assert get(x) == 29 and torch.equal(x.cpu(), values)
    torch_npu.npu_format_cast_(x, make(3, 3))
    assert get(x) == 2 and torch.equal(x.cpu(), values)


def test_views_taken_before_keep_the_old_storage():
    x = make(8, 16)
    row = x[0]
    torch_npu.npu_format_cast_(x, 29)
    x.zero_()
    assert get(row) == 2 and row.abs().sum() > 0


def test_the_same_format_changes_nothing():
    x = make(8, 16)
    where = x.data_ptr()
    torch_npu.npu_format_cast_(x, 2)
    assert x.data_ptr() == where


def test_a_parameter():
    weight = torch.nn.Parameter(make(5, 17))
    with torch.no_grad():
        torch_npu.npu_format_cast_(weight, 29)
    assert get(weight) == 29 and weight.requires_grad and weight.is_leaf


def test_compiled_it_is_the_identity():
    torch._dynamo.reset()
    run = torch.compile(lambda t: torch_npu.npu_format_cast_(t * 2, 29) + 1, backend="aot_eager")
    x = make(5, 17)
    assert torch.equal(run(x).cpu(), x.cpu() * 2 + 1)


@pytest.mark.family("A2")
def test_bad_formats():
    with pytest.raises(
        RuntimeError, match="npu_format_cast_.acl_format: argument 'acl_format'.*12"
    ):
        torch_npu.npu_format_cast_(make(2, 3), 12)
    with pytest.raises(RuntimeError, match="argument 'self' must be of 5 dimensions"):
        torch_npu.npu_format_cast_(make(2, 3), Format.FRACTAL_Z_3D)
    with pytest.raises(RuntimeError, match="argument 'src' must be an NPU tensor.*cpu"):
        torch_npu.npu_format_cast_(make(2, 3), torch.zeros(2, 3))
