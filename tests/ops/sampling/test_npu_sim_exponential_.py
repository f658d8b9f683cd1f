"""npu_sim_exponential_: the distribution, the generator, the refusals."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lambd", [0.5, 1.0, 4.0])
def test_distribution(dtype, lambd):
    x = make(20000, dtype=dtype)
    y = torch_npu.npu_sim_exponential_(x, lambd)
    assert y.data_ptr() == x.data_ptr()
    values = x.cpu().double() * lambd
    assert (values >= 0).all()
    assert abs(values.mean() - 1) < 0.03 and abs(values.std() - 1) < 0.05
    for quantile in (0.25, 0.5, 0.9):
        share = (values < -torch.log(torch.tensor(1 - quantile))).double().mean()
        assert abs(share - quantile) < 0.02


def test_infinite_rate_gives_zeros():
    assert not torch_npu.npu_sim_exponential_(make(9), float("inf")).cpu().any()


def test_calls_differ_and_seeds_repeat():
    torch.manual_seed(3)
    first = [torch_npu.npu_sim_exponential_(make(50)).cpu() for _ in range(2)]
    torch.manual_seed(3)
    again = [torch_npu.npu_sim_exponential_(make(50)).cpu() for _ in range(2)]
    assert not torch.equal(*first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_generator_of_the_device():
    one, two = (torch.Generator(make(1).device).manual_seed(5) for _ in range(2))
    a = [torch_npu.npu_sim_exponential_(make(50), generator=one).cpu() for _ in range(2)]
    b = [torch_npu.npu_sim_exponential_(make(50), generator=two).cpu() for _ in range(2)]
    assert not torch.equal(*a)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_non_contiguous():
    x = make(40, 50).t()
    torch_npu.npu_sim_exponential_(x)
    assert (x.cpu() >= 0).all() and x.cpu().unique().numel() > 1900


def test_rate():
    with pytest.raises(
        RuntimeError, match=r"'lambd' must be positive, but received 0.0.*expects lambd > 0.0"
    ):
        torch_npu.npu_sim_exponential_(make(3), 0.0)


def test_dtype():
    with pytest.raises(RuntimeError, match="'self' must be of dtype .*int32"):
        torch_npu.npu_sim_exponential_(make(3, dtype=torch.int32, high=4))


def test_dimensions():
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 0 to 8 dimensions"):
        torch_npu.npu_sim_exponential_(make(*[1] * 9))
