"""matmul_checksum: a wrong element is found, rounding is not."""

import pytest
import torch

import torch_npu  # noqa: F401
from tests.ops.support import make
from torch_npu.ops.matmul.matmul_checksum import matmul_checksum

BF16 = torch.bfloat16


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(BF16).to(make(1).device)


def check(a, b, c):
    flag = matmul_checksum(a, b, c)
    assert flag.dtype == torch.bool and flag.dim() == 0 and flag.device == a.device
    return flag.item()


def test_ten_thousand_clean_products():
    a, b = normal(10000, 4, 16), normal(10000, 16, 8, seed=1)
    assert not check(a, b, torch.matmul(a, b))


@pytest.mark.parametrize("m,k,n", [(64, 128, 256), (3, 500, 7), (1, 1, 1), (200, 16, 1000)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_clean_products_of_many_sizes(m, k, n, scale):
    a, b = (normal(m, k, seed=m) * scale).to(BF16), normal(k, n, seed=n)
    assert not check(a, b, torch.matmul(a, b))


def test_rounding_of_equal_elements_is_no_fault():
    # all roundings of a row go the same way, so that its sum is far off
    a, b = (
        make(16, 100, dtype=BF16, low=1.37, high=1.37),
        make(100, 333, dtype=BF16, low=0.77, high=0.77),
    )
    assert not check(a, b, torch.matmul(a, b))


@pytest.mark.parametrize("index", range(12))
def test_one_wrong_element_is_found(index):
    a, b = normal(40, 64, seed=index), normal(64, 96, seed=index + 50)
    c = torch.matmul(a, b)
    c[3 * index, 7 * index] += c.float().std().to(BF16)
    before = c.clone()
    assert check(a, b, c)
    assert torch.equal(c, before)


@pytest.mark.parametrize("bit", range(7, 15))
def test_a_flipped_exponent_bit_is_found(bit):
    a, b = normal(20, 32), normal(32, 24, seed=1)
    c = torch.matmul(a, b)
    row, column = divmod(int(c.abs().argmax()), 24)
    bits = c.view(torch.int16)
    bits[row, column] = bits[row, column] ^ (1 << bit)
    assert check(a, b, c)


def test_nan_is_found_unless_the_factors_have_it():
    a, b = normal(20, 32), normal(32, 24, seed=1)
    c = torch.matmul(a, b)
    c[4, 5] = float("nan")
    assert check(a, b, c)
    a[4, 0] = float("inf")
    assert not check(a, b, torch.matmul(a, b))


def test_one_wrong_product_of_a_batch_and_broadcasting():
    a, b = normal(6, 8, 16), normal(16, 12, seed=1)
    c = torch.matmul(a, b)
    assert not check(a, b, c)
    c = torch.cat([c[:5], c[4:5]])
    assert check(a, b, c)


def test_vectors():
    a, b = normal(20, 32), normal(32, 24, seed=1)
    assert not check(a[0], b, torch.matmul(a[0], b))
    assert not check(a, b[:, 0], torch.matmul(a, b[:, 0]))
    assert check(a, b[:, 0], torch.matmul(a, b[:, 0]) + 1)


def test_other_devices_and_types():
    a = normal(4, 4)
    with pytest.raises(
        TypeError, match="matmul_checksum: argument 'b' must be a tensor on the .*list"
    ):
        matmul_checksum(a, [1.0], a)
    with pytest.raises(TypeError, match="argument 'c' must be a tensor on the .*meta"):
        matmul_checksum(a, a, a.to("meta"))
    with pytest.raises(
        RuntimeError, match="'a' must be of dtype torch.bfloat16, but received torch.float32"
    ):
        matmul_checksum(a.float(), a, a)


def test_product_of_another_shape():
    a = normal(4, 4)
    with pytest.raises(RuntimeError, match=r"'c' must be of shape \(4, 4\), .*\(3, 4\)"):
        matmul_checksum(a, a, a[:3])
